"""Keras truth: what training a Keras model on n ranks must equal. Owns the models, the cases and the plain loop.

The rows, and how they are dealt to ranks, are those of truth.py. One run trains all cases on the same ranks through the
FitJob that KerasEstimator.fit sends; one process then trains on the same global batches with model.train_on_batch.
"""

from __future__ import annotations

import copy
import importlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import cloudpickle
import keras
import numpy as np
import tf_keras

from contract.truth import BATCH, FITS, SEED, rows_for, steps_of
from orca.core.feed import Feed
from orca.core.learner import FitPlan
from orca.core.triggers import SeveralIteration
from orca.core.world import World
from orca.estimators.keras import KerasEstimator
from orca.frameworks.keras.learner import KerasLearner
from orca.job import FitJob
from orca.monitor.heartbeat import Heartbeat
from orca.storage.checkpoints import newest_run, versions

# Models.


@contextmanager
def doubles() -> Iterator[None]:
    """Let Keras compute in doubles, where a mistake cannot hide behind rounding."""
    compute_in("float64")
    try:
        yield
    finally:
        compute_in("float32")


def compute_in(kind: str) -> None:
    for family in (keras, tf_keras):
        family.backend.set_floatx(kind)
        family.mixed_precision.set_global_policy(kind)


def compiled(model: Any, optimizer: Any = None, loss: Any = "binary_crossentropy", **options: Any) -> Any:
    """Return the model, compiled with metrics that are means and one that is not."""
    metrics = options.pop("metrics", ["accuracy", "mae", library(model).metrics.AUC(name="auc")])
    optimizer = library(model).optimizers.Adam(0.05) if optimizer is None else optimizer
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics, **options)
    return model


def library(model: Any) -> Any:
    """Return the Keras a model is of."""
    return tf_keras if isinstance(model, tf_keras.Model) else keras


def layers_of(family: Any, *middle: Any, regularizer: Any = None) -> Any:
    """Return a perceptron with more layers in its middle."""
    dense = family.layers.Dense
    head = dense(1, activation="sigmoid")
    return family.Sequential([family.Input((4,)), dense(5, "tanh", kernel_regularizer=regularizer), *middle, head])


def perceptron(config: Any) -> Any:
    return compiled(layers_of(keras))


def regularized(config: Any) -> Any:
    return compiled(layers_of(keras, regularizer="l2"), keras.optimizers.SGD(0.3, momentum=0.9))


def clipped_by_norm(config: Any) -> Any:
    return compiled(layers_of(keras), keras.optimizers.SGD(0.3, clipnorm=0.05))


def clipped_by_value(config: Any) -> Any:
    return compiled(layers_of(keras), keras.optimizers.SGD(0.3, clipvalue=0.02))


def clipped_together(config: Any) -> Any:
    return compiled(layers_of(keras), keras.optimizers.Adam(0.05, global_clipnorm=0.05))


def frozen(config: Any) -> Any:
    model = layers_of(keras)
    model.layers[0].trainable = False
    return compiled(model)


def normed(config: Any) -> Any:
    return compiled(layers_of(keras, keras.layers.BatchNormalization(momentum=0.7)))


def summed(config: Any) -> Any:
    """Add a loss that is a sum over rows to one that is not: the penalty counts once."""
    loss = keras.losses.BinaryCrossentropy(reduction="sum")
    return compiled(layers_of(keras, regularizer="l2"), keras.optimizers.SGD(0.05), loss)


def accumulating(config: Any) -> Any:
    return compiled(layers_of(keras), keras.optimizers.Adam(0.05, gradient_accumulation_steps=2))


def averaging(config: Any) -> Any:
    return compiled(layers_of(keras), keras.optimizers.SGD(0.3, use_ema=True, ema_overwrite_frequency=4))


def scheduled(config: Any) -> Any:
    return compiled(layers_of(keras), keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 3, 0.7)))


def eager(config: Any) -> Any:
    return compiled(layers_of(keras), run_eagerly=True)


