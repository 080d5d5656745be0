from __future__ import annotations

import builtins
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from engines.test_local import QUIET, shards
from orca.core.world import World
from orca.engines import forkserver
from orca.engines.local import LocalEngine
from orca.errors import WorkerLost
from orca.monitor.heartbeat import Heartbeat
from programs import run_program

pytestmark = pytest.mark.skipif(not forkserver.AVAILABLE, reason="ranks are forked on Linux alone")


@dataclass(frozen=True)
class Look:
    """A look at what a rank begins with."""

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> dict[str, Any]:
        print(f"rank {world.rank} looks")
        return {
            "server": os.getppid(),
            "variable": os.environ.get("ORCA_TEST_VARIABLE"),
            "folder": os.getcwd(),
            "files": len(os.listdir("/proc/self/fd")),
            "draws": (random.random(), float(np.random.rand())),
            "interrupt": signal.getsignal(signal.SIGINT),
        }


@dataclass(frozen=True)
class Ask:
    """What a module of the user's own says."""

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> str:
        import ours_to_edit  # type: ignore[import-not-found]

        return str(ours_to_edit.WORD)


@dataclass(frozen=True)
class Wait:
    """A rank that names its server and waits for a file."""

    folder: str

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> str:
        Path(self.folder, "server").write_text(str(os.getppid()))
        while not Path(self.folder, "go").exists():
            time.sleep(0.02)
        return "done"


@dataclass(frozen=True)
class Ended:
    """A rank that ends at once."""

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> str:
        return "done"


@dataclass(frozen=True)
class Shout:
    """A rank that writes past Python."""

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> None:
        os.write(1, b"shout")


@dataclass(frozen=True)
class LeaveOpen:
    """A rank that leaves a pool of threads idle and a file unwritten; both stay alive."""

    folder: str

    def __call__(self, world: World, rows: Any, heartbeat: Heartbeat) -> None:
        pool, file = ThreadPoolExecutor(1), open(Path(self.folder, "file"), "w")  # noqa: SIM115
        pool.submit(file.write, "all of it").result()
        builtins.left_open = pool, file  # type: ignore[attr-defined]


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "orca.engines.forkserver" in " ".join(child.cmdline())]


def server_in(folder: Path) -> int:
    while not (folder / "server").exists() or not (folder / "server").read_text():
        time.sleep(0.02)
    return int((folder / "server").read_text())


def test_ranks_begin_as_the_driver_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LocalEngine(2).run(Look(), shards(), QUIET)
    monkeypatch.chdir(tmp_path)
    second = LocalEngine(2).run(Look(), shards(), QUIET)
    assert len({rank["server"] for rank in first + second}) == 1, "one server for all, loaded once"
    assert [rank["folder"] for rank in second] == [str(tmp_path)] * 2
    assert len({rank["draws"] for rank in first + second}) == 4, "each has random numbers of its own"
    assert first[0]["files"] == second[0]["files"], "nothing of other ranks stays open"
    assert not any(rank["interrupt"] is signal.default_int_handler for rank in first), "Ctrl-C is the driver's"


def test_ranks_write_where_the_driver_writes_now(capfd: pytest.CaptureFixture[str]) -> None:
    LocalEngine(1).run(Look(), shards(), QUIET)
    assert "rank 0 looks" in capfd.readouterr().out
    LocalEngine(1).run(Look(), shards(), QUIET)
    assert "rank 0 looks" in capfd.readouterr().out


def test_variables_that_ray_and_spark_set_leave_the_server_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    [before] = LocalEngine(1).run(Look(), shards(), QUIET)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONBREAKPOINT", "ray.util.rpdb._driver_set_trace")
    [after] = LocalEngine(1).run(Look(), shards(), QUIET)
    assert after["server"] == before["server"]


@pytest.mark.full
def test_another_environment_has_a_server_of_its_own_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for value in ["one", "two", "three", "three"]:
        monkeypatch.setenv("ORCA_TEST_VARIABLE", value)
        [rank] = LocalEngine(1).run(Look(), shards(), QUIET)
        seen.append((rank["variable"], rank["server"]))
    assert [value for value, _ in seen] == ["one", "two", "three", "three"]
    assert len({server for _, server in seen}) == 3 and seen[2] == seen[3]
    deadline = time.monotonic() + 30
    while len(servers()) > forkserver.KEPT and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(servers()) <= forkserver.KEPT


def test_a_module_that_the_user_edits_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # two versions within a second look alike to the cache
    monkeypatch.syspath_prepend(tmp_path)
    for word in ["before", "after"]:
        (tmp_path / "ours_to_edit.py").write_text(f"WORD = {word!r}")
        assert LocalEngine(1).run(Ask(), shards(), QUIET) == [word]


def test_a_server_that_dies_is_a_lost_rank_and_the_next_run_has_another(tmp_path: Path) -> None:
    def end() -> None:
        os.kill(server_in(tmp_path), signal.SIGKILL)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(WorkerLost, match="rank 0 on .* was lost: its process was ended by SIGKILL"):
        LocalEngine(1).run(Wait(str(tmp_path)), shards(), QUIET)
    thread.join()
    [rank] = LocalEngine(1).run(Look(), shards(), QUIET)
    assert rank["server"] != server_in(tmp_path)


