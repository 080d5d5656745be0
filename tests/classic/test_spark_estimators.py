"""The classes of BigDL's Estimators on Spark, and its functions for Ray's resources."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from bigdl.orca.learn.pytorch import Estimator
from bigdl.orca.ray import utils
from orca.errors import ArgumentError
from orca.registry import BACKENDS


def test_class_of_a_torch_estimator_makes_one_and_knows_one(spark: Any) -> None:
    torch = pytest.importorskip("torch")
    from bigdl.orca.learn.pytorch.pytorch_pyspark_estimator import PyTorchPySparkEstimator

    est = PyTorchPySparkEstimator(
        model_creator=lambda config: torch.nn.Linear(1, 1),
        optimizer_creator=lambda model, config: torch.optim.SGD(model.parameters(), lr=config["lr"]),
        loss_creator=lambda config: torch.nn.MSELoss(),
        config={"lr": 0.1},
    )
    assert est.backend == BACKENDS["spark"] and isinstance(est, PyTorchPySparkEstimator)
    rows = spark.createDataFrame([([float(i)], [2.0 * i]) for i in range(8)], "x array<float>, y array<float>")
    stats = est.fit(rows, epochs=2, batch_size=4, feature_cols=["x"], label_cols=["y"])
    assert np.isfinite([epoch["train_loss"] for epoch in stats]).all()
    model = torch.nn.Linear(1, 1)
    assert isinstance(
        Estimator.from_torch(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss()
        ),
        PyTorchPySparkEstimator,
    )


def test_class_of_a_keras_estimator_makes_one_and_knows_one() -> None:
    keras = pytest.importorskip("keras")
    from bigdl.orca.learn.tf2.pyspark_estimator import SparkTFEstimator

    est = SparkTFEstimator(lambda config: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), verbose=False)
    assert est.backend == BACKENDS["spark"] and isinstance(est, SparkTFEstimator)


def test_resources_are_told_as_numbers(spark: Any) -> None:
    assert [utils.resource_to_bytes(size) for size in ("50b", "100k", "250M", "30g", None)] == [
        50, 100_000, 250_000_000, 30_000_000_000, None,
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match=r"a size is a whole number with b, k, m or g, as '30g'; got '1\.5g'"):
        utils.resource_to_bytes("1.5g")
    assert utils.to_list((1, 2)) == [1, 2] and utils.to_list(1) == [1]
    assert utils.is_local(spark.sparkContext) == spark.sparkContext.master.startswith("local[")
    assert utils.get_parent_pid(os.getpid()) == os.getppid()
