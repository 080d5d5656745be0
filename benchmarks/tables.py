"""Tables: a pipeline over a CSV file, from text to tensors, against pandas on one core, Spark and pyspark.pandas."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from benchmarks import sizes
from benchmarks.measure import Result, compared, interleaved, left_out, processor_seconds
from benchmarks.sparks import session
from orca import stop_orca_context
from orca.data.pandas import read_csv

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ITEMS, CITIES, LEAST = 50_000, ["Ulm", "Kiel", "Bonn", "Trier, old town", "Oslo"], 3.0
PEER = """
import sys
from pathlib import Path
from benchmarks.tables import by_pandas, timed
for line in sys.stdin:
    print(*timed(by_pandas, Path(line.strip())), flush=True)
"""


def run(repeats: int) -> list[Result]:
    folder = Path(tempfile.mkdtemp(prefix="orca-bench-"))
    try:
        with on_one_core() as peer:
            return measured(folder, write(folder), peer, repeats)
    finally:
        stop_orca_context()
        shutil.rmtree(folder)


def measured(folder: Path, size: int, peer: subprocess.Popen[str], repeats: int) -> list[Result]:
    session()
    contenders: dict[str, Callable[[], tuple[float, ...]]] = {
        "orca": lambda: timed(by_shards, folder),
        "pandas on one core": lambda: answered(peer, folder),
        "Spark DataFrames": lambda: timed(by_spark, folder),
    }
    try:
        import pyspark.pandas  # noqa: F401
    except ImportError as error:  # pyspark 4.3 does not know pandas 3
        left_out["pyspark.pandas"] = str(error)
    else:
        contenders["pyspark.pandas"] = lambda: timed(by_pandas_of_spark, folder)
    title = f"CSV of {size / 1e6:,.0f} MB: read, filter, group, join, to tensors"

    def duel(*peers: str) -> list[Result]:
        """Let ours and some peers take turns."""
        answers: dict[str, list[float]] = {}
        processors: dict[str, list[float]] = {name: [] for name in ("orca", *peers)}

        def seconds(name: str) -> float:
            taken, processor, *answers[name] = contenders[name]()
            processors[name].append(processor)
            return taken

        times = interleaved({name: lambda name=name: seconds(name) for name in processors}, repeats)
        times.processor = {name: processors[name][1:] for name in times}  # without the first turn, as the times
        for name in times:
            np.testing.assert_allclose(answers[name], answers["orca"], rtol=1e-4, err_msg=name)
        return compared(title, times, dict.fromkeys(list(times)[1:], 1.0))

    # A turn of Spark's takes a minute, after which the system has given our memory to others.
    results = duel("pandas on one core") + duel(*list(contenders)[2:])
    peaks = {tasks: peak_memory(folder, size, tasks) for tasks in (8, 32)}
    return [*results, Result("memory that the pipeline takes of a worker, 32 shards", peaks[32], peaks[8], "8", "MB")]


def write(folder: Path) -> int:
    """Write ratings of so many megabytes; return how many bytes they are."""
    draw, path = np.random.default_rng(0), folder / "ratings.csv"
    with path.open("w") as file:
        while file.tell() < sizes.rows(sizes.megabytes) * 1_000_000:
            rows = 500_000
            seconds = pd.to_timedelta(draw.integers(0, 10**8, rows), unit="s")
            pd.DataFrame(
                {
                    "user": draw.integers(0, 200_000, rows),
                    "item": draw.integers(0, ITEMS, rows),
                    "rating": draw.integers(1, 11, rows) / 2,
                    "price": draw.integers(0, 10**6, rows) / 10**4,
                    "city": draw.choice(CITIES, rows),
                    "when": pd.Timestamp("2020-01-01") + seconds,
                }
            ).to_csv(file, index=False, header=file.tell() == 0)
    return path.stat().st_size


def timed(pipeline: Callable[[Path], tuple[float, ...]], folder: Path) -> tuple[float, ...]:
    """Return the seconds that a pipeline takes, those of processors, and what it returns."""
    processor, began = processor_seconds(), time.perf_counter()
    answer = pipeline(folder)
    taken = time.perf_counter() - began
    return taken, processor_seconds() - processor, *answer


# The pipeline, by each. Each of these returns the rows and the sums of the tensors.


def by_shards(folder: Path) -> tuple[float, ...]:
    ratings = read_csv(str(folder / "ratings.csv"), parse_dates=["when"])
    ratings = ratings.transform_shard(lambda frame: frame[frame["rating"] >= LEAST])
    ratings.cache()
    items = ratings.group_by("item", agg={"rating": "mean", "user": "count"})
    joined = ratings.to_lazy().merge(items, on="item")  # it is used once, and need not be kept
    parts = joined.transform_shard(tensors, "mean(rating)", "count(user)").collect()
    ratings.uncache()
    return tuple(np.sum(parts, axis=0))


def by_pandas(folder: Path) -> tuple[float, ...]:
    torch.set_num_threads(1)
    ratings = pd.read_csv(folder / "ratings.csv", parse_dates=["when"])
    ratings = ratings[ratings["rating"] >= LEAST]
    items = ratings.groupby("item").agg(mean=("rating", "mean"), count=("user", "count")).reset_index()
    return tensors(ratings.merge(items, on="item"), "mean", "count")


def on_one_core() -> subprocess.Popen[str]:
    """Start a process for the pipeline of pandas, on one core. It stays between turns, as the workers of Spark do."""
    core = min(os.sched_getaffinity(0))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PEER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip


def answered(peer: subprocess.Popen[str], folder: Path) -> tuple[float, ...]:
    """Let the process of pandas run the pipeline; return its numbers."""
    assert peer.stdin and peer.stdout
    print(folder, file=peer.stdin, flush=True)
    return tuple(map(float, peer.stdout.readline().split()))


def by_spark(folder: Path) -> tuple[float, ...]:
    """Run the pipeline on Spark's own DataFrames, which pyspark.pandas is made of."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = SparkSession.builder.getOrCreate()
    ratings = spark.read.csv(str(folder / "ratings.csv"), header=True, inferSchema=True)
    ratings = ratings.where(F.col("rating") >= LEAST)
    items = ratings.groupBy("item").agg(F.mean("rating").alias("mean"), F.count("user").alias("count"))
    return of_spark(ratings.join(items, "item"))


