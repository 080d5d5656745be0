"""Predict: a column of predictions for a DataFrame, against pyspark's predict_batch_udf and NNModel.transform.

Once with the predictions and the labels used, and once with the features beside them, which Spark then has to read too.
"""

from __future__ import annotations

import shutil
import time

import numpy as np
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql.types import ArrayType, FloatType

from benchmarks import sizes
from benchmarks.measure import Result, compared, interleaved
from benchmarks.models import mlp
from benchmarks.sparks import parquet, session
from orca import Estimator, stop_orca_context
from orca_classic.nnframes import NNModel


def run(repeats: int) -> list[Result]:
    spark, rows = session(), sizes.rows(240_000)
    folder = parquet(rows)
    torch.manual_seed(0)
    model = mlp()
    frame = spark.read.parquet(str(folder))
    ours = Estimator.from_torch(model=model).predict(frame, feature_cols=["x"], batch_size=1000)
    peer = frame.withColumn("prediction", peer_udf(model)("x"))
    stage = NNModel(model).setFeaturesCol("x").setBatchSize(1000).transform(frame)
    first = [np.array([row.prediction for row in f.limit(5).collect()]) for f in (ours, peer, stage)]
    assert max(np.abs(first[0] - other).max() for other in first[1:]) < 1e-5
    found = []
    for what, columns in {
        "predictions and labels": ["y", "prediction"],
        "all columns": ["x", "y", "prediction"],
    }.items():
        read = frame.select("x", "y")
        contenders = {
            "orca": lambda c=columns: consume(ours.select(c)),
            "predict_batch_udf": lambda c=columns: consume(peer.select(c)),
            "NNModel.transform": lambda c=columns: consume(stage.select(c)),
            "Spark's scan alone": lambda f=read: consume(f),
            "scan, to Arrow and back": lambda f=read: consume(f.mapInArrow(unchanged, f.schema)),
        }
        times = interleaved(contenders, repeats)
        found += compared(f"predict of {rows:,} x 784, MLP: {what}", times, TARGETS)
    stop_orca_context()
    shutil.rmtree(folder)
    return found


TARGETS: dict[str, float | None] = {
    "predict_batch_udf": 3.0,
    "NNModel.transform": None,
    "Spark's scan alone": None,
    "scan, to Arrow and back": None,
}


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
