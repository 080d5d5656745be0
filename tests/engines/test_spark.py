from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from programs import run_program

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

# No launcher and no Spark of this process: a program as a user starts it.
CLEAN: dict[str, str | None] = {
    **{name: None for name in os.environ if name.startswith(("SPARK_", "PYSPARK_")) and name != "SPARK_HOME"},
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # JVMs that live for seconds
}

# The same in every mode: fit, evaluate and predict a DataFrame with two workers; then a user's error on rank 1.
BODY = """
import os, sys, time
import numpy as np, torch
import torch.distributed as dist
from torch import nn
from orca import Estimator
from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context
from orca.cluster.java import ensure_java
from orca.core.metrics import MSE
from orca.errors import TooFewSlots, WorkerFailed


class Net(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.layer, self.fails = nn.Linear(3, 1), fails

    def forward(self, x, z):
        if self.fails and dist.get_rank() == 1:
            self.break_down()
        return self.layer(torch.cat([x, z[:, None]], 1))

    def break_down(self):
        raise LookupError(f"broken in {os.getpid()}")


def estimator(workers_per_node, backend="spark", **options):
    torch.manual_seed(0)
    net = Net(**options)
    return Estimator.from_torch(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01), loss=nn.MSELoss(), metrics=[MSE()],
        backend=backend, workers_per_node=workers_per_node, use_tqdm=False,
    )


def check(session, workers_per_node):
    rows = [([i / 10, (i % 3) / 3], i / 7, i / 5 - 1) for i in range(11)]
    frame = session.createDataFrame(rows, "x array<float>, z float, y float").repartition(3)
    named = {"feature_cols": ["x", "z"], "label_cols": ["y"]}
    for backend in ("spark", "bigdl"):
        est = estimator(workers_per_node, backend)
        assert est.engine.workers == 2, est.engine.workers
        stats = est.fit(frame, epochs=2, batch_size=4, validation_data=frame, **named)
        counts = [(line["num_samples"], line["batch_count"], line["val_num_samples"]) for line in stats]
        assert counts == [(11, 3, 11)] * 2, counts
        assert stats[1]["train_loss"] < stats[0]["train_loss"], stats
    answered = est.predict(frame, feature_cols=["x", "z"])
    assert dict(answered.dtypes)["prediction"] == "float", answered.dtypes
    told = answered.collect()
    assert len(told) == 11
    net = est.get_model().eval()
    with torch.no_grad():
        known = net(torch.tensor([row.x for row in told]), torch.tensor([row.z for row in told]))[:, 0].numpy()
    np.testing.assert_allclose([row.prediction for row in told], known, rtol=1e-5, atol=1e-6)
    stats = est.evaluate(frame, batch_size=4, **named)
    error = float(np.mean((known.astype(float) - np.array([row.y for row in told])) ** 2))
    assert stats["num_samples"] == 11
    np.testing.assert_allclose([stats["MSE"], stats["val_loss"]], error, rtol=1e-4)

    try:
        estimator(workers_per_node, fails=True).fit(frame, batch_size=4, **named)
    except WorkerFailed as failed:
        assert type(failed) is WorkerFailed and failed.rank == 1 and failed.host, repr(failed)
        assert failed.reason.startswith("LookupError: broken in "), failed
        assert "in break_down" in failed.remote_traceback, failed
        assert failed.reason.split()[-1] != str(os.getpid())
    else:
        raise AssertionError("the error of rank 1 was lost")

    try:
        estimator(4 * workers_per_node).fit(frame, batch_size=4, **named)
    except TooFewSlots as refused:
        assert "8 worker" in str(refused) and "2 task" in str(refused), refused
    else:
        raise AssertionError("8 workers ran in 2 slots")
    print("all is well")
"""


@pytest.mark.full
def test_session_of_the_user_on_a_local_cluster() -> None:
    code = """
ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
check(session, workers_per_node=1)
session.stop()
"""
    assert "all is well" in run_program(BODY + code, env=CLEAN, timeout=200).stdout


