"""Graphs of TensorFlow 1 for tests, and the plain session loop that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

ROWS, WIDTH, CLASSES = 53, 5, 3
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(ROWS, WIDTH)).astype("float32")
Y = (X[:, 0] > 0).astype("int32") + (X[:, 1] > 0.5).astype("int32")


def adam() -> Any:
    return tf.train.AdamOptimizer(0.02)


def momentum() -> Any:
    return tf.train.MomentumOptimizer(0.1, 0.9)


def graph(
    make_loss: Callable[..., Any] | None = None, dropout: float = 0.0, normalize: Callable[..., Any] | None = None
) -> SimpleNamespace:
    """Return the ends of a small classifier in a graph of its own, with a session; always the same weights."""
    made = SimpleNamespace(graph=tf.Graph())
    with made.graph.as_default():
        tf.set_random_seed(7)
        made.x = tf.placeholder(tf.float32, [None, WIDTH], name="features")
        made.y = tf.placeholder(tf.int32, [None], name="labels")
        first, second = tf.glorot_uniform_initializer(seed=1), tf.glorot_uniform_initializer(seed=2)
        kernel = tf.get_variable("hidden/kernel", [WIDTH, 8], initializer=first)
        bias = tf.get_variable("hidden/bias", [8], initializer=tf.zeros_initializer())
        hidden = tf.nn.tanh(made.x @ kernel + bias)
        made.training = tf.placeholder_with_default(False, [], name="learning")
        if normalize:
            hidden = normalize(hidden, made.training)
        if dropout:
            hidden = tf.nn.dropout(hidden, rate=dropout, seed=3)
        made.top = tf.get_variable("top", [8, CLASSES], initializer=second)
        made.outputs = hidden @ made.top
        made.each = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=made.outputs, labels=made.y)
        made.loss = (make_loss or (lambda ends: tf.reduce_mean(ends.each)))(made)
        right = tf.equal(tf.argmax(made.outputs, 1, output_type=tf.int32), made.y)
        made.accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
        made.updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        made.session = tf.Session(graph=made.graph)
        made.session.run(tf.global_variables_initializer())
    return made


def values(made: SimpleNamespace) -> dict[str, np.ndarray]:
    """Return the values of all variables of a graph, by name."""
    with made.graph.as_default():
        variables = tf.global_variables()
        return {v.op.name: a for v, a in zip(variables, made.session.run(variables), strict=True)}


def plain_loop(
    make_optimizer: Callable[[], Any],
    batches: Sequence[np.ndarray],
    make_loss: Any = None,
    change: Callable[[list[Any]], list[Any]] = list,
    normalize: Any = None,
) -> dict[str, np.ndarray]:
    """Train a new graph in this process, with a feed_dict a batch, as programs of TensorFlow 1 do."""
    made = graph(make_loss, normalize=normalize)
    with made.graph.as_default():
        optimizer = make_optimizer()
        train_op = optimizer.apply_gradients(change(optimizer.compute_gradients(made.loss)))
        made.session.run(tf.variables_initializer(optimizer.variables()))
        for rows in batches:
            made.session.run([train_op, *made.updates], {made.x: X[rows], made.y: Y[rows], made.training: True})
    return values(made)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], tolerance: float = 2e-6) -> None:
    assert one.keys() == other.keys()
    for name in one:
        # 2e-6 are two roundings of 8 in float32; slots of momentum reach 22 where the loss is a sum.
        scale = max(1.0, np.abs(other[name]).max() / 8)
        np.testing.assert_allclose(one[name], other[name], atol=tolerance * scale, err_msg=name)
