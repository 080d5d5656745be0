"""News: lines on standard error about slow steps on the way to a cluster. Owns waiting for a cluster."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

from orca.monitor.background import beside

T = TypeVar("T")
KNOCK = 5.0  # seconds for a service to take a connection
EVERY = 10.0  # seconds between two lines about the same thing


def say(text: str) -> None:
    """Write a line to standard error, where there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"[orca] {text}\n")
        sys.stderr.flush()


@contextmanager
def telling(what: str, more: Callable[[], str] = str) -> Iterator[None]:
    """Write a line about a slow step now, and every ten seconds how long it has taken.

    Args:
        what: The step.
        more: Tells how far it is; "" where that is not known.
    """
    start = time.monotonic()

    def tell(over: Event) -> None:
        while not over.wait(EVERY):
            words = more()
            say(f"{what}: {time.monotonic() - start:.0f} s{', ' + words if words else ''}")

    say(what)
    with beside(tell, "orca-news"):
        yield


def wait_until(look: Callable[[], T], limit: float | None, every: float = 0.5) -> T:
    """Look again and again until the answer is true, or the time is over; return the last answer.

    Args:
        look: Looks for the thing that is waited for; it may raise to end the wait, or log a line about it.
        limit: Seconds; None waits on.
        every: Seconds between two looks.
    """
    end = float("inf") if limit is None else time.monotonic() + limit
    while not (answer := look()) and time.monotonic() < end:
        time.sleep(every)
    return answer


def knock(addresses: Iterable[str], seconds: float = KNOCK) -> tuple[str, list[str]]:
    """Look which of some services, at host:port, takes a connection.

    Returns:
        This machine's address towards the first that does, "" for none; and the errors of those before it.
    """
    refusals: list[str] = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as door:
                return str(door.getsockname()[0]), refusals
        except (OSError, ValueError) as error:
            refusals.append(f"{address} ({error})")
    return "", refusals


def human(size: float) -> str:
    """Return a number of bytes in words."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
