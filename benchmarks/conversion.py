"""Conversion: Arrow batches to tensors inside a worker, against what predict_batch_udf and a row-wise loop do there."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import torch

from benchmarks.measure import Result, interleaved, medians
from orca.rows.arrow import to_numpy

ROWS, COLUMNS, BATCHES = 10_000, 784, 3


def run(repeats: int) -> list[Result]:
    values = np.random.default_rng(0).random(ROWS * COLUMNS, np.float32)
    offsets = np.arange(0, ROWS * COLUMNS + 1, COLUMNS, dtype=np.int32)
    column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    contenders = {"orca": by_stride, "pandas": by_pandas, "rows": by_rows}
    times = medians(interleaved({n: lambda f=f: _timed(f, column) for n, f in contenders.items()}, repeats))
    name = f"{BATCHES * ROWS:,} x {COLUMNS} floats, Arrow to tensors"
    return [
        Result(name, times["orca"], times["pandas"], "pandas cells stacked, as predict_batch_udf does", "s", 3.0),
        Result(name, times["orca"], times["rows"], "a row-wise loop", "s", 10.0),
    ]


def by_stride(column: pa.Array) -> torch.Tensor:
    return torch.from_numpy(np.array(to_numpy(column, "x")))


def by_pandas(column: pa.Array) -> torch.Tensor:
    return torch.from_numpy(np.vstack(column.to_pandas()))


def by_rows(column: pa.Array) -> torch.Tensor:
    return torch.stack([torch.tensor(row.as_py()) for row in column])


def _timed(convert, column: pa.Array) -> float:
    began = time.perf_counter()
    for _ in range(BATCHES):
        tensor = convert(column)
    assert tensor.shape == (ROWS, COLUMNS)
    return time.perf_counter() - began
