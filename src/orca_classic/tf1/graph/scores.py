"""Scores: scalars of a graph over many batches and ranks. Owns how the values of batches become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from orca.core.metrics import Metric
from orca_classic.tf1.graph.program import Part, Reduction
from orca_classic.tf1.graph.terms import JOINT, SUM

_EXTREMES = {"Max": np.maximum, "Min": np.minimum}


class TensorMetric(Metric):
    """A metric that the graph itself computes: a mean over rows, or any number of totals over them; a sum stays one.

    Args:
        tensor: Its name in the program.
        sums: Whether it is a sum over rows.
    """

    def __init__(self, tensor: str, sums: bool = False) -> None:
        self.name = self.tensor = tensor
        self.sums = sums

    def tally(self, output: Any, target: Any) -> tuple[Any, ...]:
        """Return the sum, and its count."""
        return output.sum(), target.sum()

    def score(self, total: Any, count: Any) -> Any:
        """Return the mean, or the sum."""
        return total if self.sums else total / count


class PartTally:
    """A scalar over many batches: a mean by their rows, a sum, or for a joint one the totals it is computed from.

    Args:
        part: The scalar.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self.total, self.weight = 0.0, 0.0
        self.totals: dict[str, np.ndarray] = {}
        self.counts: dict[str, float] = {}

    def add(self, values: Mapping[str, Any], rows: int) -> None:
        """Count a batch of at least one row."""
        if self.part.kind == JOINT:
            for reduction in self.part.reductions:
                count = float(values[reduction.count]) if reduction.count else 1.0
                if count:  # the mean of nothing is no number
                    self._count(reduction, np.asarray(values[reduction.name], np.float64), count)
            return
        weight = 1.0 if self.part.kind == SUM else float(rows)
        self.total += float(np.sum(values[self.part.name])) * weight
        self.weight += weight

    def _count(self, reduction: Reduction, value: np.ndarray, count: float) -> None:
        name, before = reduction.name, self.totals.get(reduction.name)
        self.counts[name] = self.counts.get(name, 0.0) + count
        value = value * count if reduction.kind == "Mean" else value
        if before is None:
            self.totals[name] = value
        elif reduction.kind in _EXTREMES:
            self.totals[name] = _EXTREMES[reduction.kind](before, value)
        elif reduction.kind == "Shape":
            self.totals[name] = np.where(np.arange(value.size) == reduction.rows, before + value, value)
        else:
            self.totals[name] = before + value

    def merge(self, states: Iterable[tuple[dict[str, np.ndarray], dict[str, float]]]) -> None:
        """Take over the totals of all ranks, those of this one among them."""
        self.totals, self.counts = {}, {}
        for totals, counts in states:
            for reduction in self.part.reductions:
                name = reduction.name
                if name in totals:
                    value = totals[name] / counts[name] if reduction.kind == "Mean" else totals[name]
                    self._count(reduction, value, counts[name])

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """Return the totals by the tensors that they are fed to; none that no batch has a value for."""
        feeds: dict[str, np.ndarray] = {}
        for reduction in self.part.reductions:
            if reduction.name in self.totals:
                total = self.totals[reduction.name]
                total = total / self.counts[reduction.name] if reduction.kind == "Mean" else total
                feeds |= {name: total for name in (reduction.name, reduction.total) if name}
        return feeds

    @property
    def value(self) -> float:
        """Return the mean, or the sum."""
        return self.total if self.part.kind == SUM else self.total / self.weight


def undivided(
    parts: Iterable[Part],
    fetch: Callable[[list[str], slice], list[Any]],
    value: Callable[[Part, dict[str, Any]], float],
    rows: int,
) -> list[str]:
    """Return the names of the scalars whose value for a batch is not made of those of two pieces of it.

    Args:
        parts: The scalars.
        fetch: Returns the values of tensors for rows of the batch.
        value: Returns the value of a scalar for the batch, some tensors being fed.
        rows: The rows of the batch.
    """
    cut, wrong = max(2, rows // 3), []  # a graph may squeeze a single row away
    for part in parts:
        tally = PartTally(part)
        for piece in (slice(0, cut), slice(cut, rows)):
            fetched = fetch(part.fetches, piece)
            tally.add(dict(zip(part.fetches, fetched, strict=True)), piece.stop - piece.start)
        made = value(part, tally.feeds) if part.kind == JOINT else tally.value
        whole, turned = value(part, {}), float(np.sum(fetch([part.name], slice(None, None, -1))[0]))
        noise = abs(whole - turned) if np.isfinite(whole - turned) else 0.0
        if not np.isclose(made, whole, rtol=1e-4, atol=1e-6 + 10 * noise, equal_nan=True):
            wrong.append(part.name)
    return wrong
