"""Predict: a column of predictions for a DataFrame, against pyspark's predict_batch_udf with the same model."""

from __future__ import annotations

import shutil
import time

import numpy as np
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql.types import ArrayType, FloatType

from benchmarks.measure import Result, interleaved, medians
from benchmarks.models import mlp
from benchmarks.sparks import parquet, session
from orca import Estimator, stop_orca_context

ROWS = 120_000


def run(repeats: int) -> list[Result]:
    spark = session()
    folder = parquet(ROWS)
    torch.manual_seed(0)
    model = mlp()
    frame = spark.read.parquet(str(folder)).select("x")
    estimator = Estimator.from_torch(model=model)
    predicted = estimator.predict(frame, feature_cols=["x"], batch_size=1000)
    peer = frame.withColumn("prediction", peer_udf(model)("x"))
    first = [np.array([row.prediction for row in f.limit(5).collect()]) for f in (predicted, peer)]
    assert np.abs(first[0] - first[1]).max() < 1e-5
    contenders = {
        "orca": lambda: consume(predicted),
        "udf": lambda: consume(peer),
        "scan": lambda: consume(frame),
        "scan, to Arrow and back": lambda: consume(frame.mapInArrow(unchanged, frame.schema)),
    }
    times = medians(interleaved(contenders, repeats))
    print("  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()))
    stop_orca_context()
    shutil.rmtree(folder)
    found = Result(f"predict {ROWS:,} x 784, MLP", times["orca"], times["udf"], "predict_batch_udf", "s", 1.2)
    found.notes = {"parts": {name: seconds for name, seconds in times.items() if name.startswith("scan")}}
    return [found]


def peer_udf(model):
    weights = model.state_dict()

    def make_predict():
        net = mlp()
        net.load_state_dict(weights)
        net.eval()

        def predict(inputs: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return net(torch.from_numpy(inputs)).numpy()

        return predict

    return predict_batch_udf(
        make_predict, return_type=ArrayType(FloatType()), batch_size=1000, input_tensor_shapes=[[784]]
    )


def unchanged(batches):
    yield from batches


def consume(frame) -> float:
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