@pytest.mark.full
def test_standalone_master_with_two_workers() -> None:
    code = """
init_orca_context(cluster_mode="standalone", num_nodes=2, cores=1, memory="1g")
check(OrcaContext.get_spark_session(), workers_per_node=1)
stop_orca_context()
"""
    assert "all is well" in run_program(BODY + code, env=CLEAN, timeout=200).stdout


@pytest.mark.full
def test_spark_connect() -> None:
    pytest.importorskip("grpc", reason="pyspark[connect] is not installed")
    import pyspark

    if not list(Path(pyspark.__file__).parent.glob("jars/spark-connect_*.jar")):
        pytest.skip("this pyspark brings no Connect server: Spark 3.5 would download it")
    code = """
ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
session = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(session).__module__.startswith("pyspark.sql.connect")
check(session, workers_per_node=2)
from zoo.orca.learn.pytorch import Estimator
frame = session.createDataFrame([([1.0, 2.0], {"a": [3.0], "b": [4.0]})], "x array<float>, y map<string,array<float>>")
est = Estimator.from_torch(model=nn.Identity(), backend="spark")
assert est.predict(frame, feature_cols=["x"]).first().prediction.toArray().tolist() == [1.0, 2.0]
named = est.predict(frame, feature_cols=["y"]).first().prediction
assert (named.a.toArray().tolist(), named.b.toArray().tolist()) == ([3.0], [4.0])
session.stop()
"""
    assert "all is well" in run_program(BODY + code, env=CLEAN, timeout=200).stdout


def test_ranks_take_the_gpus_and_share_the_cores_that_spark_gave_their_executor(tmp_path: Path) -> None:
    script = tmp_path / "discover.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["4", "7"]}'\n""")
    script.chmod(0o700)
    code = f"""
import os
import torch
from orca import Estimator
from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context
from orca.core.engine import Settings
from orca.core.source import Shards
from orca.engines.spark import SparkEngine
from orca.errors import ArgumentError, WorkerFailed


class Tell:
    def run_on_peer(self, peer, patience, heartbeat):
        return peer.grant.gpus, peer.grant.cpus

    def __call__(self, world, rows, heartbeat):
        return torch.get_num_threads()


class Threads:
    def __call__(self, world, rows, heartbeat):
        return torch.get_num_threads()


os.environ["SPARK_WORKER_OPTS"] = (
    "-Dspark.worker.resource.gpu.amount=2 -Dspark.worker.resource.gpu.discoveryScript={script}"
)
init_orca_context(cluster_mode="standalone", cores=4, memory="1g", conf={{
    "spark.executor.resource.gpu.amount": 2, "spark.task.resource.gpu.amount": 1,
    "spark.executorEnv.OMP_NUM_THREADS": 3,
}})
engine = SparkEngine(OrcaContext.get_spark_session(), 2)
shards = lambda: Shards(lambda items, folder: {{}}, lambda: [lambda: iter(())] * 2)
grants = engine.run(Tell(), shards(), Settings(progress=False))
assert sorted(grants) == [(("4",), 2.0), (("7",), 2.0)], grants
assert engine.run(Threads(), shards(), Settings(progress=False)) == [3, 3]
assert engine.run(Threads(), shards(), Settings(progress=False, threads=2)) == [2, 2]
model = torch.nn.Linear(2, 1)
est = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=torch.nn.MSELoss(),
                           backend="spark", workers_per_node=2)
try:
    est.fit((torch.ones(4, 2).numpy(), torch.ones(4, 1).numpy()), batch_size=2)
except (WorkerFailed, ArgumentError) as error:
    assert "the cluster assigned GPU" in str(error), error
    print("all is well")
stop_orca_context()
"""
    assert "all is well" in run_program(code, env=CLEAN | {"OMP_NUM_THREADS": None}, timeout=200).stdout


@dataclass(frozen=True)
class Hold:
    """Hold a slot until there is a file."""

    sign: str

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        while not os.path.exists(self.sign):
            time.sleep(0.05)
        yield from batches


