"""News: what takes long on the way to a cluster, said line by line on standard error. Owns the pace of the lines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 10.0  # seconds between two lines about the same thing


def say(text: str) -> None:
    """Write a line to standard error, where there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"[orca] {text}\n")
        sys.stderr.flush()


@contextmanager
def telling(what: str, more: Callable[[], str] = str) -> Iterator[None]:
    """Say what is done while the block runs: now, and every ten seconds how long it has taken.

    Args:
        what: What is done.
        more: Gives words about how far it is; "" where nothing is known.
    """
    over, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(EVERY):
            words = more()
            say(f"{what}: {time.monotonic() - began:.0f} s{', ' + words if words else ''}")

    say(what)
    thread = threading.Thread(target=tell, name="orca-news", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def human(size: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