@pytest.mark.full
def test_a_server_that_is_no_longer_kept_lets_its_ranks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = []
    run = LocalEngine(1).run
    thread = threading.Thread(target=lambda: answers.extend(run(Wait(str(tmp_path)), shards(), QUIET)))
    thread.start()
    first = server_in(tmp_path)
    for value in range(forkserver.KEPT):
        monkeypatch.setenv("ORCA_TEST_VARIABLE", f"later {value}")
        LocalEngine(1).run(Look(), shards(), QUIET)
    assert psutil.pid_exists(first)
    (tmp_path / "go").touch()
    thread.join()
    assert answers == ["done"]


def test_a_rank_ends_as_a_program_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    LocalEngine(1).run(LeaveOpen(str(tmp_path)), shards(), QUIET)
    assert (tmp_path / "file").read_text() == "all of it"
    records = [record for record in caplog.records if record.name != "orca.monitor.waiting"]  # a slow start is no fault
    assert records == [], "an idle pool of threads does not keep a rank"


def test_ranks_start_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if os.path.isabs(entry)])
    LocalEngine(1).run(Ended(), shards(), QUIET)  # a server; no torch can be loaded there
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert LocalEngine(1).run(Ended(), shards(), QUIET) == ["done"]


def test_modules_come_from_where_the_driver_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "selectors.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCA_TEST_VARIABLE", "a server of its own")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if os.path.isabs(entry)])
    later = tmp_path / "later"
    monkeypatch.syspath_prepend(later)  # not there yet
    assert LocalEngine(1).run(Ended(), shards(), QUIET) == ["done"]
    later.mkdir()
    (later / "ours_to_edit.py").write_text("WORD = 'late'")
    assert LocalEngine(1).run(Ask(), shards(), QUIET) == ["late"]


def test_a_file_with_the_number_of_a_closed_output_is_not_written_to(tmp_path: Path) -> None:
    file, null = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY), os.dup(1)
    try:
        os.dup2(file, 1, inheritable=False)  # as a file that is opened when 1 is closed
        LocalEngine(1).run(Shout(), shards(), QUIET)
        assert (tmp_path / "file").read_text() == ""
        os.close(1)
        LocalEngine(1).run(Shout(), shards(), QUIET)
    finally:
        os.dup2(null, 1)
        os.close(null)
        os.close(file)


def test_a_server_is_not_retired_before_it_knows_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[BaseException] = []
    results: list[Any] = []

    def start(number: int) -> None:
        environment = {**os.environ, "ORCA_TEST_VARIABLE": str(number)}
        try:
            for _ in range(20):
                with open(os.devnull) as nothing:
                    files = [nothing.fileno()] * 3
                    start = forkserver.Start((0,), environment, tuple(sys.path), ())
                    results.append(forkserver.start_rank(start, files))
        except BaseException as error:
            failures.append(error)

    monkeypatch.setattr(forkserver, "KEPT", 1)
    threads = [threading.Thread(target=start, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    forkserver.end_servers()
    assert failures == [] and len(results) == 40
    assert all(rank.wait(60) for rank in results)


def test_servers_end_with_the_program() -> None:
    code = """
from types import SimpleNamespace
from orca.engines import forkserver

server = SimpleNamespace(alive=True, retire=lambda: print("retired"), end=lambda: print("ended"))
forkserver._servers[frozenset()] = server
"""
    program = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert program.stdout.split() == ["retired", "ended"]


@pytest.mark.full
def test_a_driver_ends_with_a_fit_in_a_daemon_thread_and_a_fork_of_its_own(tmp_path: Path) -> None:
    """And what it starts ends with it: run_program fails where a process is left."""
    code = f"""
import os, threading, time
from pathlib import Path
from engines.test_forkserver import LocalEngine, QUIET, Wait, server_in, shards

folder = Path({str(tmp_path)!r})
threading.Thread(target=LocalEngine(1).run, args=(Wait(str(folder)), shards(), QUIET), daemon=True).start()
server = server_in(folder)
if not os.fork():
    time.sleep(3)
    (folder / "seen").write_text(str(os.path.exists(f"/proc/{{server}}")))
    os._exit(0)
"""
    run_program(code)
    assert (tmp_path / "seen").read_text() == "False"


def test_a_driver_that_ignores_interrupts_has_ranks_that_do(tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from engines.test_forkserver import LocalEngine, Look, QUIET, shards
[rank] = LocalEngine(1).run(Look(), shards(), QUIET)
Path({str(tmp_path)!r}, "seen").write_text(str(rank["interrupt"]))
"""
    command = ["sh", "-c", 'trap \'\' INT; exec "$0" -c "$1"', sys.executable, code]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "seen").read_text() == str(int(signal.SIG_IGN))
