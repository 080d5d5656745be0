from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
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
from orca.monitor.heartbeat import Pulse

pytestmark = pytest.mark.skipif(not forkserver.AVAILABLE, reason="ranks are forked on Linux alone")


@dataclass(frozen=True)
class Look:
    """A look at what a rank begins with."""

    def __call__(self, world: World, rows: Any, pulse: Pulse) -> dict[str, Any]:
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

    def __call__(self, world: World, rows: Any, pulse: Pulse) -> str:
        import ours_to_edit  # type: ignore[import-not-found]

        return str(ours_to_edit.WORD)


@dataclass(frozen=True)
class Wait:
    """A rank that names its server and waits for a file."""

    folder: str

    def __call__(self, world: World, rows: Any, pulse: Pulse) -> str:
        Path(self.folder, "server").write_text(str(os.getppid()))
        while not Path(self.folder, "go").exists():
            time.sleep(0.02)
        return "done"


def servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "orca.engines.forkserver" in child.cmdline()]


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
    assert all(rank["interrupt"] is signal.default_int_handler for rank in first)


def test_ranks_write_where_the_driver_writes_now(capfd: pytest.CaptureFixture[str]) -> None:
    LocalEngine(1).run(Look(), shards(), QUIET)
    assert "rank 0 looks" in capfd.readouterr().out
    LocalEngine(1).run(Look(), shards(), QUIET)
    assert "rank 0 looks" in capfd.readouterr().out


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
    with pytest.raises(WorkerLost, match="rank 0 on 127.0.0.1 was lost: its process ended with exit code -9"):
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
