"""Resident: a rank's rows on the device that trains on them. Owns which rows may stay there, and how to gather them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch

from orca.core.feed import Feed, SpoolRows, StreamFeed, unweigh
from orca.core.source import Batch
from orca.errors import ArgumentError
from orca.frameworks.torch.tensors import Place
from orca.rows.tree import flatten

_BLOCK = 64 << 20  # bytes of rows that are moved, or gathered, at once
_PART = 2  # of the free memory, one part in so many may be filled

logger = logging.getLogger(__name__)


class ResidentRows:
    """Rows in the memory of a device, taken by their number as from a spool.

    Args:
        leaves: An array for each column: tensors on the device, and weights, which are needed on the CPU.
        place: The device.
        row_bytes: The size of a row.
    """

    def __init__(self, leaves: list[Any], place: Place, row_bytes: float) -> None:
        self.leaves, self.place, self.row_bytes = leaves, place, row_bytes
        self.rows = len(leaves[0])

    def take(self, index: np.ndarray) -> list[Any]:
        """Return the rows of these numbers, in this order."""
        numbers = self.place.targets(index)
        return [leaf[numbers] if isinstance(leaf, torch.Tensor) else leaf[index] for leaf in self.leaves]

    def close(self) -> None:
        """Free the memory."""
        self.leaves = []


def keep(feed: Feed | StreamFeed, place: Place, count_rows: Callable[[Batch], Batch]) -> bool:
    """Let a feed read its rows from the device from now on; say whether they fit there.

    Args:
        feed: The feed of a rank's own rows.
        place: The device that they are trained on.
        count_rows: Adds the mass of each row to a batch, which is done once, before labels leave the CPU.

    Raises:
        ArgumentError: The data is read by code of the user's, anew in every epoch.
    """
    if not isinstance(feed, Feed) or not isinstance(feed.rows, SpoolRows):
        raise ArgumentError(
            "device_cache keeps rows of arrays, DataFrames and shards, but this data is read anew in every epoch by "
            "code of its own (a loader, a dataset, a creator). Pass arrays, or leave device_cache out.",
            code="data-not-cachable",
        )
    rows = feed.rows
    if rows.spool is None:
        return True
    size, free = int(rows.count * rows.spool.row_bytes), _free_bytes(place.device, feed.world.local_size)
    if size * _PART > free:
        logger.warning(
            "device_cache: %d rows take %d MB, more than half of the %d MB that are free for them on %s. They are read "
            "from the disk in every epoch.",
            *(rows.count, size >> 20, free >> 20, place.device),
        )
        return False
    leaves, masses = _moved(rows, place, count_rows, feed.weighted)
    feed.read_from(SpoolRows(ResidentRows(leaves, place, rows.spool.row_bytes), rows.structure, _BLOCK), masses)
    return True


def _free_bytes(device: torch.device, ranks: int) -> int:
    """Return the free memory of a GPU, which is one rank's own, or this rank's share of the machine's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available // ranks


def _moved(
    rows: SpoolRows, place: Place, count_rows: Callable[[Batch], Batch], weighted: bool
) -> tuple[list[Any], np.ndarray | None]:
    """Return the columns of all rows on the device, block by block, and the mass of each row where rows differ."""
    step = max(1, int(_BLOCK // rows.spool.row_bytes)) if rows.spool else 1
    starts = range(0, rows.count, step)
    blocks = rows.read(np.arange(start, min(start + step, rows.count)) for start in starts)
    columns: list[Any] = []
    masses: list[np.ndarray] = []
    for start, (x, labels) in zip(starts, blocks, strict=True):
        y, weights = unweigh(labels) if weighted else (labels, None)
        count = len(flatten(x)[0][0])
        counts = count_rows(Batch(x, y, count, count, weights=weights)).masses
        masses += [] if counts is None else [counts]
        leaves = flatten(place.features(x))[0]
        leaves += [] if y is None else flatten(place.targets(y))[0]
        leaves += [] if weights is None else [weights]
        columns = columns or [_room(leaf, rows.count) for leaf in leaves]
        for column, leaf in zip(columns, leaves, strict=True):
            column[start : start + count] = leaf
    return columns, np.concatenate(masses) if masses else None


def _room(leaf: Any, rows: int) -> Any:
    """Return room for so many rows of a column."""
    if isinstance(leaf, torch.Tensor):
        return leaf.new_empty((rows, *leaf.shape[1:]))
    return np.empty((rows, *leaf.shape[1:]), leaf.dtype)
