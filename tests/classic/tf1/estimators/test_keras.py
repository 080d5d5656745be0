"""Keras models in programs of TensorFlow 1: those built eagerly here; those of a graph in programs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf

from classic.tf1.graphs import CLASSES, ROWS, X, Y
from orca.errors import ArgumentError
from orca.triggers import MaxEpoch
from orca_classic.tf1.tfpark import KerasModel, TFDataset, TFOptimizer, TFPredictor
from orca_classic.zoo.tf1 import Estimator
from programs import run_program

WIDTH = X.shape[1]


def model() -> Any:
    start = [keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2)]
    made = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(8, activation="tanh", kernel_initializer=start[0]),
            keras.layers.Dense(CLASSES, activation="softmax", kernel_initializer=start[1]),
        ]
    )
    made.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def plain(epochs: int) -> Any:
    made = model()
    made.fit(X, Y, batch_size=ROWS, epochs=epochs, verbose=0)
    return made


def assert_same_weights(one: Any, other: Any) -> None:
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_a_model_of_today_trains_and_keeps_its_weights(tmp_path: Path) -> None:
    made = model()
    est = Estimator.from_keras(made, backend="local", workers_per_node=2)
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    assert est.fit(rows, epochs=3, batch_size=ROWS) is est
    assert est.get_model() is made
    truth = plain(3)
    assert_same_weights(made, truth)
    loss, accuracy = truth.evaluate(X, Y, verbose=0)
    assert est.evaluate((X, Y)) == pytest.approx({"loss": loss, "accuracy": accuracy}, abs=1e-5)
    est.save_keras_model(str(tmp_path / "model.keras"))
    again = Estimator.load_keras_model(str(tmp_path / "model.keras"))
    np.testing.assert_allclose(again.predict(X), truth.predict(X, verbose=0), atol=1e-5)
    weights = [value * 0 for value in made.get_weights()]
    made.set_weights(weights)  # what the program gives the model counts
    np.testing.assert_allclose(est.predict(X), 1 / 3, atol=1e-6)


def test_tfpark_takes_models_of_today() -> None:
    made = model()
    data = TFDataset.from_ndarrays((X, Y), batch_size=ROWS, val_tensors=(X, Y))
    optimizer = TFOptimizer.from_keras(made, data, backend="local", workers_per_node=2)
    optimizer.optimize(end_trigger=MaxEpoch(2))
    assert_same_weights(made, plain(2))
    assert optimizer.sess is None
    park = KerasModel(made, backend="local")
    park.fit(X, Y, batch_size=ROWS, epochs=1, verbose=0)  # here, by Keras itself
    scores = park.evaluate(TFDataset.from_ndarrays((X, Y), batch_per_thread=8))
    assert scores["loss"] == pytest.approx(park.evaluate(X, Y)["loss"], abs=1e-5)
    answers = TFPredictor.from_keras(made, TFDataset.from_ndarrays(X, batch_per_thread=8), backend="local").predict()
    rows = answers.collect() if hasattr(answers, "collect") else answers  # other tests may have started a Spark
    np.testing.assert_allclose(np.array(rows), park.predict(X), atol=1e-5)
    with pytest.raises(ArgumentError, match="The batch_size of TFDataset must be specified"):
        park.fit(TFDataset.from_ndarrays((X, Y)))
    with pytest.raises(ArgumentError, match="val_split=0.2 is not supported"):
        TFOptimizer.from_keras(made, data, val_split=0.2)


@pytest.mark.full
def test_a_model_that_is_built_in_a_graph_trains_there(tmp_path: Path) -> None:
    text = Path(__file__).parents[1].joinpath("tfpark", "keras_graph.py").read_text()
    assert run_program(text, args=[str(tmp_path)]).stdout.splitlines() == [
        "graph mode True",
        "as Keras itself True",
        "scores True ['accuracy', 'loss', 'mae']",
        "predictions True",
        "weights True",
        "metrics by output ['loss', 'q_accuracy', 'q_mae'] True",
        "checkpoint True",
        "model True",
        "optim method True",
    ]
