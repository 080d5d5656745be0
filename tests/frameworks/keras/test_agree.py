from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from contract.keras_truth import assert_same_training, doubles, on_ranks
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.engines.local import LocalEngine
from orca.errors import OrcaError
from orca.frameworks.keras.agree import Agreement
from orca.frameworks.keras.learner import KerasLearner
from orca.job import FitJob
from orca.testing import shards_of

X = np.random.default_rng(0).normal(size=(22, 4))
Y = (X @ np.array([1, -1, 2, 0.5]) > 0).astype(np.int64)
BATCH = 7  # three ranks get 3, 2 and 2 rows of a step; the last step has one row, and ranks without any


@pytest.fixture(autouse=True)
def in_doubles() -> Iterator[None]:
    """Compute in doubles, where a mistake cannot hide behind rounding."""
    with doubles():
        yield


def batched(*arrays: Any) -> Callable[..., Any]:
    return lambda config, batch_size: tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


assert_equal = partial(assert_same_training, ranks=(3,), batch_size=BATCH, epochs=2)


def perceptron(
    *middle: Any, loss: Any = "mse", family: Any = keras, head: Any = None, optimizer: Any = None, **options: Any
) -> Any:
    """Return a compiled model with the same weights each time, run eagerly."""
    layers = family.layers
    model = family.Sequential([family.Input((4,)), layers.Dense(3, "tanh"), *middle, head or layers.Dense(1)])
    return set_up(model, loss, optimizer, **options)


def set_up(model: Any, loss: Any, optimizer: Any = None, **options: Any) -> Any:
    family = tf_keras if isinstance(model, tf_keras.Model) else keras
    rng = np.random.default_rng(1)
    model.set_weights([np.abs(rng.normal(size=w.shape)) for w in model.get_weights()])
    model.compile(optimizer or family.optimizers.SGD(0.05, momentum=0.9), loss=loss, run_eagerly=True, **options)
    return model


class Short(keras.layers.Layer):
    """Set small numbers to zero: the time steps that Masking hides, another number of them in each row."""

    def call(self, x: Any) -> Any:
        return keras.ops.where(x < 0.0, 0.0, x)[..., None]


