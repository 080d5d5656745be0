"""Startup: what a call takes besides its work.

A warm fit to its first optimizer step, against a bare barrier job that forms a gloo group; and tiny fits of arrays, the
first and the second of a program, against the import of torch.
"""

from __future__ import annotations

import os
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

from benchmarks.measure import Result, compared, interleaved
from benchmarks.sparks import session
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
    for backend, most in (("spark", 1.2), ("local", 1.5)):
        lines = [program(backend) for _ in range(repeats)]
        first, second, loaded = (statistics.median(values) for values in zip(*lines, strict=True))
        notes = {"times": lines}
        limit = loaded + 1.5 if backend == "local" else None
        found.append(Result(f"first tiny fit of a program, {backend}", first, loaded, "import torch", "s", None, notes))
        if limit is not None:
            found.append(Result(f"first tiny fit of a program, {backend}", first, None, target=limit))
        found.append(Result(f"second tiny fit, {backend}", second, None, target=most, notes=notes))
    return found


PROGRAM = """
import time
began = time.perf_counter()
import torch
loaded = time.perf_counter() - began
import numpy as np
from orca import Estimator, init_orca_context, stop_orca_context

if {backend!r} == "spark":
    init_orca_context(cluster_mode="local", cores=2)
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


def program(backend: str) -> list[float]:
    """Run a program of its own; return the seconds of its first fit, of its second, and of torch's import."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    command = [sys.executable, "-c", PROGRAM.format(backend=backend)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return list(map(float, done.stdout.split()[-3:]))


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
