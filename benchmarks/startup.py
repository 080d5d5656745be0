"""Startup: what a call takes besides its work.

A warm fit to its first optimizer step, against a bare barrier job that forms a gloo group; tiny fits of arrays, the
first and the second of a program, against the import of torch; the first fit of a DataFrame of Parquet files against
the second; and init_orca_context against pyspark's own session.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from benchmarks import sizes
from benchmarks.measure import Result, compared, interleaved
from benchmarks.sparks import parquet, session
from orca import Estimator, stop_orca_context


class Stamped(torch.optim.SGD):
    """Write down when the first step was made."""

    def step(self, closure=None):
        super().step(closure)
        path = self.defaults.get("stamp") or self.param_groups[0]["stamp"]
        if not os.path.exists(path):
            Path(path).write_text(repr(time.time()))


def optimizer_creator(model, config):
    optimizer = Stamped(model.parameters(), lr=0.01)
    optimizer.param_groups[0]["stamp"] = config["stamp"]
    return optimizer


def model_creator(config):
    return torch.nn.Linear(8, 1)


def run(repeats: int) -> list[Result]:
    spark = session()
    frame = spark.range(1000).selectExpr("array_repeat(cast(id % 7 as float), 8) as x", "cast(id % 3 as float) as y")
    frame = frame.cache()
    frame.count()
    times = interleaved({"orca": lambda: ours(frame), "a barrier job with gloo": lambda: bare(spark)}, repeats)
    stop_orca_context()
    found = compared("warm fit to its first step, backend spark", times, {"a barrier job with gloo": None})
    for backend, most in (("spark", 1.2), ("local", 1.5), ("ray", None)):
        lines = [program(backend) for _ in range(repeats)]
        first, second, loaded = (statistics.median(values) for values in zip(*lines, strict=True))
        notes = {"times": lines}
        limit = loaded + 1.5 if backend == "local" else None
        found.append(Result(f"first tiny fit of a program, {backend}", first, loaded, "import torch", "s", None, notes))
        if limit is not None:
            found.append(Result(f"first tiny fit of a program, {backend}", first, None, target=limit))
        found.append(Result(f"second tiny fit, {backend}", second, None, target=most, notes=notes))
    return found + first_fit(repeats) + sessions(repeats)


def first_fit(repeats: int) -> list[Result]:
    rows = sizes.rows(60_000)
    folder = parquet(rows)
    lines = [run_program(TABLE, str(folder)) for _ in range(repeats)]
    shutil.rmtree(folder)
    first, second = (statistics.median(values) for values in zip(*lines, strict=True))
    name, notes = f"first fit of a program, {rows:,} x 784, 1 epoch", {"times": lines}
    return [
        Result(name, first, None, target=7.0, notes=notes),
        Result(f"{name}, less the second", first - second, None, target=3.0, notes=notes),
    ]


def sessions(repeats: int) -> list[Result]:
    """Return our session beside pyspark's, with the same settings of memory and cores."""
    ways = {"orca": OURS, "pyspark's own session": PYSPARKS}
    contenders = {name: lambda code=code: run_program(SESSION.format(start=code))[0] for name, code in ways.items()}
    return compared("init_orca_context", interleaved(contenders, repeats), {"pyspark's own session": 1.0})


PROGRAM = """
import time
began = time.perf_counter()
import torch
loaded = time.perf_counter() - began
import numpy as np
from orca import Estimator, init_orca_context, stop_orca_context

if {backend!r} == "spark":
    init_orca_context(cluster_mode="local", cores=2)
elif {backend!r} == "ray":
    init_orca_context(runtime="ray", cores=2)
draw = np.random.default_rng(0)
data = draw.random((2000, 20), np.float32), draw.random(2000, np.float32)
model = torch.nn.Linear(20, 1)
est = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
                           loss=torch.nn.MSELoss(), backend={backend!r}, workers_per_node=2)
times = []
for _ in range(2):
    began = time.perf_counter()
    est.fit(data, epochs=1, batch_size=100)
    times.append(time.perf_counter() - began)
stop_orca_context()
print(*times, loaded)
"""


TABLE = """
import sys, time
import torch
from orca import Estimator, OrcaContext, init_orca_context, stop_orca_context
from benchmarks.models import mlp

init_orca_context(cluster_mode="local", cores=2, memory="4g")
frame = OrcaContext.get_spark_session().read.parquet(sys.argv[1])
model = mlp()
est = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
                           loss=torch.nn.CrossEntropyLoss(), workers_per_node=2)
times = []
for _ in range(2):
    began = time.perf_counter()
    est.fit(frame, epochs=1, batch_size=256, feature_cols=["x"], label_cols=["y"])
    times.append(time.perf_counter() - began)
stop_orca_context()
print(*times)
"""

SESSION = """
import time
import torch
from pyspark.sql import SparkSession
from orca import init_orca_context
began = time.perf_counter()
{start}
print(time.perf_counter() - began)
"""
OURS = 'init_orca_context(cluster_mode="local", cores=2, memory="4g")'
PYSPARKS = """
settings = {"spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
"""


def program(backend: str) -> list[float]:
    """Return the seconds of a program's first tiny fit, of its second, and of torch's import."""
    return run_program(PROGRAM.format(backend=backend))


def run_program(code: str, *arguments: str) -> list[float]:
    """Run a program of its own; return the numbers in the last line that it prints."""
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(map(float, done.stdout.splitlines()[-1].split()))


def ours(frame) -> float:
    with tempfile.TemporaryDirectory() as folder:
        stamp = f"{folder}/stamp"
        estimator = Estimator.from_torch(
            model=model_creator,
            optimizer=optimizer_creator,
            loss=torch.nn.MSELoss(),
            config={"stamp": stamp},
            workers_per_node=2,
        )
        began = time.time()
        estimator.fit(frame, epochs=1, batch_size=100, feature_cols=["x"], label_cols=["y"])
        return float(Path(stamp).read_text()) - began


def bare(spark) -> float:
    began = time.time()
    rows = spark.range(2).repartition(2).mapInArrow(bare_rank, "at double", barrier=True).collect()
    return max(row["at"] for row in rows) - began


def bare_rank(batches) -> Iterator[pa.RecordBatch]:
    import torch.distributed as dist
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    rank = context.partitionId()
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    port = int(context.allGather(str(server.getsockname()[1]))[0])
    given = {"master_listen_fd": server.detach()} if rank == 0 else {}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, **given)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.nn.functional.mse_loss(model(torch.zeros(50, 8)), torch.zeros(50, 1)).backward()
    optimizer.step()
    at = time.time()
    del model, optimizer
    dist.destroy_process_group()
    for _ in batches:
        pass
    yield pa.RecordBatch.from_arrays([pa.array(np.array([at]))], names=["at"])
