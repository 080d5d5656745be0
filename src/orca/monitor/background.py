"""Background: work in a thread of its own beside a block of code. Owns that the thread ends with the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def beside(work: Callable[[Event], object], name: str, patience: float | None = None) -> Iterator[None]:
    """Run `work(over)` in the background while the block runs; `over` is set when the block ends.

    Args:
        work: Looks at `over`, or waits for it, and returns when it is set.
        name: The name of the thread.
        patience: Seconds to wait for the thread at the end; None waits until it has returned.
    """
    over = Event()
    thread = Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)
