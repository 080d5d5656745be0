"""Seed 002, distributed training and inference: a program for each of its sections whose framework is built here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyspark")

import torch
from torch import nn

from seeds.quarters import BATCH, CLASSES, ROWS, answers, assert_same_weights, classifier, loader, quarters, trained

IMAGES, LABELS = quarters()


@pytest.fixture(scope="module")
def df(spark: Any) -> Any:
    rows = [(number, image.tolist(), int(LABELS[number])) for number, image in enumerate(IMAGES)]
    return spark.createDataFrame(rows, "number int, image array<float>, label long").repartition(3).cache()


def in_order(predicted: Any) -> np.ndarray:
    """Return the predictions of a DataFrame, as the rows were numbered."""
    rows = {row.number: row.prediction for row in predicted.collect()}
    return np.array([rows[number] for number in range(ROWS)])


# 2. TensorFlow and Keras


def compiled_model(seed: int = 1) -> Any:
    import keras

    seeded = [keras.initializers.GlorotUniform(seed=seed), keras.initializers.GlorotUniform(seed=seed + 1)]
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(8, activation="tanh", kernel_initializer=seeded[0]),
            keras.layers.Dense(CLASSES, activation="softmax", kernel_initializer=seeded[1]),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.RMSprop(0.01), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


@pytest.mark.parametrize("kind", ["DataFrame", "XShards"])
def test_2_1_keras_model(kind: str, df: Any) -> None:
    pytest.importorskip("tensorflow")
    from zoo.orca.data import XShards
    from zoo.orca.learn.tf2 import Estimator

    model = compiled_model()
    est = Estimator.from_keras(keras_model=model)
    if kind == "DataFrame":
        stats = est.fit(data=df, batch_size=BATCH, epochs=5, feature_cols=["image"], label_cols=["label"])
    else:
        stats = est.fit(data=XShards.partition({"x": IMAGES, "y": LABELS}), batch_size=BATCH, epochs=5)
    predicted = est.predict(data=df, feature_cols=["image"])

    assert predicted.columns == ["number", "image", "label", "prediction"]
    scores = in_order(predicted)
    np.testing.assert_allclose(scores, est.get_model().predict(IMAGES, verbose=0), atol=1e-5)
    assert stats["loss"][-1] < stats["loss"][0]
    assert (scores.argmax(axis=1) == LABELS).mean() > 0.8


@pytest.mark.parametrize("root", ["zoo", "bigdl"])
def test_2_2_keras_model_creator(root: str, df: Any) -> None:
    pytest.importorskip("tensorflow")
    import importlib

    Estimator = importlib.import_module(f"{root}.orca.learn.tf2").Estimator

    def make_model(config: dict[str, Any]) -> Any:
        return compiled_model()

    def make_dataset(config: dict[str, Any], batch_size: int) -> Any:
        import tensorflow as tf

        dataset = tf.data.Dataset.from_tensor_slices({"pixels": IMAGES, "quarter": LABELS})
        return dataset.map(lambda row: (row["pixels"], row["quarter"])).batch(batch_size)

    # One worker, as the creator alone asks for, and two.
    est = Estimator.from_keras(model_creator=make_model, workers_per_node={"zoo": 1, "bigdl": 2}[root])
    stats = est.fit(data=make_dataset, epochs=2, steps_per_epoch=ROWS // 32)
    predicted = est.predict(data=df, feature_cols=["image"])

    expected = compiled_model()
    given = list(make_dataset({}, 32)) * 2
    for x, y in given[: 2 * (ROWS // 32)]:  # an epoch goes on where the one before it ended
        expected.train_on_batch(x, y)
    assert type(est.engine).__name__ == "SparkEngine"
    assert len(stats["loss"]) == 2 and 0 <= stats["train_accuracy"] <= 1
    np.testing.assert_allclose(in_order(predicted), expected.predict(IMAGES, verbose=0), atol=1e-5)


# 3. PyTorch


@pytest.mark.parametrize("kind", ["DataLoader", "DataFrame"])
def test_3_pytorch_estimator_on_the_bigdl_backend(kind: str, df: Any) -> None:
    """Training on XShards and creators is in test_001_pytorch_estimator.py."""
    from zoo.orca.data import XShards
    from zoo.orca.learn.pytorch import Estimator

    model = classifier()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    est = Estimator.from_torch(model=model, optimizer=optimizer, loss=nn.NLLLoss())
    xshards = XShards.partition({"x": IMAGES})
    if kind == "DataLoader":
        est.fit(data=loader(), epochs=2)
    else:
        est.fit(data=df, epochs=2, feature_cols=["image"], label_cols=["label"])
    predicted = est.predict(xshards)

    assert (type(est.engine).__name__, est.backend.sync) == ("SparkEngine", "sharded")
    if kind == "DataLoader":  # it gives the rows in a known order
        expected = trained(classifier(), lambda model: torch.optim.Adam(model.parameters(), 0.01), epochs=2)
        assert_same_weights(est.get_model(), expected)
    scores = np.concatenate([shard["prediction"] for shard in predicted.collect()])
    np.testing.assert_allclose(scores, answers(est.get_model()), atol=1e-5)
    np.testing.assert_allclose(in_order(est.predict(df, feature_cols=["image"])), scores, atol=1e-5)


@pytest.mark.parametrize("given", ["model creator", pytest.param("model", marks=pytest.mark.full)])
def test_3_pytorch_estimator_on_the_torch_distributed_backend(given: str, df: Any, ray_context: Any) -> None:
    """Ray trains, Spark holds the DataFrame to predict. Horovod has frameworks/torch/test_horovod.py."""
    from zoo.orca.learn.pytorch import Estimator

    def make_model(config: dict[str, Any]) -> nn.Module:
        model = classifier()
        model.train()
        return model

    def make_optimizer(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), config["lr"])

    est = Estimator.from_torch(
        model={"model creator": make_model, "model": classifier()}[given],
        optimizer=make_optimizer,
        loss=nn.NLLLoss(),
        config={"lr": 0.01},
        backend="torch_distributed",
    )
    est.fit(data=lambda config, batch_size: loader(BATCH), epochs=2)
    predicted = est.predict(data=df, feature_cols=["image"])

    assert (type(est.engine).__name__, est.backend.sync) == ("RayEngine", "replicated")
    expected = trained(classifier(), lambda model: torch.optim.Adam(model.parameters(), 0.01), epochs=2)
    np.testing.assert_allclose(in_order(predicted), answers(expected), atol=1e-5)


# 6. OpenVINO


def test_6_openvino_estimator(spark: Any, tmp_path: Path) -> None:
    """The model takes four images at a time: a row of the data is such a batch."""
    ov = pytest.importorskip("openvino")
    from openvino import opset13 as op

    from zoo.orca.data import XShards
    from zoo.orca.learn.openvino import Estimator

    draw = np.random.default_rng(0)
    colours = draw.normal(size=(3, 5)).astype(np.float32)
    image = op.parameter([4, 3, 8, 8], name="image")
    scores = op.matmul(op.reduce_max(image, np.array([2, 3])), colours, False, False)
    model_path = str(tmp_path / "colours.xml")
    ov.save_model(ov.Model([scores], [image]), model_path, compress_to_fp16=False)

    est = Estimator.from_openvino(model_path=model_path)
    batches = draw.random((20, 4, 3, 8, 8))
    result = est.predict(batches)
    answered = est.predict(XShards.partition({"x": batches}))

    expected = batches.max(axis=(3, 4)) @ colours
    np.testing.assert_allclose(result, expected, atol=1e-5)
    parts = answered.collect()
    assert {tuple(sorted(part)) for part in parts} == {("prediction", "x")}
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts]), batches)
    np.testing.assert_allclose(np.concatenate([part["prediction"] for part in parts]), expected, atol=1e-5)
