"""Names that TensorFlow has dropped, and Keras of those years: programs find them once TFPark is imported."""

from __future__ import annotations

import pytest

pytest.importorskip("tf_slim")

from programs import run_program


def test_a_program_has_the_lost_names_in_its_own_tensorflow() -> None:
    run_program("""
from zoo.tfpark import TFDataset
import tensorflow.compat.v1 as tf
import tensorflow as tf2

tf.disable_v2_behavior()
assert tf.estimator.ModeKeys.TRAIN == tf2.estimator.ModeKeys.TRAIN == "train"
assert tf.contrib.slim.tfexample_decoder.Image and tf2.contrib.slim.fully_connected
for name in ("xavier_initializer", "variance_scaling_initializer", "fully_connected"):
    assert callable(getattr(tf.contrib.layers, name))
weights = tf.get_variable("w", [3, 4], initializer=tf.contrib.layers.xavier_initializer())
assert tf.contrib.layers.l2_regularizer(0.1)(weights).shape == ()
""")


@pytest.mark.timeout(240)
def test_keras_in_a_graph_takes_what_it_took() -> None:
    run_program("""
from zoo.tfpark import tf1 as tf
from tensorflow import keras
import numpy as np

from orca.errors import ArgumentError
from zoo.orca.learn.tf.estimator import Estimator
from zoo.tfpark import KerasModel, TFDataset

rows = np.random.default_rng(0).normal(size=(41, 4)).astype("float32")
labels = (rows[:, :3] > 0).astype("float32")
data = TFDataset.from_ndarrays((rows, labels), batch_size=20)


def model(optimizer, **options):
    tf.set_random_seed(1)
    made = keras.Sequential([keras.layers.Dense(3, activation="sigmoid", **options)])
    made.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    return made


def trained(optimizer, **options):
    made = KerasModel(model(optimizer, input_shape=(4,)), backend="local")
    made.fit(data, epochs=2, verbose=0, **options)
    return made


wrapped = tf.keras.optimizers.TFOptimizer(tf.train.AdamOptimizer(0.1))
for optimizer in (keras.optimizers.RMSprop(), tf.train.RMSPropOptimizer(0.01), wrapped):
    made = trained(optimizer)
    ours, theirs = made.evaluate(rows, labels, distributed=True), made.evaluate(rows, labels)
    assert all(abs(ours[name] - theirs[name]) < 1e-4 for name in ("loss", "acc")), (ours, theirs)
unbuilt = KerasModel(model(keras.optimizers.SGD(0.1)), backend="local")
unbuilt.fit(data, epochs=1)
assert unbuilt.predict(rows).shape == (41, 3)
start = [value * 0 for value in model("sgd", input_shape=(4,)).get_weights()]
one, two = (KerasModel(model(keras.optimizers.SGD(0.1), input_shape=(4,)), backend="local") for _ in range(2))
one.set_weights(start)
two.set_weights(start)
one.fit(data, epochs=3, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < 2 else 0.0)])
two.fit(data, epochs=2)
assert all(map(np.allclose, one.get_weights(), two.get_weights()))
for name in ("sample_weight", "class_weight"):
    try:
        two.fit(data, **{name: {}})
    except ArgumentError as error:
        assert f"{name} is not supported for a graph" in str(error)
    else:
        raise AssertionError(name)
heads = [keras.layers.Dense(n, activation="sigmoid", name=name) for n, name in ((3, "p"), (1, "q"))]
inputs = keras.Input((4,))
both = keras.Model(inputs, [head(inputs) for head in heads])
targets = [labels, labels[:, :1]]
for metrics, words in (
    ({"p": "accuracy", "q": ["mae"]}, ["p_accuracy", "q_mae"]),
    ([["accuracy"], ["mae"]], ["p_accuracy", "q_mae"]),
    (["accuracy"], ["p_accuracy", "q_accuracy"]),
):
    both.compile("sgd", "binary_crossentropy", metrics=metrics)
    truth = both.evaluate(rows, targets, verbose=0)  # of each output the loss, too
    ours = Estimator.from_keras(both, backend="local").evaluate((rows, tuple(targets)), batch_size=7)
    assert np.allclose([ours["loss"], *(ours[word] for word in words)], [truth[0], *truth[3:]], atol=1e-4), ours
try:
    Estimator.from_keras(model("sgd"), backend="local")
except ArgumentError as error:
    assert "the model has no input shape yet" in str(error)
else:
    raise AssertionError("an unbuilt model")
""")
