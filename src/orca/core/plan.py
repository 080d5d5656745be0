"""Plan: the rows that each rank gives to each step. Owns the promise that uneven shards are exact.

Every rank computes the same plan from the same row counts, without talking: every step but the last has exactly
`batch_size` rows, ranks give in proportion to the rows they hold, finish together, and every row is used exactly once.

The i-th of the c rows of a rank sits at (2i + 1) / 2c on a line from 0 to 1. Step after step takes the next
`batch_size` rows from left to right over all ranks (Webster's divisor method, so no rank ever has to take rows back).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import pairwise


@dataclass(frozen=True)
class Plan:
    """The number of rows that each rank gives to each step of an epoch.

    >>> plan = Plan(counts=(5, 2, 0), batch_size=3)
    >>> [plan.shares(step) for step in range(plan.steps)]
    [(2, 1, 0), (2, 1, 0), (1, 0, 0)]
    """

    counts: tuple[int, ...]
    batch_size: int
    drop_last: bool = False

    @property
    def rows(self) -> int:
        """Return the rows one epoch uses, over all ranks."""
        total = sum(self.counts)
        return total - total % self.batch_size if self.drop_last else total

    @property
    def steps(self) -> int:
        """Return the number of steps in an epoch."""
        return -(-self.rows // self.batch_size)

    def rows_in(self, step: int) -> int:
        """Return the rows of one step, over all ranks."""
        return min((step + 1) * self.batch_size, self.rows) - step * self.batch_size

    def shares(self, step: int) -> tuple[int, ...]:
        """Return how many rows each rank gives to this step."""
        before = self._rows_given(step * self.batch_size)
        after = self._rows_given(min((step + 1) * self.batch_size, self.rows))
        return tuple(b - a for a, b in zip(before, after, strict=True))

    def slices(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield (start, stop, rows of the step over all ranks) of one rank's rows, step by step."""
        for step, (before, after) in enumerate(self.walk()):
            yield before[rank], after[rank], self.rows_in(step)

    def walk(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield how many rows each rank has given before and after each step."""
        yield from pairwise(self._rows_given(min(step * self.batch_size, self.rows)) for step in range(self.steps + 1))

    def _rows_given(self, position: int) -> Sequence[int]:
        """Return how many rows each rank has given when `position` rows were used in all."""
        total = sum(self.counts)
        if total == 0:
            return [0] * len(self.counts)
        rows = [(2 * c * position + total) // (2 * total) for c in self.counts]
        excess = sum(rows) - position  # rounding took some places too many, or too few
        if excess > 0:
            last_places = [(-self._place(r, n - 1), -r) for r, n in enumerate(rows) if n]
            heapify(last_places)
            for _ in range(excess):
                last = -last_places[0][1]
                rows[last] -= 1
                heapreplace(last_places, (-self._place(last, rows[last] - 1), -last))
        elif excess < 0:
            next_places = [(self._place(r, n), r) for r, n in enumerate(rows) if n < self.counts[r]]
            heapify(next_places)
            for _ in range(-excess):
                first = next_places[0][1]
                rows[first] += 1
                heapreplace(next_places, (self._place(first, rows[first]), first))
        return rows

    def _place(self, rank: int, row: int) -> Fraction:
        return Fraction(2 * row + 1, 2 * self.counts[rank])


def even_split(rows: int, parts: int) -> list[tuple[int, int]]:
    """Cut `rows` into contiguous ranges whose lengths differ by one at most.

    >>> even_split(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    base, extra = divmod(rows, parts)
    edges = [0]
    for part in range(parts):
        edges.append(edges[-1] + base + (part < extra))
    return list(pairwise(edges))
