"""Trace: an epoch step by step. Owns the record of each step, and the epoch of a fit that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Trace:
    """An epoch, step by step.

    An epoch that an interrupted fit had begun has only the steps after the interruption.

    Attributes:
        losses: The loss of every step over all ranks; empty where the framework does not tell.
        rates: The learning rate at every step; empty where the framework does not tell.
        seconds: How long these steps took, validation apart.
        ended: When they ended, in seconds since 1970.
    """

    losses: np.ndarray
    rates: np.ndarray
    seconds: float
    ended: float


Epochs = Sequence[tuple[dict[str, Any], Trace | None]]  # the line of each epoch, with its trace


def with_traces(lines: Sequence[dict[str, Any]], traces: Sequence[Trace | None]) -> Epochs:
    """Return each line of a fit with its trace.

    There may be fewer traces than lines: they are those of the last epochs. The epochs before an interruption have
    lines alone.
    """
    gap = len(lines) - len(traces)
    if gap < 0:
        raise ValueError(f"a fit has a trace an epoch at most; got {len(traces)} traces for {len(lines)} epochs")
    return list(zip(lines, [None] * gap + list(traces), strict=True))


def steps_of(line: dict[str, Any], trace: Trace | None) -> int:
    """Return how many steps an epoch had."""
    return int(line.get("batch_count") or (len(trace.losses) if trace else 0))


def rows_a_second(line: dict[str, Any], trace: Trace | None) -> float | None:
    """Return how many rows a second an epoch trained, all ranks together; None where it is not known."""
    rows, steps = line.get("num_samples"), steps_of(line, trace)
    if trace is None or rows is None or not trace.seconds > 0:
        return None
    share = len(trace.losses) / steps if steps and 0 < len(trace.losses) < steps else 1.0
    return float(rows) * share / trace.seconds
