from __future__ import annotations

import pickle
import re

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
    assert kind("text").code == kind.code and re.fullmatch(r"[a-z]+(-[a-z]+)+", kind.code)


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
