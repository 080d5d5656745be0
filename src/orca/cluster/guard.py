"""Guard: a command that lives no longer than its parent. Owns how a daemon of ours ends when the driver does.

Run as a script, in a process of its own: it starts the command, and ends it when its standard input, a pipe that the
parent holds, is closed: by the parent, or by the system when the parent was killed. The folder of the daemon goes with
it then, or with the last of those that share it. Imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading

PATIENCE = 5.0


def start(command: list[str], env: dict[str, str], log: str, folder: str) -> subprocess.Popen[bytes]:
    """Start a command under a guard; its output goes to the file `log`. End it with `end`, which removes `folder`."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, folder, *command],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # Ctrl-C in a notebook or terminal is for the program, not for its daemons.
        )


def end(guard: subprocess.Popen[bytes]) -> None:
    """Close the guard's pipe and wait until it and its command are gone."""
    if guard.stdin is not None:
        guard.stdin.close()
    try:
        guard.wait(2 * PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()


def claim(folder: str) -> str:
    """Make the private folder of a daemon; return why it cannot be used if another has put it there.

    Ray lets everybody write to its folder, which nodes in two containers of one machine share.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
        return ""
    return (
        f"{folder} on {socket.gethostname()} is not a folder of user {os.geteuid()}: someone else has put it there. "
        "Start the program again, or name another place with extra_params={'temp-dir': ...}."
    )


def main() -> int:
    """Run the command in argv until it ends or the parent goes; return its exit status."""
    folder, *command = sys.argv[1:]
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    alone = threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        alone.set()
        child.terminate()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    if alone.is_set():
        with contextlib.suppress(OSError):  # another one uses it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