def two_headed(config: Any) -> Any:
    """Have two outputs, with a loss and a weight each; both are compared with the same labels."""
    inputs = keras.Input((4,))
    body = keras.layers.Dense(5, "tanh")(inputs)
    heads = [keras.layers.Dense(1, "sigmoid", name=name)(body) for name in ("left", "right")]
    joined = keras.layers.Concatenate()(heads)
    return compiled(keras.Model(inputs, joined), loss=both_heads, metrics=["mae"])


def both_heads(y_true: Any, y_pred: Any) -> Any:
    return keras.losses.mean_squared_error(y_true, y_pred[:, :1]) + 0.3 * abs(y_true[:, 0] - y_pred[:, 1])


class Each(keras.losses.Loss):
    """Give a loss for every time step, so that the mask of the output decides which of them count."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(keras.ops.squeeze(y_pred, -1) - y_true)


class Short(keras.layers.Layer):
    """Set small numbers to zero: the time steps that Masking hides, another number of them in each row."""

    def call(self, x: Any) -> Any:
        return keras.ops.where(x < 0.4, 0.0, x)[..., None]


def masked(config: Any) -> Any:
    layers = [keras.Input((4,)), Short(), keras.layers.Masking(), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
    return compiled(keras.Sequential(layers), loss=Each(), metrics=[])


class Bucket(keras.layers.Layer):
    """Turn numbers into the numbers of buckets."""

    def call(self, x: Any) -> Any:
        return keras.ops.cast(keras.ops.floor(x * 6), "int32")


def embedding(config: Any) -> Any:
    """Have sparse gradients, which are zero for most rows of a table."""
    table, flat = keras.layers.Embedding(6, 3), keras.layers.Flatten()
    layers = [keras.Input((4,)), Bucket(), table, flat, keras.layers.Dense(1, "sigmoid")]
    return compiled(keras.Sequential(layers))


class Own(keras.Model):
    """A subclassed model without a known input shape, and with a train_step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = keras.layers.Dense(5, "tanh"), keras.layers.Dense(1, "sigmoid")

    def call(self, x: Any) -> Any:
        return self.head(self.body(x))

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            output = self(x, training=True)
            loss = self.compute_loss(x, y, output) * 2.0
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, output)


def own_step(config: Any) -> Any:
    return compiled(Own())


def mixed(config: Any) -> Any:
    """Compute in half precision, with a scaled loss."""
    family = keras.layers
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    layers = [keras.Input((4,)), family.Dense(5, "tanh", dtype=policy), family.Dense(1, "sigmoid", dtype="float32")]
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**8)
    return compiled(keras.Sequential(layers), optimizer)


def old(config: Any) -> Any:
    return compiled(layers_of(tf_keras, regularizer="l2"), tf_keras.optimizers.Adam(0.05, clipnorm=0.1))


def old_normed(config: Any) -> Any:
    norm = tf_keras.layers.BatchNormalization(momentum=0.7)
    return compiled(layers_of(tf_keras, norm), tf_keras.optimizers.legacy.SGD(0.3, momentum=0.9))


def old_pictures(config: Any) -> Any:
    """Normalize pictures in single precision, for which tf_keras has a kernel of its own."""
    layers = tf_keras.layers
    norm = layers.BatchNormalization(momentum=0.7, dtype="float32")
    parts = [tf_keras.Input((4,), dtype="float32"), layers.Reshape((2, 2, 1)), norm, layers.Flatten()]
    return compiled(tf_keras.Sequential([*parts, layers.Dense(1, "sigmoid", dtype="float32")]))


