from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from leaks import leaks
from orca.core.engine import (
    Settings,
    _set_threads,
    dispatch,
    dumps,
    extend_path,
    is_secondary,
    owners_of,
    seal,
)
from orca.core.resources import Inventory
from orca.core.source import Shards
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, OrcaError, WorkerFailed

HOST = "127.0.0.1"
SETTINGS = Settings(stall_timeout=30, progress=False)


@dataclass
class Parts:
    """A learner of parts that may not be picklable."""

    model: Any = None
    optimizer: Any = None
    loss: Any = None


@dataclass
class Job:
    """A job with a learner."""

    learner: Parts
    config: Any = None

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> None:
        pass


def no_rows(items: Any, folder: Path) -> dict[str, Any]:
    return {}


def test_a_sealed_job_keeps_its_parts_linked() -> None:
    weights = [1.0]
    job, open_rows = cloudpickle.loads(seal(Job(Parts(model={"w": weights}, optimizer=[weights])), no_rows))
    assert job.learner.model["w"] is job.learner.optimizer[0] and open_rows(None, None) == {}


@pytest.mark.parametrize("part", ["model", "optimizer", "loss"])
def test_seal_names_the_part_of_the_learner_that_cannot_travel(part: str) -> None:
    job = Job(replace(Parts(), **{part: threading.Lock()}))
    with pytest.raises(ArgumentError, match=rf"^{part} cannot be sent to the workers: .*lock.*inside the creator"):
        seal(job, no_rows)


def test_seal_names_the_part_of_the_job_that_cannot_travel() -> None:
    with pytest.raises(ArgumentError, match=r"^config cannot be sent to the workers"):
        seal(Job(Parts(), config={"lock": threading.Lock()}), no_rows)


def test_seal_names_the_part_of_the_plan_that_cannot_travel_in_one_traceback() -> None:
    job = Job(Parts())
    job.plan = SimpleNamespace(callbacks=[threading.Lock()])  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"^callbacks cannot be sent to the workers") as caught:
        seal(job, no_rows)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_seal_speaks_of_the_job_where_it_is_none_of_its_parts() -> None:
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"^the job cannot be sent to the workers"):
        seal(Job(Parts()), lambda items, folder: {"lock": lock})  # type: ignore[dict-item]


def test_what_cannot_be_pickled_is_named_with_its_cause() -> None:
    with pytest.raises(
        ArgumentError, match=r"the data cannot be sent to the workers: TypeError: .*open file, a lock"
    ) as e:
        dumps(threading.Lock(), "the data")
    assert e.value.__cause__ is None  # its text says all; more at the verbosity "debug"


class WithoutText(RuntimeError):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


DistNetworkError = type("DistNetworkError", (RuntimeError,), {})


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:123"), True),
        (RuntimeError("Connection reset by peer"), True),
        (RuntimeError("NCCL communicator was aborted on rank 1"), True),
        (DistNetworkError("the client socket has timed out"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("Connection closed by peer"), False),
        (KeyError("x"), False),
        (WithoutText(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_that_only_tell_of_a_gone_rank_are_secondary(error: BaseException, secondary: bool) -> None:
    assert is_secondary(error) is secondary


def released(open_rows: Any = no_rows) -> tuple[Shards, list[str]]:
    """Return shards and the list that tells when they were released."""
    notes: list[str] = []
    return Shards(open_rows, list, release=lambda: notes.append("released")), notes


def test_dispatch_opens_the_hub_and_releases_the_shards_after_it() -> None:
    shards, events = released()
    with leaks(), dispatch(Job(Parts()), shards, 2, HOST, SETTINGS) as (envelope, hub):
        assert envelope.ticket == hub.ticket and envelope.ticket.size == 2 and envelope.settings == SETTINGS
        assert type(cloudpickle.loads(envelope.work)[0]).__name__ == "Job" and envelope.path == tuple(sys.path)
        assert events == []
    assert events == ["released"]


def test_a_full_temporary_folder_is_named_with_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted_memory(1 << 20) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        job = Job(Parts(model=bytes(2 << 20)))
        with pytest.raises(OrcaError, match=rf"no room for temporary files in {folder}: .*No space left.*TMPDIR"):
            LocalEngine(1).run(job, Shards(no_rows, list), SETTINGS)


@contextmanager
def mounted_memory(size: int) -> Iterator[str]:
    """Give a folder on a disk of so many bytes; skip where this user may mount none."""
    folder = tempfile.mkdtemp()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"this user may not mount: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
        os.rmdir(folder)


def test_dispatch_releases_the_shards_after_a_failure() -> None:
    shards, events = released()
    with leaks(), pytest.raises(ZeroDivisionError), dispatch(Job(Parts()), shards, 1, HOST, SETTINGS):
        raise ZeroDivisionError
    assert events == ["released"]


def test_dispatch_releases_the_shards_of_a_job_that_cannot_travel() -> None:
    shards, events = released()
    with leaks(), pytest.raises(ArgumentError, match="^loss cannot be sent"):
        with dispatch(Job(Parts(loss=threading.Lock())), shards, 1, HOST, SETTINGS):
            raise AssertionError("never here")
    assert events == ["released"]


def fails(items: Any, folder: Path) -> dict[str, Any]:
    (folder / "half a spool").write_text("x")
    raise ValueError(f"row {next(items)} of the data is bad")


def test_an_error_on_a_rank_reaches_the_caller_and_nothing_is_left() -> None:
    notes: list[str] = []
    shards = Shards(fails, lambda: [lambda: iter([7])], release=lambda: notes.append("released"))
    with leaks(), pytest.raises(WorkerFailed, match=r"rank 0 on \S+ failed: ValueError: row 7") as info:
        LocalEngine(1).run(Job(Parts()), shards, SETTINGS)
    assert info.value.rank == 0 and ", in fails" in info.value.remote_traceback
    assert notes == ["released"]


def test_workers_find_the_drivers_folders_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = list(sys.path)
    extend_path([str(tmp_path), str(tmp_path / "missing"), "", *before[:1], str(tmp_path)], ())
    assert sys.path == [*before, str(tmp_path)]


def test_folders_where_others_may_have_put_modules_are_not_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, public, foreign = list(sys.path), tmp_path / "public", tmp_path / "foreign"
    for folder in (public, foreign):
        folder.mkdir()
    public.chmod(0o1777)
    if os.geteuid() == 0:
        os.chown(foreign, 12345, 12345)
    else:
        foreign.chmod(0o777)
    extend_path(["/tmp", str(public), str(foreign)], owners_of(["/tmp", "", "/missing"]))
    assert sys.path == before
    if os.geteuid() == 0:
        extend_path([str(public), str(foreign)], owners_of([str(foreign)]))  # the driver imports from that user's
        assert sys.path == [*before, str(foreign)]


@pytest.mark.parametrize(("threads", "ranks", "expected"), [(3, 2, 3), (0, 2, 4), (0, 100, 1)])
def test_ranks_of_a_node_share_its_cores(
    threads: int, ranks: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(set_num_threads=seen.append))
    resources = [Inventory("node", [("affinity", 8.0)], [])] * ranks
    _set_threads(threads, SimpleNamespace(rank=0, resources=resources))  # type: ignore[arg-type]
    assert seen == [expected]
