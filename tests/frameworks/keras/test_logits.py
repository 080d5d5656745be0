"""Logits: metrics of Keras that would misread them are named, and what is advised reads them right."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tf_keras

from orca import Estimator
from orca.frameworks.keras.logits import advice_on_metrics

X = np.linspace(-1, 1, 40, dtype="float32")[:, None]
Y = (X > 0).astype("float32")


def model_of(family: Any, loss: Any, *metrics: Any, outputs: int = 1) -> Any:
    """Return a model of logits that is right for each row, by construction."""
    model = family.Sequential([family.Input((1,)), family.layers.Dense(outputs, use_bias=False)])
    model.set_weights([np.full((1, outputs), 0.7)])
    model.compile("sgd", loss, metrics=list(metrics))
    return model


@pytest.fixture(params=[keras, tf_keras], ids=["keras", "tf_keras"])
def family(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("loss", ["BinaryCrossentropy", "BinaryFocalCrossentropy"])
def test_metrics_that_misread_logits_are_named_with_those_that_do_not(family: Any, loss: str) -> None:
    losses, metrics = family.losses, family.metrics
    logits = getattr(losses, loss)(from_logits=True)
    wrong = [
        "accuracy",
        "binary_accuracy",
        metrics.BinaryAccuracy(),
        metrics.Precision(),
        metrics.Recall(),
        metrics.AUC(),
    ]
    advice = advice_on_metrics(model_of(family, logits, *wrong))
    assert len(advice) == len(wrong) and all(f"{loss}(from_logits=True)" in line for line in advice)
    calls = dict.fromkeys(line.partition("Pass keras.")[2].removesuffix(" instead.") for line in advice)
    advised = [eval(call, {"metrics": metrics}) for call in calls]
    right = model_of(family, logits, *advised)
    assert advice_on_metrics(right) == []
    values = right.evaluate(X, Y, verbose=0, return_dict=True)
    values.pop("loss")
    assert len(values) == 4 and np.round(list(values.values()), 6).tolist() == [1.0] * 4


def test_metrics_that_fit_are_left_alone(family: Any) -> None:
    losses, metrics = family.losses, family.metrics
    logits = losses.BinaryCrossentropy(from_logits=True)
    assert advice_on_metrics(model_of(family, losses.BinaryCrossentropy(), "accuracy", metrics.AUC())) == []
    assert advice_on_metrics(model_of(family, "binary_crossentropy", "accuracy")) == []
    assert advice_on_metrics(model_of(family, logits, "mae", metrics.BinaryAccuracy(threshold=0.2))) == []
    classes = losses.SparseCategoricalCrossentropy(from_logits=True)
    assert advice_on_metrics(model_of(family, classes, "accuracy", outputs=3)) == []
    entropy = metrics.SparseCategoricalCrossentropy
    assert advice_on_metrics(model_of(family, classes, entropy(from_logits=True), outputs=3)) == []
    (line,) = advice_on_metrics(model_of(family, classes, entropy(), outputs=3))
    assert "Pass keras.metrics.SparseCategoricalCrossentropy(from_logits=True)" in line
    assert advice_on_metrics(family.Sequential([family.Input((1,)), family.layers.Dense(1)])) == []


def test_an_evaluation_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of(keras, keras.losses.BinaryCrossentropy(from_logits=True), "accuracy")
    with caplog.at_level(logging.WARNING):
        Estimator.from_keras(keras_model=model, backend="local", workers_per_node=2).evaluate((X, Y), batch_size=8)
    assert sum("takes the outputs for probabilities" in record.getMessage() for record in caplog.records) == 1
