"""Measure: interleaved runs of several contenders, their medians, and how a result is told."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Result:
    """Compare Orca with one peer: the ratio says how many times as fast Orca is, the target the least it should be."""

    name: str
    ours: float
    peer: float
    peer_name: str
    unit: str = "s"
    target: float | None = None
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.peer / self.ours

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio >= self.target


def interleaved(contenders: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run every contender in turn, `repeats` times, after one turn that warms up; each returns its own seconds."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            seconds = run()
            if turn:
                times[name].append(seconds)
    return times


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}
