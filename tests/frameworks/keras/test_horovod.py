from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tf_keras

from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, MissingDependency, WorkerFailed
from orca.estimators import Estimator
from orca.frameworks.keras.learner import KerasLearner
from orca.job import FitJob
from orca.rows.tree import flatten
from orca.testing import shards_of

built = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not built: make horovod")

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
WORDS = np.random.default_rng(1).integers(0, 9, size=(40, 1)).astype(np.float32)
Y = np.sin(X.sum(axis=1)).astype(np.float32)
DATA = np.concatenate([X, WORDS], axis=1)


def reader(config: dict[str, Any]) -> Any:
    """Return a model with batch normalization and an embedding, whose gradient is sparse; weights do not vary."""
    layers = tf_keras.layers
    start = tf_keras.initializers.GlorotUniform
    given = tf_keras.Input((5,))
    hidden = layers.Dense(6, kernel_initializer=start(1))(given[:, :4])
    hidden = layers.Activation("tanh")(layers.BatchNormalization()(hidden))
    word = layers.Embedding(9, 3, embeddings_initializer=start(2))(layers.Lambda(lambda x: x[:, 4])(given))
    output = layers.Dense(1, kernel_initializer=start(3))(layers.Concatenate()([hidden, word]))
    model = tf_keras.Model(given, output)
    optimizer = {
        "adam": lambda: tf_keras.optimizers.Adam(0.01),
        "momentum": lambda: tf_keras.optimizers.SGD(0.05, 0.9, clipnorm=0.5),
    }[config["optimizer"]]()
    model.compile(optimizer, loss="mse", metrics=["mae"])
    return model


def learner(sync: str, optimizer: str, creator: Callable[..., Any] = reader) -> KerasLearner:
    return KerasLearner.of(creator, None, {"optimizer": optimizer}, True, sync)


@dataclass(frozen=True)
class Fits:
    """Train several learners one after the other in the same processes."""

    learners: tuple[KerasLearner, ...]

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> list[Any]:
        plan = FitPlan(epochs=2, batch_size=8, shuffle=False)
        return [FitJob(each, plan, (), None)(world, rows, heartbeat) for each in self.learners]


def fit(*learners: KerasLearner, sizes: tuple[int, ...]) -> list[Any]:
    ends = np.cumsum(sizes)
    parts = [(DATA[end - size : end], Y[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
    return LocalEngine(len(sizes)).run(Fits(learners), shards_of(parts), Settings())[0]


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in flatten(tree)[0]]


def kept(state: Any) -> list[Any]:
    return [state.payload["models"], state.payload["optimizers"]]


@built
@pytest.mark.full
@pytest.mark.parametrize("sizes", [(40,), (34, 6)], ids=["1 rank", "2 ranks"])
def test_ranks_learn_what_they_learn_without_horovod(sizes: tuple[int, ...]) -> None:
    words = [(sync, optimizer) for optimizer in ("adam", "momentum") for sync in ("horovod", "replicated")]
    lines = fit(*(learner(*pair) for pair in words), sizes=sizes)
    for (history, state), (its_history, its_state) in (lines[:2], lines[2:]):
        for one, other in zip(leaves(kept(state)), leaves(kept(its_state)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        for line, its_line in zip(history.epochs, its_history.epochs, strict=True):
            assert line["train_loss"] == pytest.approx(its_line["train_loss"], abs=1e-5)
            assert line["train_mae"] == pytest.approx(its_line["train_mae"], abs=1e-5)


class Witness(tf_keras.Model):
    """A model that writes down how many ranks of Horovod there were when it was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = tf_keras.layers.Dense(1, kernel_initializer=tf_keras.initializers.GlorotUniform(1))
        self.ranks = self.add_weight(name="ranks", shape=(), trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            import horovod.tensorflow as horovod

            self.ranks.assign(float(horovod.size()) if horovod.is_initialized() else 0.0)
        return self.layer(x)


def witness(config: dict[str, Any]) -> Any:
    model = Witness()
    model.compile(tf_keras.optimizers.SGD(0.05, 0.9), loss="mse")
    return model


@built
@pytest.mark.full
def test_on_ray(ray_context: Any) -> None:
    est = Estimator.from_keras(model_creator=witness, backend="horovod", workers_per_node=2)
    assert est.engine.name == "ray"
    est.fit((X, Y), epochs=3, batch_size=len(X))
    expected = witness({})
    expected.fit(X, Y, epochs=3, batch_size=len(X), shuffle=False, verbose=0)
    given = est.get_model()
    assert float(given.ranks) == 2
    for one, other in zip(given.layer.get_weights(), expected.layer.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@built
def test_models_of_keras_3_name_the_backends_that_train_them() -> None:
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    with pytest.raises(ArgumentError, match="does not train models of Keras 3.* backend='ray' and backend='spark' do"):
        KerasLearner.of(model, None, {}, True, "horovod")


@built
@pytest.mark.slow
def test_creators_of_keras_3_models_name_them_too() -> None:
    def creator(config: dict[str, Any]) -> Any:
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
        return model

    with pytest.raises(WorkerFailed, match="does not train models of Keras 3"):
        fit(learner("horovod", "adam", creator), sizes=(40,))


def test_without_horovod_the_error_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "horovod"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "horovod", None)  # as if it were not installed
    message = "needs Horovod with its binding for tensorflow, .* Run `make horovod` .* backend='ray'"
    with pytest.raises(MissingDependency, match=message):
        Estimator.from_keras(model_creator=reader, backend="horovod")
