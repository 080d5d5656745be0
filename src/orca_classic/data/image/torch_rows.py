"""Rows of a ParquetDataset for torch. Owns how the workers of a DataLoader share them, and how rows become tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from orca_classic.data.image.parquet_dataset import ParquetIterable


class ParquetTorchRows(IterableDataset):
    """The rows of a ParquetIterable, each read by one worker of a DataLoader."""

    def __init__(self, rows: ParquetIterable) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        rows = self.rows if worker is None else self.rows.part(worker.id, worker.num_workers)
        return map(self._tensors, rows()) if rows.transforms is None else rows()

    def __len__(self) -> int:
        start, stop = self.rows.bounds()
        return stop - start

    def _tensors(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: _tensor(value) for name, value in self.rows.decoded(row).items()}


def _tensor(value: Any) -> Any:
    """Return numbers as a tensor, an image as (channels, height, width); all else stays as it is."""
    if hasattr(value, "getbands"):
        pixels = np.array(value)
        return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return torch.as_tensor(value)
    return value
