"""Frame: whole calls for a DataFrame of Parquet files, 60,000 x 784 floats, an MLP on 2 workers.

fit is compared with torchrun, TorchDistributor, Ray Train and Lightning that read the same files; ranks that read
these themselves with the usual way through Spark; and evaluate of computed rows, persisted and not.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from pyspark.sql import functions as F

from benchmarks import ddp_peer, sizes
from benchmarks.ddp_peer import WORKERS
from benchmarks.measure import Result, compared, installed, interleaved
from benchmarks.models import mlp
from benchmarks.sparks import parquet, session
from orca import Estimator, stop_orca_context
from orca.sources.scan import SETTING

EPOCHS, BATCH = 3, 256
COLUMNS = {"feature_cols": ["x"], "label_cols": ["y"], "batch_size": BATCH}


def run(repeats: int) -> list[Result]:
    spark, rows = session(), sizes.rows(60_000)
    folder = parquet(rows)
    frame = spark.read.parquet(str(folder))
    shape = f"{rows:,} x 784"
    contenders = {"orca": lambda: fit(frame)} | peers(folder)
    found = compared(f"fit of {shape}, {EPOCHS} epochs", interleaved(contenders, repeats), TARGETS)
    est = estimator()
    for verb, call, target in (
        ("fit, 3 epochs", lambda: fit(frame), 4.5),
        ("evaluate", lambda: timed(lambda: est.evaluate(frame, **COLUMNS)), 2.5),
    ):
        ways = {"orca": call, "the way through Spark": lambda c=call: through_spark(spark, c)}
        times = interleaved(ways, repeats)
        found += compared(f"{verb}, of {shape}", times, {"the way through Spark": None})
        found.append(Result(f"{verb}, of {shape}", found[-1].ours, None, target=target))
    computed = frame.withColumn("y", F.udf(lambda y: y, "long")("y"))
    persisted = computed.select("*").persist()
    ways = {
        "orca": lambda: timed(lambda: est.evaluate(persisted, **COLUMNS)),
        "not persisted": lambda: timed(lambda: est.evaluate(computed, **COLUMNS)),
    }
    found += compared(
        f"evaluate of a persisted frame, {shape} computed", interleaved(ways, repeats), {"not persisted": None}
    )
    stop_orca_context()
    shutil.rmtree(folder)
    return found


TARGETS: dict[str, float | None] = {
    "torchrun DDP": 1 / 1.15,
    "TorchDistributor": None,
    "Ray Train": None,
    "Lightning": None,
}


def peers(folder: Path) -> dict[str, Callable[[], float]]:
    arguments = (str(folder), str(EPOCHS), str(BATCH))
    known: dict[str, Callable[[], float]] = {
        "torchrun DDP": lambda: timed(lambda: ddp_peer.torchrun("files", *arguments)),
        "TorchDistributor": lambda: timed(lambda: distributor(arguments)),
    }
    if installed("Ray Train", "ray"):
        known["Ray Train"] = lambda: timed(lambda: ray_train(arguments))
    if installed("Lightning", "lightning"):
        known["Lightning"] = lambda: timed(lambda: ddp_peer.lightning(*arguments))
    return known


def distributor(arguments: tuple[str, ...]) -> None:
    from pyspark.ml.torch.distributor import TorchDistributor

    logging.getLogger("TorchDistributor").setLevel(logging.ERROR)
    TorchDistributor(WORKERS, local_mode=True, use_gpu=False).run(ddp_peer.train_files, *arguments)


def ray_train(arguments: tuple[str, ...]) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    if not ray.is_initialized():
        root = str(Path(__file__).parent.parent)
        environment = {"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}}
        ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    loop = {"loop": arguments}
    TorchTrainer(
        lambda config: ddp_peer.train_files(*config["loop"]),
        train_loop_config=loop,
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=f"{arguments[0]}-ray"),
    ).fit()
    shutil.rmtree(f"{arguments[0]}-ray", ignore_errors=True)


def estimator() -> Estimator:
    torch.manual_seed(0)
    model = mlp()
    return Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        loss=torch.nn.CrossEntropyLoss(),
        workers_per_node=WORKERS,
    )


def fit(frame) -> float:
    est = estimator()
    return timed(lambda: est.fit(frame, epochs=EPOCHS, **COLUMNS))


def through_spark(spark, call: Callable[[], float]) -> float:
    spark.conf.set(SETTING, "false")
    try:
        return call()
    finally:
        spark.conf.unset(SETTING)


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
