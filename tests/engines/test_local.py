from __future__ import annotations

import atexit
import os
import pickle
import re
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from orca.core.engine import Settings, dispatch
from orca.core.source import Items, Shards
from orca.core.world import World
from orca.engines import forkserver, local
from orca.engines.local import LocalEngine
from orca.errors import WorkerLost, WorkerPreempted
from orca.monitor.exits import memory_limit
from orca.monitor.heartbeat import Heartbeat
from programs import run_program

QUIET = Settings(60.0, progress=False)


@dataclass(frozen=True)
class Kept:
    """Rows that are just the items."""

    items: list[Any]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Piece:
    number: int

    def __call__(self) -> Items:
        return iter([(self.number, 0), (self.number, 1)])


def open_items(items: Items, folder: Path) -> Any:
    return {"train": Kept(list(items))}


def shards(pieces: int = 0) -> Shards:
    return Shards(open_items, lambda: [Piece(number) for number in range(pieces)])


@dataclass(frozen=True)
class Tell:
    """Tell what a rank sees."""

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> Any:
        others = world.all_gather(world.rank * 10)
        place = (world.rank, world.size, world.local_rank, world.local_size)
        return place, others, rows["train"].items, os.environ["OMP_NUM_THREADS"]


@dataclass(frozen=True)
class Linger:
    """Write down where each rank is and stay there."""

    folder: str

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> None:
        Path(self.folder, f"pid-{world.rank}").write_text(str(os.getpid()))
        time.sleep(600)


@dataclass(frozen=True)
class Leave:
    """Let rank 1 end without a word."""

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> None:
        if world.rank == 1:
            os._exit(3)
        world.all_gather("anybody?")


@dataclass(frozen=True)
class Die:
    """Let rank 1 die of a signal, in a function of its own."""

    number: int

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> None:
        if world.rank == 1:
            self.call_native_code()
        world.all_gather("anybody?")

    def call_native_code(self) -> None:
        held = bytearray(os.urandom(1 << 20) * 400)
        os.kill(os.getpid(), self.number)
        del held


@dataclass(frozen=True)
class CrashAtExit:
    """Return a result on every rank, then let rank 1 crash in its teardown."""

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> int:
        world.all_gather("here")  # nobody is still connecting
        if world.rank == 1:
            atexit.register(os.kill, os.getpid(), signal.SIGKILL)  # libraries may handle other signals
        return world.rank


@dataclass(frozen=True)
class HangAtExit:
    """Return a result and never end."""

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> int:
        atexit.register(time.sleep, 600)
        return world.rank


def pids(folder: Path) -> list[int]:
    return [int(file.read_text() or 0) for file in folder.glob("pid-*")]


def test_ranks_meet_and_results_come_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = str(max(1, (os.cpu_count() or 1) // 3))
    ranks = LocalEngine(3).run(Tell(), shards(4), QUIET)
    assert [place for place, *_ in ranks] == [(0, 3, 0, 3), (1, 3, 1, 3), (2, 3, 2, 3)]
    assert [others for _, others, *_ in ranks] == [[0, 10, 20]] * 3
    assert [items for *_, items, _ in ranks] == [
        [(0, 0), (0, 1), (3, 0), (3, 1)],
        [(1, 0), (1, 1)],
        [(2, 0), (2, 1)],
    ]
    assert [seen for *_, seen in ranks] == [threads] * 3


def test_ranks_are_new_processes_where_there_is_no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "AVAILABLE", False)
    first, second = LocalEngine(2).run(Tell(), shards(3), QUIET)
    assert (first[0], second[0]) == ((0, 2, 0, 2), (1, 2, 1, 2))
    assert (first[2], second[2]) == ([(0, 0), (0, 1), (2, 0), (2, 1)], [(1, 0), (1, 1)])


def test_map_answers_in_the_order_of_the_pieces() -> None:
    assert LocalEngine(2).map(str, [3, 1, 2]) == ["3", "1", "2"]


def test_a_rank_that_exits_is_lost_with_its_exit_code() -> None:
    with pytest.raises(WorkerLost, match="rank 1 on 127.0.0.1 was lost: its process ended with exit code 3"):
        LocalEngine(2).run(Leave(), shards(), QUIET)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGILL, "Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"),
        (signal.SIGSEGV, "a library crashed"),
        (signal.SIGABRT, "a library gave up"),
        (signal.SIGBUS, "/dev/shm"),
    ],
)
def test_a_rank_that_crashes_is_lost_with_signal_remedy_and_stack(number: int, words: str) -> None:
    with pytest.raises(WorkerLost) as caught:
        LocalEngine(2).run(Die(number), shards(), QUIET)
    error, name = caught.value, signal.Signals(number).name
    assert error.rank == 1
    assert error.reason.startswith(f"its process was ended by {name} (exit code -{number}): ")
    assert words in error.reason
    innermost, *_ = re.findall(r"File .*", error.remote_traceback)
    assert "test_local.py" in innermost and "in call_native_code" in innermost
    assert "Extension modules" not in error.remote_traceback
    assert "in call_native_code" in str(error)  # the reason points to it