def by_pandas_of_spark(folder: Path) -> tuple[float, ...]:
    import pyspark.pandas as ps

    ratings = ps.read_csv(str(folder / "ratings.csv"))
    ratings = ratings[ratings["rating"] >= LEAST]
    items = ratings.groupby("item").agg({"rating": "mean", "user": "count"}).reset_index()
    items.columns = ["item", "mean", "count"]
    return of_spark(ratings.merge(items, on="item").to_spark())


def of_spark(joined: DataFrame) -> tuple[float, ...]:
    def sums(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame([tensors(frame, "mean", "count")], columns=list("rxy"))

    parts = joined.mapInPandas(sums, "r double, x double, y double").collect()
    return tuple(np.sum([list(part) for part in parts], axis=0))


def tensors(frame: pd.DataFrame, mean: str, count: str) -> tuple[float, ...]:
    x = torch.from_numpy(frame[["user", "price", mean, count]].to_numpy(np.float32))
    y = torch.from_numpy(frame["rating"].to_numpy(np.float32))
    return float(len(x)), float(x.sum(dtype=torch.float64)), float(y.sum(dtype=torch.float64))


def peak_memory(folder: Path, size: int, tasks: int) -> float:
    """Return the most memory, in MB, that a fresh worker takes for the pipeline with so many shards."""
    stop_orca_context()
    spark = session()
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(size // tasks + 1))
    workers = spark.sparkContext.parallelize(range(2), 2)
    idle = min(workers.map(peak).collect())
    by_shards(folder)
    return max(workers.map(peak).collect()) - idle


def peak(_: int) -> float:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return float(line.split()[1]) / 1024
