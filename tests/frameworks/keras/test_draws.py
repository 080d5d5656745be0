from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from orca.frameworks.keras.draws import StepDraws


def drawing(family: Any) -> Any:
    """Return a model that draws twice without a seed and twice with one."""
    layers = family.layers
    given = [layers.GaussianNoise(1.0), layers.GaussianNoise(1.0), *(layers.GaussianNoise(1.0, seed=8) for _ in "ab")]
    inputs = family.Input((50,))
    return family.Model(inputs, [layer(inputs) for layer in given])


def drawn_by(model: Any, width: int, rank: int = 0) -> Any:
    """Return a function of (epoch, step) that runs the model's graph."""
    draws = StepDraws(model, 3, rank)

    @tf.function
    def run() -> Any:
        draws.enter()
        return model(tf.zeros((1, width)), training=True)

    def at(epoch: int, step: int) -> np.ndarray:
        draws.set_step(epoch, step)
        return np.stack(run())

    return at


@pytest.mark.parametrize("family", [keras, tf_keras])
def test_each_step_draws_from_seed_epoch_rank_and_step(family: Any) -> None:
    first, again, other = (drawn_by(drawing(family), 50, rank) for rank in (0, 0, 1))
    numbers = [first(1, 0), first(1, 1), first(2, 0), other(1, 0)]
    for left in range(4):
        for right in range(left):
            assert (np.abs(numbers[left] - numbers[right]).max(axis=-1) > 0.5).all()
    assert np.array_equal(again(1, 1), numbers[1])  # another process, which has not seen the steps before
    assert np.array_equal(first(1, 1), numbers[1])
    one, two, three, four = numbers[0]
    assert np.array_equal(three, four) and not np.array_equal(one, two)  # as their seeds are


def test_random_numbers_without_a_generator_are_those_of_the_step_too() -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Lambda(lambda x: x + keras.random.normal((4,)))(inputs))
    at = drawn_by(model, 4)
    assert np.array_equal(at(1, 4), at(1, 4)) and not np.array_equal(at(1, 4), at(1, 5))
