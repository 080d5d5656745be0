"""Terms of a loss: which kind the graph says they are."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from orca.frameworks.tfgraph.terms import Analysis

LOSSES: dict[str, tuple[Any, list[str]]] = {
    "a mean": (lambda e, w, m: tf.reduce_mean(e), ["rows"]),
    "a mean of all that rows have": (lambda e, w, m: tf.reduce_mean(tf.stack([e, e], 1)), ["rows"]),
    "a mean of tf.losses": (lambda e, w, m: tf.reduce_mean(tf.losses.compute_weighted_loss(e)), ["rows"]),
    "a sum": (lambda e, w, m: tf.reduce_sum(e), ["sum"]),
    "half of a sum": (lambda e, w, m: 0.5 * tf.reduce_sum(tf.square(e)), ["sum"]),
    "a sum divided by the rows": (lambda e, w, m: tf.reduce_sum(e) / tf.cast(tf.shape(e)[0], tf.float32), ["rows"]),
    "a mean with a penalty": (lambda e, w, m: tf.reduce_mean(e) + tf.nn.l2_loss(w), ["rows"]),
    "a sum with a penalty": (lambda e, w, m: tf.reduce_sum(e) + tf.nn.l2_loss(w), ["sum", "constant"]),
    "a mean and a sum": (lambda e, w, m: tf.add_n([tf.reduce_mean(e), tf.reduce_sum(e)]), ["rows", "sum"]),
    "weights of rows": (lambda e, w, m: tf.losses.compute_weighted_loss(e, m), ["counted"]),
    "a mean of a mask": (lambda e, w, m: tf.reduce_sum(e * m) / tf.reduce_sum(m), ["counted"]),
    "a mean of chosen rows": (lambda e, w, m: tf.reduce_mean(tf.boolean_mask(e, m > 0)), ["counted"]),
    "a root of a mean": (lambda e, w, m: tf.sqrt(tf.reduce_mean(tf.square(e))), ["whole"]),
    "a product of means": (lambda e, w, m: tf.reduce_mean(e) * tf.reduce_mean(m), ["whole"]),
    "the largest": (lambda e, w, m: tf.reduce_max(e), ["whole"]),
    "a sum divided by another axis": (
        lambda e, w, m: tf.reduce_sum(tf.stack([e, e], 1)) / tf.cast(tf.shape(tf.stack([e, e], 1))[1], tf.float32),
        ["sum"],
    ),
    "a sum divided by all elements": (lambda e, w, m: tf.reduce_sum(e) / tf.cast(tf.size(e), tf.float32), ["rows"]),
    "a sum by the root of rows": (
        lambda e, w, m: tf.reduce_sum(e) / tf.sqrt(tf.cast(tf.shape(e)[0], tf.float32)),
        ["whole"],
    ),
    "a sum by rows and more": (
        lambda e, w, m: tf.reduce_sum(e) / (1.0 + tf.cast(tf.shape(e)[0], tf.float32)),
        ["whole"],
    ),
    "rows beside their mean": (lambda e, w, m: tf.reduce_mean(tf.square(e - tf.reduce_mean(e))), ["whole"]),
    "rows against rows": (
        lambda e, w, m: tf.reduce_mean(tf.matmul(e[:, None] * w[0], e[:, None], transpose_b=True)),
        ["whole"],
    ),
    "a column against rows": (lambda e, w, m: tf.reduce_mean(tf.square(e[:, None] - m)), ["whole"]),
    "pairs of rows": (
        lambda e, w, m: tf.reduce_mean(tf.square(tf.expand_dims(e, 0) - tf.expand_dims(e, 1))),
        ["whole"],
    ),
    "neighbours": (lambda e, w, m: tf.reduce_mean(tf.square(e[1:] - e[:-1])), ["whole"]),
    "rows in another order": (lambda e, w, m: tf.reduce_mean(e * tf.reverse(e, [0])), ["whole"]),
    "sums so far": (lambda e, w, m: tf.reduce_mean(tf.cumsum(e)), ["whole"]),
    "a softmax over rows": (lambda e, w, m: tf.reduce_mean(tf.nn.softmax(e[:, None], axis=0) * e[:, None]), ["whole"]),
    "a column of rows": (lambda e, w, m: tf.reduce_mean(tf.stack([e, m], 1)[:, 0] + e[:]), ["rows"]),
    "batch normalization": (lambda e, w, m: tf.reduce_mean(tf.square(e - tf.nn.moments(e, [0])[0])), ["rows"]),
    "a penalty alone": (lambda e, w, m: tf.nn.l2_loss(w), ["constant"]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_graph_says_what_a_loss_is_over(name: str) -> None:
    make, kinds = LOSSES[name]
    with tf.Graph().as_default():
        x, mask = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None])
        weight = tf.get_variable("weight", [4, 1])
        each = tf.squeeze(x @ weight, 1)
        loss = make(each, weight, mask)
        terms = Analysis([x, mask]).terms(loss)
    assert [term.kind for term in terms] == kinds
    assert all((term.mass is not None) == (term.kind == "counted") for term in terms)