def test_a_rank_that_is_killed_is_lost_with_the_memory_it_had() -> None:
    with pytest.raises(WorkerLost) as caught:
        LocalEngine(2).run(Die(signal.SIGKILL), shards(), QUIET)
    reason = caught.value.reason
    assert reason.startswith("its process was ended by SIGKILL (exit code -9): most often for want of memory. Lower")
    held, limit = map(float, re.findall(r"([\d.]+) GB", reason))
    assert 0.4 < held < 3  # 400 MB besides the libraries
    assert limit == pytest.approx(memory_limit() / 1e9, abs=0.1)


def test_a_rank_that_is_asked_to_end_is_preempted() -> None:
    with pytest.raises(WorkerPreempted, match=r"rank 1 .* its process got SIGTERM\. No checkpoint.* max_failures="):
        LocalEngine(2).run(Die(signal.SIGTERM), shards(), QUIET)


def test_a_server_of_ranks_that_crashes_names_its_signal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "crashing_library.py").write_text("import os; os.kill(os.getpid(), 4)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ORCA_TEST_SERVER", "new")
    monkeypatch.setattr(local, "slow_modules", lambda: ["crashing_library"])
    with pytest.raises(WorkerLost, match=r"was ended by SIGILL \(exit code -4\)"):
        LocalEngine(1).run(Tell(), shards(1), QUIET)


def test_a_rank_that_crashes_in_its_teardown_has_given_its_result(caplog: pytest.LogCaptureFixture) -> None:
    assert LocalEngine(2).run(CrashAtExit(), shards(), QUIET) == [0, 1]
    assert "rank 1 gave its result, and then its process was ended by SIGKILL (exit code -9)" in caplog.text


def test_a_rank_that_hangs_in_its_teardown_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local, "ENDED_WITHIN", 0.1)
    assert LocalEngine(1).run(HangAtExit(), shards(), QUIET) == [0]
    assert "rank 0 gave its result and has not ended" in caplog.text


def test_a_lone_rank_whose_driver_is_gone_ends_before_it_reads_its_data(capfd: pytest.CaptureFixture[str]) -> None:
    with dispatch(Tell(), shards(1), 1, "127.0.0.1", QUIET) as (envelope, _):
        pass  # the hub is gone now, as it is when the driver is killed
    with tempfile.TemporaryFile() as work, tempfile.TemporaryFile() as share, tempfile.TemporaryFile() as result:
        work.write(pickle.dumps(envelope))
        share.write(cloudpickle.dumps([Piece(0)]))
        work.flush()
        share.flush()
        process = LocalEngine(1)._start(0, [work.fileno(), share.fileno(), result.fileno()])
        assert process.wait(60) == 1
        assert os.fstat(result.fileno()).st_size == 0
    shown = capfd.readouterr().err
    assert "rank 0 ends: its driver at 127.0.0.1" in shown and "Traceback" not in shown


def test_an_interrupt_of_the_driver_ends_the_ranks(tmp_path: Path) -> None:
    def interrupt() -> None:
        while len(pids(tmp_path)) < 2 and not stop.wait(0.05):
            pass
        if not stop.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    stop = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalEngine(2).run(Linger(str(tmp_path)), shards(), QUIET)
    finally:
        stop.set()
        thread.join()
    assert len(pids(tmp_path)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids(tmp_path))


def test_nothing_is_left_when_the_driver_is_killed(tmp_path: Path) -> None:
    code = f"""
import importlib.util, os, signal, sys, threading, time
import cloudpickle
spec = importlib.util.spec_from_file_location("behaviour", {__file__!r})
behaviour = sys.modules["behaviour"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(behaviour)
cloudpickle.register_pickle_by_value(behaviour)
from pathlib import Path
folder = Path({str(tmp_path)!r})

def end():
    while len(behaviour.pids(folder)) < 2:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=end, daemon=True).start()
behaviour.LocalEngine(2).run(behaviour.Linger(str(folder)), behaviour.shards(), behaviour.QUIET)
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    said = run_program(code, check=False, env={"TMPDIR": str(temporary)})  # it fails where a rank survives
    assert said.returncode == -signal.SIGKILL and len(pids(tmp_path)) == 2
    assert list(temporary.iterdir()) == []
