"""Programs: a test's code as a program of its own, for what must not happen in pytest's process (another SparkContext,
a dying driver). Owns how such a program is started, how its output is shown, how what it leaves running is ended, and
how it is read from a page of docs/."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

GRACE = 15.0  # seconds that processes get to end by themselves after their program


def run_program(
    code: str,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 100,
    check: bool = True,
    args: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a program with this interpreter in an empty folder and return its status, stdout and stderr.

    Everything it said is printed, so pytest shows it when the test fails.

    Args:
        env: Variables on top of this process's; None takes one away.
        timeout: Seconds after which the program and all it started are killed.
        check: Whether a status other than 0 is an error.

    Raises:
        AssertionError: It failed (and check is on), took too long, or left processes running.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="program-") as folder:
        file, out, err = Path(folder, "program.py"), Path(folder, "stdout"), Path(folder, "stderr")
        file.write_text(textwrap.dedent(code))
        # Files, not pipes: a survivor holding a pipe would keep us waiting for its end.
        with out.open("w") as stdout, err.open("w") as stderr:
            work = Path(folder, "work")
            work.mkdir()
            process = subprocess.Popen(
                [sys.executable, str(file), *args],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=work,
                env=_environment({**(env or {}), "ORCA_TEST_PROGRAM": mark}),
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                left = end_processes("ORCA_TEST_PROGRAM", mark, GRACE if process.returncode is not None else 0)
                process.wait()
        said = subprocess.CompletedProcess(process.args, process.returncode, _text(out), _text(err))
    print(f"--- stdout\n{said.stdout}\n--- stderr\n{said.stderr}\n--- status {status}")
    if status is None:
        raise AssertionError(f"the program did not end within {timeout} s")
    if check and status:
        raise AssertionError(f"the program ended with status {status}:\n{said.stderr[-3000:]}")
    if left:
        raise AssertionError(f"the program left processes running: {left}")
    return said


def in_rank(work: Callable[[], Any]) -> Any:
    """Return the result of a call in a rank that forms no world: a process of its own that soon begins."""
    from orca.core.engine import Settings
    from orca.core.source import Shards
    from orca.engines.local import LocalEngine

    job: Any = SimpleNamespace(run_on_peer=lambda peer, patience, heartbeat: work())
    shards = Shards(lambda items, folder: dict(items), lambda: [lambda: iter(())])
    return LocalEngine(1).run(job, shards, Settings(progress=False))[0]


def program_of(page: Path) -> str:
    """Return the Python of a Markdown page as one program."""
    blocks = blocks_of(page)
    if not blocks:
        raise ValueError(f"{page} holds no block of Python.")
    return "".join(blocks)


def blocks_of(page: Path, language: str = "python") -> list[str]:
    """Return the blocks of a Markdown page in a language."""
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def end_processes(variable: str, value: str, grace: float, spared: Sequence[int] = ()) -> list[str]:
    """Wait for the processes started with this environment variable to end, kill the rest and tell their names."""
    deadline = time.monotonic() + grace
    while (alive := _marked(variable, value, spared)) and time.monotonic() < deadline:
        time.sleep(0.1)
    names = [_name(process) for process in alive]
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
    return names


def _marked(variable: str, value: str, spared: Sequence[int]) -> list[psutil.Process]:
    """Return the living processes whose environment carries the mark: descendants, also those that were orphaned."""
    matches = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            marked = process.environ().get(variable) == value
            if marked and process.pid not in spared and process.status() != psutil.STATUS_ZOMBIE:
                matches.append(process)
    return matches


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({' '.join(process.cmdline())[:200]})"
    return str(process.pid)


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _text(file: Path) -> str:
    return file.read_text(errors="replace")