@dataclass(frozen=True)
class Make:
    """Create a perceptron with an optimizer of Keras by its name."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    family: str = "keras"

    def __str__(self) -> str:
        return "-".join([self.family, self.name, *(name for name, _ in self.options)])

    def __call__(self, config: Any) -> Any:
        family = importlib.import_module(self.family)
        place = family.optimizers
        for part in self.name.split("."):
            place = getattr(place, part)
        return compiled(layers_of(family), place(0.05, **dict(self.options)))


OPTIMIZERS = [
    Make("SGD", (("momentum", 0.9), ("nesterov", True), ("weight_decay", 0.01))),
    Make("Adam", (("amsgrad", True),)),
    *(Make(name) for name in ("AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "Ftrl", "Lion", "Adafactor", "Lamb")),
    Make("RMSprop", (("centered", True), ("momentum", 0.5))),
    Make("Muon"),
    *(Make(name, family="tf_keras") for name in ("RMSprop", "Nadam", "legacy.Adam", "legacy.Adagrad")),
]


# Cases.


@dataclass(frozen=True)
class Case:
    """Say what to train: which rows, which model, with which weights."""

    name: str
    part: str
    model: Callable[[Any], Any]
    batch_size: int = BATCH
    class_weight: tuple[tuple[int, float], ...] = ()

    @property
    def tolerance(self) -> float:
        """Return how far rounding may carry the numbers."""
        # Schedules are of floats; masked means add up in an order of Keras' own.
        return {mixed: 5e-3, old_pictures: 1e-4, scheduled: 1e-6, masked: 1e-8}.get(self.model, 1e-9)


def cases() -> list[Case]:
    """Return a case for all that can go wrong between ranks."""
    shapes = [Case(f"{part}-perceptron", part, perceptron) for part in ("even", "uneven", "empty", "few")]
    norms = [Case(f"{part}-normed", part, normed) for part in ("uneven", "empty")]
    kinds = (
        regularized,
        clipped_by_norm,
        clipped_by_value,
        clipped_together,
        frozen,
        summed,
        masked,
        embedding,
        own_step,
    )
    more = (accumulating, averaging, scheduled, eager, two_headed, mixed, old, old_normed, old_pictures)
    uneven = [Case(kind.__name__, "uneven", kind) for kind in (*kinds, *more)]
    empty = [Case(f"empty-{kind.__name__}", "empty", kind) for kind in (masked, summed, old_normed, old_pictures)]
    return [
        *shapes,
        *norms,
        *uneven,
        *empty,
        Case("class_weight", "uneven", perceptron, class_weight=((0, 0.2), (1, 3))),
    ]


def optimizer_cases() -> list[Case]:
    """Return a case for each optimizer there is."""
    missing = "Muon" if keras.__version__.startswith("3.11.") else ""  # there, but it fails
    return [Case(str(make), "uneven", make) for make in OPTIMIZERS if make.name != missing]


# What runs on the ranks.


@dataclass
class Outcome:
    """Bring back what a case ended with on one rank, and its rows of every step of every epoch."""

    steps: list[list[np.ndarray]]
    valid: list[np.ndarray]
    lines: list[dict[str, Any]]
    weights: list[np.ndarray] | None


@dataclass(frozen=True)
class KerasTruthJob:
    """Train all cases one after the other, each in two fits."""

    cases: tuple[Case, ...]

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> dict[str, Outcome]:
        """Run on one rank."""
        with doubles():
            return {case.name: train(case, world, rows, heartbeat) for case in self.cases}


def train(case: Case, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> Outcome:
    """Train a case in two fits, the second from the state of the first, as an Estimator does."""
    parts = {"train": rows[case.part], "valid": rows["valid"]}
    lines, state = [], None
    for epochs in FITS:
        learner = KerasLearner.of(case.model, None, {}, True)
        learner.class_weight = dict(case.class_weight) or None
        learner = cloudpickle.loads(cloudpickle.dumps(learner))
        plan = FitPlan(epochs, case.batch_size, shuffle=True, seed=SEED)
        history, state = FitJob(learner, plan, (), state)(world, parts, heartbeat)
        state = cloudpickle.loads(world.broadcast(cloudpickle.dumps(state)))  # as the driver sends it
        lines += history.epochs
    feed = Feed(parts["train"], world, case.batch_size, shuffle=True, seed=SEED)
    valid = Feed(parts["valid"], world, case.batch_size, shuffle=False, seed=SEED)
    weights = state.payload["models"][0] if world.rank == 0 else None
    return Outcome(steps_of(feed, sum(FITS)), steps_of(valid, 1)[0], lines, weights)


# What one process makes of it.


@doubles()
def plain_loop(case: Case, steps: list[list[list[int]]], valid: list[list[int]]) -> tuple[list[dict[str, float]], Any]:
    """Train in this process with model.fit on the given rows; return statistics and the model.

    steps[epoch][step] and valid[step] hold row numbers.
    """
    for family in (keras, tf_keras):
        family.utils.set_random_seed(SEED)
    model = case.model({})
    model.run_eagerly = True  # of a few steps, tracing would take most of the time
    lines: list[dict[str, float]] = []
    for first, last in pairwise(accumulate([0, *FITS])):
        notes: list[dict[str, float]] = []
        history = model.fit(
            batches(case.part, [rows for epoch in steps[first:last] for rows in epoch], dict(case.class_weight)),
            epochs=last - first,
            steps_per_epoch=len(steps[0]),
            callbacks=[library(model).callbacks.LambdaCallback(on_epoch_end=partial(validate, model, valid, notes))],
            verbose=0,
            shuffle=False,
        ).history
        for epoch, logs in enumerate(notes):
            lines.append(logs | {f"train_{name}": values[epoch] for name, values in history.items()})
    return lines, model


def validate(model: Any, valid: list[list[int]], lines: list[dict[str, float]], *epoch: Any) -> None:
    """Evaluate as fit does, but with batches that nothing reads ahead of."""
    logs = model.evaluate(batches("valid", valid), steps=len(valid), verbose=0, return_dict=True)
    lines.append({f"val_{name}": float(value) for name, value in logs.items()})


def batches(part: str, steps: list[list[int]], class_weight: dict[int, float] | None = None) -> Iterator[Any]:
    """Yield the rows of each step, with their weights where classes have some."""
    x, y = rows_for(part)
    for rows in steps:
        weights = np.array([class_weight[int(label)] for label in y[rows, 0]]) if class_weight else None
        yield (x[rows], y[rows]) if weights is None else (x[rows], y[rows], weights)


def on_ranks(
    ranks: int, creator: Callable[[Any], Any], data: Any, keeps: str | None = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """Train on so many ranks, which compute in the precision of this process; return (model, statistics).

    With `keeps`, there are checkpoints on the way; "resumed" trains the rest once more, from the one after five steps.
    """
    kind = keras.backend.floatx()

    def precise(config: Any) -> Any:
        compute_in(kind)
        return creator(config)

    with tempfile.TemporaryDirectory() as folder:
        kept: dict[str, Any] = {"checkpoint_trigger": SeveralIteration(5)} if keeps else {}
        for resume in (False, True) if keeps == "resumed" else (False,):
            est = KerasEstimator.from_keras(
                model_creator=precise, backend="local", workers_per_node=ranks, model_dir=folder
            )
            stats = est.fit(data, resume=resume, **kept, **copy.deepcopy(options))
            assert versions(newest_run(folder)) == [5] if keeps else newest_run(folder) is None
    return est.get_model(), stats


def by_keras(creator: Callable[[Any], Any], data: Any, batch_size: int, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Train with Keras itself on the same batches; return (model, history)."""
    model = creator({})
    model.run_eagerly = True  # of a few steps, tracing would take most of the time
    return model, model.fit(data({}, batch_size), verbose=0, **options).history


def assert_same_training(
    creator: Callable[[Any], Any],
    data: Any,
    ranks: tuple[int, ...],
    batch_size: int,
    tolerance: float = 1e-8,
    apart_from: tuple[str, ...] = (),
    keeps: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check that ranks give the weights and the history that one process gives; return the last statistics."""
    model, history = by_keras(creator, data, batch_size, **copy.deepcopy(options))
    stats: dict[str, Any] = {}
    for size in ranks:
        trained, stats = on_ranks(size, creator, data, keeps, batch_size=batch_size, **options)
        for mine, theirs in zip(trained.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=f"{size} ranks")
        for name in history.keys() - set(apart_from):
            error = f"{name}, {size} ranks"
            np.testing.assert_allclose(stats[name], history[name], rtol=max(tolerance, 1e-6), err_msg=error)
    return stats
