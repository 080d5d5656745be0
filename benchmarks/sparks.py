"""The Spark session and the Parquet data that the Spark benchmarks share."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orca import OrcaContext, init_orca_context


def session():
    init_orca_context(cluster_mode="local", cores=2, memory="4g")
    return OrcaContext.get_spark_session()


def parquet(rows: int, columns: int = 784) -> Path:
    """Write random rows of x (array<float>) and y (long) as Parquet files; return their folder."""
    folder = Path(tempfile.mkdtemp(prefix="orca-bench-"))
    draw = np.random.default_rng(0)
    for part in range(4):
        count = rows // 4
        x = pa.FixedSizeListArray.from_arrays(pa.array(draw.random(count * columns, np.float32)), columns)
        table = pa.table({"x": x, "y": pa.array(draw.integers(0, 10, count))})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=5000, compression="none")
    return folder
