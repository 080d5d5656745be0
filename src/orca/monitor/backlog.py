"""Backlog: how much output waits to be read. Owns when lines are dropped, and how long the end waits for the rest."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread


class Backlog:
    """A count of the output that waits to be read, and of the lines turned away because too much waits.

    One thread (or one at a time) adds, another one takes. Where lines were turned away, half of the backlog must be
    read before there is room again: a gap is reported once, not between any two lines.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inflow = self.outflow = self.drops = 0

    def has_room(self) -> bool:
        """Say whether there is room for a line; count one that is turned away."""
        if self.inflow - self.outflow <= (self.limit // 2 if self.drops else self.limit):
            return True
        self.drops += 1
        return False

    def gap(self) -> int:
        """Return how many lines were turned away since the last call."""
        count, self.drops = self.drops, 0
        return count

    def outlast(self, wait: Callable[[float], object], seconds: float) -> None:
        """Wait by `wait(seconds)` until it says yes, or nothing was taken in that time."""
        before = -1
        while before != self.outflow:
            before = self.outflow
            if wait(seconds):
                break


def ends_within(thread: Thread, seconds: float) -> bool:
    """Wait so many seconds for a thread to end; say whether it has."""
    thread.join(seconds)
    return not thread.is_alive()