class Each(keras.losses.Loss):
    """A loss for every time step, so that the mask of the output decides which of them count."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.square(keras.ops.squeeze(y_pred, -1) - keras.ops.cast(y_true, y_pred.dtype)[:, None])


def masked(loss: Any = None, **dense: Any) -> Any:
    layers = [keras.Input((4,)), Short(), keras.layers.Masking(), keras.layers.Dense(3, "tanh", **dense)]
    return set_up(keras.Sequential([*layers, keras.layers.Dense(1)]), loss or Each())


# What a loss divides by


@pytest.mark.full
@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_loss_that_ignores_a_class_counts_the_others(family: Any) -> None:
    def creator(config: Any) -> Any:
        loss = family.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        return perceptron(head=family.layers.Dense(2), loss=loss, family=family)

    labels = Y.copy()
    labels[:3] = 0  # all rows of the first rank of three
    labels[3] = labels[-1] = 1
    assert_equal(creator, batched(X, labels))


@pytest.mark.parametrize("reduction", ["sum", "mean_with_sample_weight", None])
def test_every_reduction_gives_the_gradient_of_one_process(reduction: Any) -> None:
    def creator(config: Any) -> Any:
        norm = keras.layers.BatchNormalization(momentum=0.7)
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        optimizer = keras.optimizers.SGD(0.003, clipnorm=0.5)
        return perceptron(norm, loss=loss, optimizer=optimizer)

    weights = np.linspace(0, 3, len(X))
    # Steps of one size: of reduction=None Keras shows a mean that counts a step by the square of its rows.
    data = batched(X[:21], Y[:21], weights[:21])
    assert_equal(creator, data)


@pytest.mark.full
@pytest.mark.parametrize("loss", ["mean", "sum", "mean_with_sample_weight", "masked", "old"])
def test_activity_counts_as_in_one_process(loss: str) -> None:
    def creator(config: Any) -> Any:
        if loss == "masked":
            return masked(activity_regularizer="l2", kernel_regularizer="l2")
        family: Any = tf_keras if loss == "old" else keras
        extra = family.layers.Dense(3, activity_regularizer="l2", kernel_regularizer="l1")
        reduction = "sum" if loss == "old" else loss
        optimizer = family.optimizers.SGD(0.003)
        loss_object = family.losses.MeanSquaredError(reduction=reduction)
        return perceptron(extra, loss=loss_object, family=family, optimizer=optimizer)

    assert_equal(creator, batched(X, Y, np.linspace(0.1, 3, len(X))) if loss.startswith("mean_") else batched(X, Y))


class Adds(keras.layers.Layer):
    """A layer that adds a mean over rows and a sum over rows to the loss."""

    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        return x


@pytest.mark.full
def test_sums_that_layers_add_stay_sums() -> None:
    assert_equal(lambda config: perceptron(Adds()), batched(X, Y))


@pytest.mark.full
def test_function_that_returns_one_number_is_asked_whether_it_is_a_sum() -> None:
    def summing(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.sum(keras.ops.square(y_pred - y_true))

    def meaning(y_true: Any, y_pred: Any) -> Any:
        return summing(y_true, y_pred) / keras.ops.cast(keras.ops.shape(y_pred)[0], y_pred.dtype)

    for loss in (summing, meaning):
        assert_equal(
            lambda config, loss=loss: perceptron(loss=loss, optimizer=keras.optimizers.SGD(0.003)), batched(X, Y)
        )


@pytest.mark.full
@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_every_output_has_its_own_loss_mask_and_reduction(family: Any) -> None:
    layers = family.layers

    def creator(config: Any) -> Any:
        inputs = family.Input((4,))
        body = layers.Dense(3, "tanh")(inputs)
        outputs = [layers.Dense(n, name=name)(body) for name, n in (("left", 1), ("right", 2), ("far", 1))]
        losses = [
            family.losses.MeanSquaredError(),
            family.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
            family.losses.MeanAbsoluteError(reduction="sum"),
        ]
        return set_up(family.Model(inputs, outputs), losses, family.optimizers.SGD(0.01), loss_weights=[1.0, 0.5, 0.1])

    classes = np.append(Y[:-1], 1)  # tf_keras itself gives nan for a step without a row that counts
    stats = assert_equal(creator, batched(X, (Y[:, None] * 1.0, classes, Y[:, None] * 2.0)))
    assert {"left_loss", "right_loss", "far_loss"} <= stats.keys()


def test_loss_over_another_number_of_values_in_each_row_is_refused() -> None:
    class Flat(keras.losses.Loss):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return tf.boolean_mask(y_pred[:, 0], y_true > 0) ** 2

    def creator(config: Any) -> Any:
        return perceptron(loss=Flat())

    labels = np.ones_like(Y)
    labels[0] = 0
    with pytest.raises(OrcaError, match="not the same number for every row.*reduction='sum'"):
        on_ranks(2, creator, batched(X, labels), batch_size=BATCH)


# A train_step of the user's own


class Gan(keras.Model):
    """Two networks, an optimizer and a loss each; neither of them is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic = keras.layers.Dense(4), keras.layers.Dense(1)
        self.maker_loss, self.critic_loss = keras.metrics.Mean("maker_loss"), keras.metrics.Mean("critic_loss")

    def compile(self, maker_optimizer: Any, critic_optimizer: Any, loss: Any) -> None:
        super().compile(run_eagerly=True)
        self.optimizers, self.judge = {"maker": maker_optimizer, "critic": critic_optimizer}, loss

    def call(self, x: Any) -> Any:
        return self.critic(self.maker(x))

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape(persistent=True) as tape:
            real, fake = self.critic(x), self.critic(self.maker(x[:, ::-1]))
            critic_loss = self.judge(tf.ones_like(real), real) + self.judge(tf.zeros_like(fake), fake)
            maker_loss = self.judge(tf.ones_like(fake), fake)
        for name, layer, loss in (("critic", self.critic, critic_loss), ("maker", self.maker, maker_loss)):
            gradients = tape.gradient(loss, layer.trainable_variables)
            self.optimizers[name].apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        self.maker_loss.update_state(maker_loss)
        self.critic_loss.update_state(critic_loss)
        return {"maker": self.maker_loss.result(), "critic_loss": self.critic_loss.result(), "level": tf.reduce_mean(x)}


def gan(config: Any) -> Any:
    model = Gan()
    model(np.zeros((1, 4)))
    model.set_weights([np.random.default_rng(1).normal(size=w.shape) for w in model.get_weights()])
    loss = keras.losses.BinaryCrossentropy(from_logits=True, reduction=config.get("reduction", "sum_over_batch_size"))
    model.compile(keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.1), loss)
    return model


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_optimizers_and_losses_of_a_train_step_are_those_of_all_ranks(reduction: str) -> None:
    stats = assert_equal(lambda config: gan({"reduction": reduction}), batched(X, Y))
    assert set(stats) == {
        "maker",
        "critic_loss",
        "level",
        "num_samples",
        "train_maker",
        "train_critic_loss",
        "train_level",
    }


