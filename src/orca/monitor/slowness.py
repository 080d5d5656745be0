"""Slowness: a rank that holds up the others without being stuck. Owns when a rank counts as slow.

Ranks wait for each other in every step, so all take as many steps. What differs is the time that each needs for its own
work (see Heartbeat.busy): the others spend the rest waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orca.monitor.heartbeat import Beat

TIMES = 2.0  # how many times as long as the others a slow rank needs
SHARE = 0.2  # of all time: what it must need more than they do, to matter
WINDOW = 3.0  # seconds between two looks
STEPS = 2  # of each rank between two looks, unless an epoch has ended
STRIKES = 3  # looks in a row at which a rank is slow before it is named


def slow_ranks(busy: Sequence[float], seconds: float) -> dict[int, float]:
    """Return the slow ones of all ranks, and how many times as long as the others (their median) each needs.

    Args:
        busy: The seconds that each rank worked.
        seconds: The seconds that passed meanwhile.
    """
    slow = {}
    for rank, own in enumerate(busy):
        others = [other for number, other in enumerate(busy) if number != rank]
        usual = median(others) if others else own
        if own >= TIMES * usual and own - usual >= SHARE * seconds:
            slow[rank] = own / max(usual, 1e-3)
    return slow


class Slowness:
    """The looks at all ranks of a run."""

    def __init__(self) -> None:
        self._start: tuple[float, list[Beat]] | None = None
        self._strikes: dict[int, int] = {}
        self._named: set[int] = set()

    def look(self, now: float, beats: Sequence[Beat]) -> dict[int, float]:
        """Return the ranks that turn out to be slow now, and how many times as long as the others they need.

        Args:
            now: Seconds.
            beats: The last beat of each rank, in rank order.
        """
        if self._start is None or any(first.epoch == 0 for first in self._start[1]):  # training has just begun
            self._start = now, list(beats)
            return {}
        began, first = self._start
        seconds, pairs = now - began, list(zip(first, beats, strict=True))
        if seconds < WINDOW or not all(_has_advanced(*pair) for pair in pairs):
            return {}
        self._start = now, list(beats)
        slow = slow_ranks([last.busy - first.busy for first, last in pairs], seconds)
        self._strikes = {rank: self._strikes.get(rank, 0) + 1 for rank in slow}
        fresh = {
            rank: times for rank, times in slow.items() if self._strikes[rank] >= STRIKES and rank not in self._named
        }
        self._named |= fresh.keys()
        return fresh


def _has_advanced(first: Beat, last: Beat) -> bool:
    return last.epoch != first.epoch or last.step - first.step >= STEPS
