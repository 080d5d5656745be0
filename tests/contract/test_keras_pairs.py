"""Keras pairs: every two options of a Keras model and its fit that go together, on any number of ranks.

A row of the table sets all options at once; the rows are chosen so that every two values of two options meet in one of
them. Steps have uneven parts, the last of them a single row, so that ranks are idle. Each row trains as one process
does. What Keras itself refuses is not in the table.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf

from contract.keras_truth import assert_same_training, doubles

pytestmark = pytest.mark.timeout(600)  # a row trains on one, two and three ranks, and the rest once more
SEED = 5
ROWS, BATCH = 22, 7
X = np.random.default_rng(0).normal(size=(ROWS, 4))
Y = np.random.default_rng(1).integers(0, 3, ROWS)
WEIGHTS = np.random.default_rng(2).uniform(0.1, 3, ROWS)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "reduction": ("sum_over_batch_size", "sum", "mean_with_sample_weight", None),
    "mask": (None, "layer", "class"),
    "weights": (None, "sample", "class"),
    "norm": (False, True),
    "mixed": (False, True),
    "accumulate": (None, 2),
    "clip": ({}, {"clipnorm": 0.5}, {"clipvalue": 0.1}, {"global_clipnorm": 0.5}),
    "ema": (False, True),
    "outputs": (1, 2),
    "frozen": (False, True),
    "penalty": (None, "weights", "activity", "added"),
    "own_step": (False, True),
    "schedule": (False, True),
    "steps_per_epoch": (None, 3),
    "eager": (True, False),
    "keeps": (None, "checkpoints", "resumed"),
    "callback": (None, "changes"),
}
Row = dict[str, Any]


def refused(row: Row) -> bool:
    """Say whether Keras has no such model.

    Weights of classes are for one output, a vector takes no penalty, and nobody changes the rate of a schedule.
    """
    vector = row.get("reduction", "sum") is None
    return (
        (row.get("weights") == "class" and row.get("outputs") == 2)
        or (vector and bool(row.get("penalty")))
        or (bool(row.get("schedule")) and bool(row.get("callback")))
    )


def table(seed: int) -> list[Row]:
    """Return rows in which every two values that may meet do meet."""
    generator = random.Random(seed)
    wanted = {
        (one, i, other, j)
        for one, other in combinations(OPTIONS, 2)
        for i in range(len(OPTIONS[one]))
        for j in range(len(OPTIONS[other]))
        if not refused({one: OPTIONS[one][i], other: OPTIONS[other][j]})
    }
    rows: list[Row] = []
    while wanted:
        candidates = []
        while len(candidates) < 30:
            one, i, other, j = generator.choice(sorted(wanted))
            numbers = {name: generator.randrange(len(values)) for name, values in OPTIONS.items()} | {one: i, other: j}
            if not refused({name: OPTIONS[name][number] for name, number in numbers.items()}):
                covered = {pair for pair in wanted if numbers[pair[0]] == pair[1] and numbers[pair[2]] == pair[3]}
                candidates.append((len(covered), len(candidates), numbers, covered))
        _, _, numbers, covered = max(candidates, key=lambda candidate: candidate[:2])
        wanted -= covered
        rows.append({name: OPTIONS[name][number] for name, number in numbers.items()})
    return rows


class Changes(keras.callbacks.Callback):
    """A callback that changes rate and weights, by what it counts itself, wherever Keras calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._slow_down(0.9)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self._slow_down(0.8**self.epochs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._slow_down(0.95)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([0.9 * weight for weight in self.model.get_weights()])

    def _slow_down(self, factor: float) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * factor


class Hide(keras.layers.Layer):
    """A mask that hides rows."""

    def call(self, x: Any) -> Any:
        return x

    def compute_mask(self, x: Any, previous: Any = None) -> Any:
        return x[:, 0] > -0.3


class Adds(keras.layers.Layer):
    """A layer that adds a mean and a sum over rows to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        return x

    def compute_mask(self, x: Any, previous: Any = None) -> Any:
        return previous


class OwnStep(keras.Model):
    """A model with a train_step of its own, which adds a mean over rows to the loss."""

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs, weights)
            if loss.shape.rank == 0:
                loss += 0.1 * tf.reduce_mean(tf.cast(tf.square(keras.tree.flatten(outputs)[0]), loss.dtype))
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, outputs, weights)


def model_of(row: Row, config: Any) -> Any:
    """Return the model of a row, with the same weights each time."""
    layers = keras.layers
    penalized = {"weights": {"kernel_regularizer": "l2"}, "activity": {"activity_regularizer": "l2"}}
    policy = "mixed_float16" if row["mixed"] else None  # Keras' own setting is of a thread
    inputs = keras.Input((4,))
    body = Hide()(inputs) if row["mask"] == "layer" else inputs
    body = layers.Dense(5, "tanh", dtype=policy, trainable=not row["frozen"])(body)
    if row["norm"]:
        body = layers.BatchNormalization(momentum=0.7, dtype=policy)(body)
    plain = policy and "float32"  # Keras itself cannot add a half to a loss
    body = layers.Dense(4, "tanh", dtype=plain if row["penalty"] else policy, **penalized.get(row["penalty"], {}))(body)
    if row["penalty"] == "added":
        body = Adds(dtype=plain)(body)
    heads = [layers.Dense(3, name=f"head{n}", dtype=plain)(body) for n in range(row["outputs"])]
    model = (OwnStep if row["own_step"] else keras.Model)(inputs, heads if len(heads) > 1 else heads[0])
    generator = np.random.default_rng(3)
    model.set_weights([np.abs(generator.normal(size=weight.shape)) / 2 for weight in model.get_weights()])
    rate: Any = 0.02 if row["reduction"] in (None, "sum") else 0.1
    optimizer = keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(rate, 3, 0.5) if row["schedule"] else rate,
        momentum=0.9,
        gradient_accumulation_steps=row["accumulate"],
        use_ema=row["ema"],
        ema_momentum=0.8,
        ema_overwrite_frequency=3 if row["ema"] else None,
        **row["clip"],
    )
    if row["mixed"]:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**8)
    ignored = 0 if row["mask"] == "class" else None
    losses = [
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored, reduction=row["reduction"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=row["reduction"]),
    ]
    model.compile(optimizer, loss=losses if len(heads) > 1 else losses[0], metrics=None, run_eagerly=row["eager"])
    return model


def data_of(row: Row) -> Any:
    labels = (Y, Y[::-1].copy()) if row["outputs"] == 2 else Y
    parts: tuple[Any, ...] = (X, labels)
    if row["weights"] == "sample":
        parts = (X, labels, (WEIGHTS, WEIGHTS[::-1].copy()) if row["outputs"] == 2 else WEIGHTS)

    def creator(config: Any, batch_size: int) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(parts).batch(batch_size)
        return dataset.repeat() if row["steps_per_epoch"] else dataset

    return creator


def check(row: Row, ranks: tuple[int, ...]) -> None:
    options: dict[str, Any] = {"epochs": 2, "steps_per_epoch": row["steps_per_epoch"]}
    if row["callback"]:
        options["callbacks"] = [Changes()]
    if row["weights"] == "class":
        options["class_weight"] = {0: 0.5, 1: 2.0, 2: 1.0}
    with nullcontext() if row["mixed"] else doubles():
        tolerance = 1e-2 if row["mixed"] else 1e-6 if row["schedule"] else 1e-8
        # Keras' mean of losses of reduction=None counts a step by the square of its rows.
        apart_from = ("loss",) if row["reduction"] is None else ()
        creator = partial(model_of, row)
        assert_same_training(creator, data_of(row), ranks, BATCH, tolerance, apart_from, row["keeps"], **options)


TABLE = table(SEED)


@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.full)])
def test_pairs_of_options_train_as_one_process(number: int) -> None:
    check(TABLE[number], (2 + number % 2,))


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(TABLE)))
def test_every_pair_of_options_trains_as_one_process(number: int) -> None:
    check(TABLE[number], (1, 2, 3))
