"""Statistics: lines of all workers as one. Owns process_stats, which programs of BigDL Orca call themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from orca.errors import ArgumentError

__all__ = ["process_stats"]

_TOTALS = ("num_samples", "val_num_samples")


def process_stats(worker_stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of all workers as one line; theirs come from `reduce_results=False`.

    Rows are added up. Numbers and tensors become means that are weighted with the workers' rows: BigDL's own
    were not, and so wrong for uneven shards. Anything else is the first worker's.

    Raises:
        ArgumentError: There are no statistics.

    Example:
        >>> process_stats([{"num_samples": 3, "train_loss": 1.0}, {"num_samples": 1, "train_loss": 2.0}])
        {'num_samples': 4, 'train_loss': 1.25}
    """
    if not worker_stats:
        raise ArgumentError("process_stats needs the statistics of at least one worker; got none. Pass those of fit.")
    return {key: _together(key, worker_stats) for key in worker_stats[0]}


def _together(key: str, worker_stats: Sequence[Mapping[str, Any]]) -> Any:
    values = [stats.get(key) for stats in worker_stats]
    first = values[0]
    if key in _TOTALS:
        return sum(value or 0 for value in values)
    if (not isinstance(first, Real) and not hasattr(first, "detach")) or isinstance(first, bool):
        return first
    if isinstance(first, int) and all(value == first for value in values):
        return first  # a count that all workers share, as the epoch
    rows = [stats.get("val_num_samples" if key.startswith("val_") else "num_samples", 1) for stats in worker_stats]
    # A worker without rows has nan, or nothing.
    parts = [(value, weight) for value, weight in zip(values, rows, strict=True) if weight and value is not None]
    mass = sum(weight for _, weight in parts)
    return sum(value * weight for value, weight in parts) / mass if mass else first