@dataclass(frozen=True)
class Rank:
    """Tell which rank it is."""

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> int:
        return int(world.rank)


@dataclass(frozen=True)
class Piece:
    """A piece of data that is larger or smaller."""

    number: int
    ballast: bytes

    def __call__(self) -> list[int]:
        return [self.number]


class Kept(list[Any]):
    """The items that a rank was given."""

    def close(self) -> None:
        self.clear()


@dataclass(frozen=True)
class Keep:
    """Keep the items that a rank was given."""

    def __call__(self, items: Iterable[Any], folder: Path) -> dict[str, Any]:
        return {"items": Kept(items)}


@dataclass(frozen=True)
class Items:
    """Tell which items a rank was given, and in which process."""

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> tuple[list[int], int]:
        return [*rows["items"]], os.getpid()


@pytest.mark.parametrize("size", [10, 1 << 20], ids=["with the task", "in a frame"])
def test_pieces_reach_their_ranks_and_workers_stay(spark: Any, size: int) -> None:
    from orca.core.engine import Settings
    from orca.core.source import Shards
    from orca.engines.spark import SparkEngine

    shards = Shards(Keep(), lambda: [Piece(number, bytes(size)) for number in range(5)])
    runs = [SparkEngine(spark, 2).run(Items(), shards, Settings(progress=False)) for _ in range(5)]
    assert [[items for items, _ in run] for run in runs] == [[[0, 2, 4], [1, 3]]] * 5
    assert (
        len({worker for run in runs for _, worker in run}) < 10
    )  # Spark has used some again; it takes idle ones in turn


class Meets:
    """A job that tells how its ranks meet."""

    def run_on_peer(self, peer: Any, patience: float, heartbeat: Any) -> tuple[str, list[str]]:
        return type(peer).__name__, peer.all_gather(f"rank {peer.rank}")


def test_ranks_in_the_drivers_jvm_do_not_wait_for_a_barrier_of_spark(spark: Any) -> None:
    from orca.core.engine import Settings
    from orca.core.source import Shards
    from orca.engines.spark import SparkEngine

    shards = Shards(Keep(), lambda: [Piece(number, b"") for number in range(2)])
    ranks = SparkEngine(spark, 2).run(Meets(), shards, Settings(progress=False))
    assert ranks == [("HubPeer", ["rank 0", "rank 1"])] * 2


def test_a_run_that_waits_for_slots_says_so_and_starts_when_they_are_free(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from orca.core.engine import Settings
    from orca.core.source import Shards
    from orca.engines import spark as engine
    from orca.engines.spark import SparkEngine
    from orca.errors import WorkerStalled
    from orca.monitor import waiting

    monkeypatch.setattr(waiting, "FIRST_WORD", 0.5)
    monkeypatch.setattr(engine, "_SPARK_ENDS_WITHIN", 0.2)
    sign = tmp_path / "sign"

    def wait_for_words() -> None:
        while not re.search("0 of 2 ranks have started .*; Spark shows 0 of 3 slots free", caplog.text):
            time.sleep(0.05)
        sign.touch()

    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(spark.range(0, 3, 1, 3).mapInArrow(Hold(str(sign)), "id long").collect)
        while sum(each.numRunningTasks() for each in executor_infos(spark)) < 3:
            time.sleep(0.05)
        shards = Shards(lambda items, folder: {}, lambda: [list, list])
        with pytest.raises(WorkerStalled, match="0 of 2 ranks have started .* 0 of 3 slots free. The limit is start_t"):
            SparkEngine(spark, 2).run(Rank(), shards, Settings(progress=False, start_timeout=0.5))
        caplog.clear()
        words = pool.submit(wait_for_words)
        assert SparkEngine(spark, 2).run(Rank(), shards, Settings(progress=False)) == [0, 1]
        words.result(10)
        assert len(holding.result(30)) == 3


def executor_infos(spark: Any) -> list[Any]:
    return list(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())
