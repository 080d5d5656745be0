"""Leaks: a check that a block of code leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from orca.engines import forkserver


@contextmanager
def leaks(grace: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves child processes, threads, sockets or orca-* temporary folders behind.

    Args:
        grace: Seconds in which they may still go away.

    Raises:
        AssertionError: Naming what is left.
    """
    before, kept = _held(), forkserver.servers()
    yield
    forkserver.end_servers(survivors=kept)  # the block's own would be kept for the next call
    deadline = time.monotonic() + grace
    while leftovers := {what: name for what, name in _held().items() if what not in before}:
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {', '.join(leftovers.values())}. Close it, or use a context manager.")
        gc.collect()
        time.sleep(0.05)


def _held() -> dict[tuple[str, Any], str]:
    """Return the processes, threads, sockets and folders of this process, with a name for each."""
    process, tracker = psutil.Process(), sys.modules.get("multiprocessing.resource_tracker")
    lasting = getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)  # lives as long as this process
    things = {("process", child.pid): f"process {child.pid}" for child in process.children(recursive=True)}
    things.pop(("process", lasting), None)
    things |= {("thread", thread): f"thread {thread.name!r}" for thread in threading.enumerate()}
    sockets = process.net_connections("all")
    things |= {("socket", (c.fd, c.laddr, c.raddr)): f"socket {c.laddr or c.fd}" for c in sockets}
    folders = [path for path in Path(tempfile.gettempdir()).glob("orca-*") if not path.name.startswith("orca-java-")]
    folders += Path(tempfile.gettempdir()).glob("__autograph_generated_file*")  # of ranks with TensorFlow
    return things | {("folder", path): f"folder {path}" for path in folders}
