from __future__ import annotations

import importlib.util
import pickle
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import pytest

from orca import errors
from orca.errors import (
    ArgumentError,
    DataError,
    MissingDependency,
    NotYet,
    OrcaError,
    WorkerFailed,
)

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_survives_a_pickle(kind: type[OrcaError]) -> None:
    arguments = (3, "node-7", "ValueError: bad", "Traceback ...") if issubclass(kind, WorkerFailed) else ("what, why",)
    error = kind(*arguments)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and again.args == error.args and str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_is_an_orca_error_that_says_what_for(kind: type[OrcaError]) -> None:
    assert issubclass(kind, OrcaError) and kind.__doc__


def test_wrong_arguments_are_caught_as_both_api_families_did() -> None:
    for kind in (ArgumentError, DataError, NotYet):
        assert issubclass(kind, ValueError) and issubclass(kind, RuntimeError)
    assert issubclass(NotYet, NotImplementedError) and issubclass(MissingDependency, ImportError)


@pytest.mark.parametrize(
    ("kind", "verb"), [(WorkerFailed, "failed"), (errors.WorkerLost, "was lost"), (errors.WorkerStalled, "stalled")]
)
def test_a_workers_failure_says_who_where_and_why(kind: type[WorkerFailed], verb: str) -> None:
    error = kind(3, "node-7", "ValueError: bad", "Traceback: line 1\n")
    assert str(error) == f"rank 3 on node-7 {verb}: ValueError: bad\n\nTraceback: line 1"
    assert (error.rank, error.host, error.reason) == (3, "node-7", "ValueError: bad")
    assert str(kind(0, "h", "gone")) == f"rank 0 on h {verb}: gone"


def test_an_error_of_a_worker_that_is_raised_as_its_class_says_its_class_once() -> None:
    error = errors.worker_failed("DataError", 3, "node-7", "DataError: column 'y' holds nulls")
    assert str(error) == "rank 3 on node-7 failed: column 'y' holds nulls" and isinstance(error, DataError)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.reason == error.reason


@pytest.mark.parametrize(
    "kind", [OrcaError, ArgumentError, DataError, NotYet, MissingDependency, errors.SignatureError]
)
def test_an_error_keeps_its_code_when_it_travels(kind: type[OrcaError]) -> None:
    error = kind("text", code="some-problem")
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, str(again), type(again)) == ("some-problem", "text", kind)
    assert kind("text").code == kind.default_code


def test_a_workers_failure_has_the_code_of_its_error() -> None:
    error = errors.worker_failed("DataError", 3, "node-7", "DataError: bad", code="null-values")
    assert error.code == pickle.loads(pickle.dumps(error)).code == "null-values"
    assert WorkerFailed(0, "h", "KeyError: 1").code == "worker-failed"
    assert pickle.loads(pickle.dumps(errors.WorkerLost(0, "h", "gone"))).code == "worker-lost"


def test_a_missing_dependency_gives_the_line_that_installs_it() -> None:
    error = MissingDependency.of("ray", "ray", "the ray engine")
    assert str(error) == (
        "the ray engine needs the package 'ray', which is not installed. Run: pip install 'orca-dl[ray]'"
    )
    assert isinstance(pickle.loads(pickle.dumps(error)), ImportError)


@pytest.fixture(scope="module")
def listing() -> Any:
    """Return the tool that lists the codes."""
    path = Path(__file__).resolve().parent.parent / "tools" / "error_codes.py"
    spec = importlib.util.spec_from_file_location("error_codes", path)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_every_error_has_a_code_that_names_one_problem_of_one_class(listing: Any) -> None:
    defaults = listing.classes()
    general = {"OrcaError", "ArgumentError", "SignatureError", "DataError", "NotSupported", "NotYet"}
    places = [site for site in listing.sites() if site.file != "errors.py"]
    assert [site for site in places if site.kind in general and not site.code] == []
    codes = {site.code or defaults[site.kind] for site in places} | {*defaults.values()}
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z]+)+", code)] == []
    kinds = {code: {site.kind for site in places if site.code == code} for code in codes}
    assert {code: names for code, names in kinds.items() if len(names) > 1} == {}


def test_the_page_lists_every_code_with_its_class(listing: Any) -> None:
    def rows(page: str) -> list[str]:
        return re.findall(r"^\| `.*?` \| \w+ \|", page, re.MULTILINE)  # a text may change without the page

    assert rows(listing.PAGE.read_text()) == rows(listing.page()), "run python tools/error_codes.py"


def test_an_error_of_a_task_is_read_from_the_text_that_spark_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.worker", types.ModuleType("pyspark.worker"))  # as in a worker of Spark
    try:
        try:
            raise DataError("column 'y' holds nulls.\nDrop them: \"dropna\".", code="null-values")
        except DataError as error:
            raise pickle.loads(pickle.dumps(error)) from None
    except DataError:
        text = (
            f"Job aborted due to stage failure:\n{traceback.format_exc()}\n\tat org.apache.spark.Task.run(Task.scala)"
        )
    found = errors.recorded_in(text)
    assert type(found) is DataError and found.code == "null-values"
    assert str(found) == "column 'y' holds nulls.\nDrop them: \"dropna\"."
    assert errors.recorded_in("Traceback (most recent call last):\nKeyError: 'orca'") is None