class Silent(Gan):
    """A model without a `call`, whose parts know their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.maker.build((None, 4))
        self.critic.build((None, 4))

    call = keras.Model.call


def test_a_model_that_only_its_train_step_calls_is_given_back_trained() -> None:
    def creator(config: Any) -> Any:
        model = Silent()
        model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(True))
        model.maker.set_weights([np.eye(4), np.zeros(4)])
        return model

    model, _ = on_ranks(2, creator, batched(X, Y), batch_size=BATCH)
    assert model.weights and not np.array_equal(model.maker.get_weights()[0], np.eye(4))
    with pytest.raises(NotImplementedError):
        model(X)


class Tracking(keras.Sequential):
    """A model whose train_step tracks a loss of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean("loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True)[:, 0] - tf.cast(y, x.dtype)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_loss_that_a_train_step_tracks_is_the_history() -> None:
    def creator(config: Any) -> Any:
        return set_up(Tracking([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]), None)

    assert_equal(creator, batched(X, Y))


class Habit(keras.layers.Layer):
    """A layer that keeps a running mean of its rows, and a weight that it steps by itself."""

    def build(self, shape: Any) -> None:
        self.level = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="level")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.level.assign(0.9 * self.level + 0.1 * keras.ops.mean(x, axis=0))
        return x - self.level


class ByHand(Tracking):
    """A model whose train_step steps the weights without an optimizer."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True)[:, 0] - tf.cast(y, x.dtype)))
        for variable, gradient in zip(
            self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
        ):
            variable.assign_sub(0.05 * gradient)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


@pytest.mark.full
def test_weights_that_a_step_writes_are_those_of_all_ranks() -> None:
    def creator(config: Any) -> Any:
        return set_up(ByHand([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]), None)

    assert_equal(creator, batched(X, Y))
    one_step = X[:BATCH], Y[:BATCH]  # within a step each rank sees its own rows
    assert_equal(lambda config: perceptron(keras.layers.SpectralNormalization(keras.layers.Dense(2))), batched(X, Y))
    trained = on_ranks(3, lambda config: perceptron(Habit()), batched(*one_step), batch_size=BATCH)[0]
    model = perceptron(Habit())
    model.fit(*one_step, batch_size=BATCH, verbose=0, shuffle=False)
    np.testing.assert_allclose(trained.layers[1].level, model.layers[1].level, rtol=1e-8)


@pytest.mark.full
def test_functions_as_metrics_count_by_rows() -> None:
    def distance(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y_pred[:, 0] - keras.ops.cast(y_true, y_pred.dtype)))

    assert_equal(lambda config: perceptron(metrics=[distance]), batched(X, Y))


@pytest.mark.full
@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_models_with_nothing_but_an_embedding_train(family: Any) -> None:
    def creator(config: Any) -> Any:
        layers = [family.layers.Embedding(5, 1), family.layers.Flatten()]
        return set_up(family.Sequential([family.Input((1,), dtype="int64"), *layers]), "mse")

    assert_equal(creator, batched(np.arange(22)[:, None] % 5, Y * 1.0), ranks=(1, 3))


@pytest.mark.full
def test_metrics_of_all_kinds_are_those_of_all_rows() -> None:
    def creator(config: Any) -> Any:
        overlap = keras.metrics.MeanIoU(2, sparse_y_true=False, sparse_y_pred=False)
        metrics = [overlap, keras.metrics.F1Score(average="macro"), "accuracy"]
        head = keras.layers.Dense(2, "softmax")
        return perceptron(head=head, loss="categorical_crossentropy", metrics=metrics)

    assert_equal(creator, batched(X, np.eye(2)[Y]))


@pytest.mark.full
def test_metrics_that_a_layer_adds_count_by_rows() -> None:
    class Watches(tf_keras.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_metric(tf.reduce_mean(x), name="level")
            return x

    assert "level" in assert_equal(lambda config: perceptron(Watches(), family=tf_keras), batched(X, Y))


@pytest.mark.full
def test_ragged_batches_train() -> None:
    rows = tf.ragged.constant([[n % 5] * (n % 4 + 1) for n in range(22)], dtype=tf.int64)

    def creator(config: Any) -> Any:
        layers = tf_keras.layers
        parts = [tf_keras.Input((None,), dtype="int64", ragged=True), layers.Embedding(5, 2), layers.GRU(2)]
        return set_up(tf_keras.Sequential([*parts, layers.Dense(1)]), "mse")

    assert_equal(creator, batched(rows, Y * 1.0))


@dataclass(frozen=True)
class ModelsLeft:
    """Fit, and return how many models the rank then still has."""

    job: FitJob

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> int:
        self.job(world, rows, heartbeat)
        gc.collect()
        return sum(isinstance(thing, Agreement) for thing in gc.get_objects())


def test_a_model_goes_with_its_fit() -> None:
    def creator(config: Any) -> Any:
        model = perceptron()
        model.run_eagerly = False
        return model

    job = FitJob(KerasLearner.of(creator, None, {}, True), FitPlan(batch_size=BATCH), (), None)
    assert LocalEngine(2).run(ModelsLeft(job), shards_of([(X[:12], Y[:12]), (X[12:], Y[12:])]), Settings()) == [0, 0]


def test_model_of_a_fixed_batch_size_trains() -> None:
    def creator(config: Any) -> Any:
        layers = [keras.Input((4,), batch_size=BATCH), keras.layers.Dense(1)]
        return set_up(keras.Sequential(layers), "mse")

    assert_equal(creator, batched(X[:21], Y[:21]))
