"""Openvino: predictions for a DataFrame, against the same model in torch and a hand-written pandas UDF of OpenVINO."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import openvino as ov
import pandas as pd
import torch
from pyspark.sql.functions import pandas_udf
from torch import nn

from benchmarks.measure import Result, interleaved, medians
from benchmarks.models import cnn
from benchmarks.predict import consume
from benchmarks.sparks import parquet, session
from orca import Estimator, stop_orca_context
from orca.frameworks.openvino import convert

BATCH = 200


def deep() -> nn.Module:
    """Make a network whose arithmetic outweighs the way of its rows to Python and back."""
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


CASES = {"LeNet": (cnn, 60_000), "deep CNN": (deep, 8_000)}  # name: model, rows


def run(repeats: int) -> list[Result]:
    spark = session()
    results = [result for name in CASES for result in compare(spark, name, repeats)]
    stop_orca_context()
    return results


def compare(spark, name: str, repeats: int) -> list[Result]:
    make, rows = CASES[name]
    data, models = parquet(rows), tempfile.mkdtemp(prefix="orca-bench-")
    frame = spark.read.parquet(str(data)).select("x")
    torch.manual_seed(0)
    contenders = predictions(frame, nn.Sequential(nn.Unflatten(1, (1, 28, 28)), make()).eval(), f"{models}/model.xml")
    times = medians(interleaved({who: consumer(answered) for who, answered in contenders.items()}, repeats))
    for folder in (data, models):
        shutil.rmtree(folder)
    speeds = {who: rows / seconds for who, seconds in times.items()}
    print(f"  {name}: " + ", ".join(f"{who} {speed:,.0f} rows/s" for who, speed in speeds.items()))
    title, notes = f"openvino predict {rows:,} x 784, {name}", {"rows_per_second": speeds}
    return [
        Result(title, times["orca"], times["torch"], "torch through our predict", "s", 1.1, notes),
        Result(title, times["orca"], times["udf"], "pandas UDF with OpenVINO", "s", 1.0, notes),
    ]


def predictions(frame, model: nn.Module, path: str) -> dict:
    """Return the frame with each contender's predictions; they agree."""
    convert(model, np.zeros((1, 784), np.float32), path)
    found = {
        "orca": Estimator.from_openvino(model_path=path).predict(frame, feature_cols=["x"], batch_size=BATCH),
        "torch": Estimator.from_torch(model=model).predict(frame, feature_cols=["x"], batch_size=BATCH),
        "udf": frame.withColumn("prediction", peer_udf(path)("x")),
    }
    first = [np.array([row.prediction for row in answered.limit(5).collect()]) for answered in found.values()]
    assert max(np.abs(first[0] - other).max() for other in first[1:]) < 1e-4
    return found | {"scan": frame}


def consumer(frame) -> Callable[[], float]:
    return lambda: consume(frame)


def peer_udf(path: str):
    def predict(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        model = ov.Core().compile_model(path, "CPU", settings)
        for series in batches:
            x = np.stack(series)
            parts = [model(x[at : at + BATCH])[0] for at in range(0, len(x), BATCH)]
            yield pd.Series(list(np.concatenate(parts)))

    return pandas_udf(predict, "array<float>")
