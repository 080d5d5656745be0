"""Logs: the dict that a Keras step returns. Owns logs as plain values, and the logs of an epoch over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from orca.core.source import Batch
from orca.core.world import World


class LastLogs:
    """The logs of the last step on this rank: Keras' logs of an epoch, where they are not the metrics' own."""

    def __init__(self) -> None:
        self.logs: dict[str, Any] = {}
        self.rows = 0

    def hear(self, logs: Any, batch: Batch) -> None:
        """Take the logs of a step; a step without rows tells no more than the names."""
        self.rows = batch.rows
        if isinstance(logs, dict) and (batch.rows or not self.logs):
            self.logs = logs

    def over_ranks(self, world: World, mine: dict[str, Any], overall: dict[str, Any]) -> dict[str, Any]:
        """Return the logs over all ranks, given the metrics over this rank's rows and over all.

        An entry that equals a metric is that metric; any other number is the mean over the rows of the last step. A
        value without a mean is that of the first rank that has rows.
        """
        if not self.logs or self.logs.keys() == mine.keys():
            return overall
        entries = plain_logs(self.logs)
        names = {name: [m for m in (name, *mine) if m in mine and _close(mine[m], entries[name])] for name in entries}
        ranks = world.all_gather((self.rows, entries, names))
        busy = [rank for rank in ranks if rank[0]]
        weights = [rank[0] for rank in busy]
        logs = {}
        for name in busy[0][1]:
            if all(name in rank[1] for rank in busy):
                metrics = [m for m in busy[0][2][name] if m in overall and all(m in rank[2][name] for rank in busy)]
                logs[name] = overall[metrics[0]] if metrics else _mean([rank[1][name] for rank in busy], weights)
        return logs


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs as numbers, texts and lists of them, with the entries of dicts in them; other kinds are left out."""
    plain: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            plain |= plain_logs(value)
        else:
            with suppress(TypeError, ValueError):
                # TensorFlow's own conversion to an array fails for one bfloat16.
                array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
                plain[name] = _plain(array.tolist())
    return plain


def _close(one: Any, other: Any) -> bool:
    if np.shape(one) != np.shape(other) or not (_is_numeric(one) and _is_numeric(other)):
        return False
    return bool(np.allclose(one, other, rtol=1e-5, atol=0, equal_nan=True))


def _mean(values: list[Any], weights: list[int]) -> Any:
    """Return the weighted mean of numbers, or of lists of them; the first where there is no mean."""
    if any(not _is_numeric(value) or np.shape(value) != np.shape(values[0]) for value in values):
        return values[0]
    return np.average(values, axis=0, weights=weights).tolist()


def _is_numeric(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):  # as TensorFlow has texts
        return value.decode(errors="replace")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is no plain data")
