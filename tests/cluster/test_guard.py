from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from orca.cluster import guard


def started(folder: Path, *command: str) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """Start a command under a guard and return both processes."""
    process = guard.start(list(command), dict(os.environ), str(folder / "log"), str(folder))
    deadline = time.monotonic() + 10
    while not (children := psutil.Process(process.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return process, children[0]


def test_end_ends_the_command_and_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "daemon"
    folder.mkdir()
    process, child = started(folder, "sleep", "100")
    guard.end(process)
    assert not child.is_running()
    assert not folder.exists()


def test_a_command_deaf_to_terminate_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"
    )
    process, child = started(tmp_path, sys.executable, "-c", deaf)
    deadline = time.monotonic() + 10
    while "deaf" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    guard.end(process)
    assert not child.is_running()


def test_guard_ends_with_its_command_and_keeps_the_log(tmp_path: Path) -> None:
    process = guard.start(["sh", "-c", "echo said; exit 7"], dict(os.environ), str(tmp_path / "log"), str(tmp_path))
    assert process.wait(10) == 7
    assert (tmp_path / "log").read_text() == "said\n"
    guard.end(process)


def test_command_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    folder = tmp_path / "daemon"
    folder.mkdir()
    code = (
        "import os, sys, time; from orca.cluster import guard\n"
        "p = guard.start(['sleep', '100'], dict(os.environ), sys.argv[1] + '/log', sys.argv[1])\n"
        "print(p.pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    watching = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 10
    while not (children := watching.children()) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs([watching, *children], timeout=10)
    assert not alive and not folder.exists()


def test_a_shared_folder_goes_with_the_last_command(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    first, _ = started(folder, "sleep", "100")
    second, _ = started(folder, "sleep", "100")
    guard.end(first)
    assert folder.exists()
    guard.end(second)
    assert not folder.exists()


def test_a_folder_that_others_put_there_is_refused(tmp_path: Path) -> None:
    own, planted, target = tmp_path / "own", tmp_path / "planted", tmp_path / "target"
    assert guard.claim(str(own)) == "" == guard.claim(str(own)) and own.stat().st_mode & 0o777 == 0o700
    target.mkdir(mode=0o700)
    planted.symlink_to(target)
    assert "someone else has put it there" in guard.claim(str(planted))
    own.chmod(0o777)  # as Ray does
    assert guard.claim(str(own)) == ""
    if os.geteuid() == 0:
        own.chmod(0o700)
        os.chown(own, 12345, 12345)
        assert "someone else" in guard.claim(str(own))
