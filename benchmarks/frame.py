"""Frame: a whole fit of a DataFrame, against bare torchrun that reads the same Parquet files; where our time goes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import torch

from benchmarks.measure import Result, interleaved, medians
from benchmarks.models import mlp
from benchmarks.sparks import parquet, session
from orca import Estimator, stop_orca_context
from orca.core.engine import scratch
from orca.sources.frame import OpenFrame, deal

ROWS, EPOCHS, BATCH = 60_000, 2, 256


def run(repeats: int) -> list[Result]:
    spark = session()
    folder = parquet(ROWS)
    frame = spark.read.parquet(str(folder))
    contenders = {
        "orca": lambda: ours(frame),
        "torchrun": lambda: bare(folder),
        "scan": lambda: _consume(frame),
        "scan + deal + JVM to Arrow": lambda: _consume(_tagged(frame).mapInArrow(count_rows, "rows long")),
        "scan + deal + JVM to Arrow + spool": lambda: _consume(_tagged(frame).mapInArrow(spool_rows, "rows long")),
    }
    times = medians(interleaved(contenders, repeats))
    stop_orca_context()
    shutil.rmtree(folder)
    found = Result(
        f"whole fit, {ROWS:,} x 784, {EPOCHS} epochs", times["orca"], times["torchrun"], "torchrun + Parquet"
    )
    found.notes = {"parts": {name: seconds for name, seconds in times.items() if name.startswith("scan")}}
    found.notes["training and the rest"] = times["orca"] - times["scan + deal + JVM to Arrow + spool"]
    print("  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()))
    return [found]


def ours(frame) -> float:
    torch.manual_seed(0)
    model = mlp()
    estimator = Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss=torch.nn.CrossEntropyLoss(),
        workers_per_node=2,
    )
    began = time.perf_counter()
    stats = estimator.fit(frame, epochs=EPOCHS, batch_size=BATCH, feature_cols=["x"], label_cols=["y"])
    assert stats[-1]["num_samples"] == ROWS
    return time.perf_counter() - began


def bare(folder: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d"]
    command += ["--rdzv_endpoint=127.0.0.1:0", "-m", "benchmarks.parquet_peer", str(folder), str(EPOCHS), str(BATCH)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - began


def count_rows(batches) -> Iterator[pa.RecordBatch]:
    yield _rows(sum(batch.num_rows for batch in batches))


def spool_rows(batches) -> Iterator[pa.RecordBatch]:
    with scratch() as folder:
        rows = OpenFrame(1, 1, ("x", "y"), ("train",))(iter(batches), folder)["train"]
        yield _rows(rows.count)
        rows.close()


def _rows(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([count])], names=["rows"])


def _tagged(frame):
    return deal(frame.selectExpr("0 as part", "x as c0", "y as c1"), 2)


def _consume(frame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
