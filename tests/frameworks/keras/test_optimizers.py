from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from orca.errors import ArgumentError
from orca.frameworks.keras.optimizers import (
    OptimizerState,
    optimizer_state,
    optimizer_states,
    optimizers_of,
    set_optimizer_state,
    set_optimizer_states,
    unkept,
)
from orca.frameworks.keras.travel import set_weights, weights_of

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")).astype("float32")


def dense(family: Any, optimizer: Any) -> Any:
    family.utils.set_random_seed(1)
    model = family.Sequential([family.layers.Dense(3, "tanh", input_shape=(4,)), family.layers.Dense(1)])
    model.compile(optimizer, "mse", run_eagerly=True)  # to trace takes longer than six steps
    return model


OPTIMIZERS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "SGD": (keras, lambda: keras.optimizers.SGD(0.05, momentum=0.9)),
    **{
        name: (keras, lambda name=name: getattr(keras.optimizers, name)(0.05))
        for name in ("Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Lamb")
        + ("Adafactor", *["Muon"] * (not keras.__version__.startswith("3.11.")))  # which fails there
    },
    "Ema": (keras, lambda: keras.optimizers.Adam(0.05, use_ema=True, gradient_accumulation_steps=2)),
    "LossScale": (keras, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.05))),
    "Schedule": (keras, lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))),
    "OldAdam": (tf_keras, lambda: tf_keras.optimizers.Adam(0.05)),
    "OldSGD": (tf_keras, lambda: tf_keras.optimizers.SGD(0.05, momentum=0.9)),
    "OldLossScale": (tf_keras, lambda: tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Adam(0.05))),
    "LegacySGD": (tf_keras, lambda: tf_keras.optimizers.legacy.SGD(0.05)),
    "LegacyAdam": (tf_keras, lambda: tf_keras.optimizers.legacy.Adam(0.05)),
    "LegacyLossScale": (
        tf_keras,
        lambda: tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.legacy.Adam(0.05)),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_it_had_not_stopped(name: str) -> None:
    family, make = OPTIMIZERS[name]

    def train(model: Any) -> None:
        for start in (0, 8, 16):
            model.train_on_batch(X[start : start + 8], Y[start : start + 8])

    unbroken = dense(family, make())
    train(unbroken)
    if name != "Schedule":
        rate = unbroken.optimizer.inner_optimizer if "LossScale" in name else unbroken.optimizer
        family.backend.set_value(rate.learning_rate, 0.03) if family is tf_keras else setattr(
            rate, "learning_rate", 0.03
        )
    weights, states = weights_of(unbroken), optimizer_states(unbroken)
    train(unbroken)

    again = dense(family, make())
    again.set_weights([array * 0 for array in again.get_weights()])
    set_weights(again, weights)
    set_optimizer_states(again, states)
    train(again)
    for one, other in zip(again.get_weights(), unbroken.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)

    forgetful = dense(family, make())
    set_weights(forgetful, weights)
    train(forgetful)
    assert any(
        not np.allclose(one, other, rtol=1e-5)
        for one, other in zip(forgetful.get_weights(), unbroken.get_weights(), strict=True)
    )


def test_the_state_of_another_optimizer_is_an_error() -> None:
    state = optimizer_state(dense(keras, "sgd"))
    assert state is not None
    with pytest.raises(ArgumentError, match="the optimizer Adam has 10 variables, but 2 came"):
        set_optimizer_state(dense(keras, "adam"), state)


class Helper:
    """An object of the user's that holds an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.inside = {"deep": [optimizer]}


@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_optimizers_of_a_model_are_known_by_their_places(family: Any) -> None:
    model, adam = dense(family, "sgd"), family.optimizers.Adam
    model.critic_optimizer, model.more, model.helper = adam(), {"a": adam()}, Helper(adam())
    model.layers[0].probe = adam()
    model.again = model.critic_optimizer
    names = list(optimizers_of(model))
    assert names[:3] == ["optimizer", "critic_optimizer", "more.a"] and "helper.inside.deep.0" in names
    assert len(names) == 5 and any(name.endswith(".probe") for name in names)


KINDS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "Adam": (keras, lambda: keras.optimizers.Adam(0.05)),
    "Old": (tf_keras, lambda: tf_keras.optimizers.Adam(0.05)),
    "Legacy": (tf_keras, lambda: tf_keras.optimizers.legacy.Adam(0.05)),
}


@pytest.mark.parametrize("name", KINDS)
def test_optimizers_that_step_parts_of_the_weights_come_back(name: str) -> None:
    family, make = KINDS[name]

    def made() -> Any:
        model = dense(family, make())
        model.second, model.idle = make(), make()
        return model

    def step(model: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(X) - Y))
        body, head = (layer.trainable_variables[::-1] for layer in model.layers)
        gradients = tape.gradient(loss, [*body, *head])
        model.optimizer.apply_gradients(zip(gradients[:2], body, strict=True))
        model.second.apply_gradients(zip(gradients[2:], head, strict=True))

    first, again = made(), made()
    step(first)
    states = optimizer_states(first)
    assert [state.weights for state in states.values()] == [[1, 0], [3, 2], None]
    set_weights(again, weights_of(first))
    set_optimizer_states(again, states)
    for _ in range(2):
        step(first)
        step(again)
    for one, other in zip(again.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert unkept(first, [first.optimizer, first.second]) == []


def test_optimizers_that_cannot_be_kept_are_named() -> None:
    model, stray, own = dense(keras, "sgd"), keras.optimizers.Adam(), keras.Variable(1.0)
    model.temper = keras.optimizers.SGD()
    model.temper.build([own])
    assert unkept(model, [model.optimizer, model.temper, stray]) == [
        "temper (SGD), which steps variables that are not the model's weights",
        "Adam, which is no attribute of the model",
    ]
    with pytest.raises(ArgumentError, match=r"state of the optimizers \['gone'\], but the model .* holds \['optimizer"):
        set_optimizer_states(dense(keras, "sgd"), {"gone": OptimizerState(None, [])})
    with pytest.raises(ArgumentError, match=r"the optimizer SGD stepped weight 9, but the model .* has 4"):
        set_optimizer_states(dense(keras, "sgd"), {"optimizer": OptimizerState([9], [])})
