"""Terms of a loss: which kind the graph says they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from orca_classic.tf1.graph.terms import Analysis

LOSSES: dict[str, tuple[Any, list[str]]] = {
    "a mean": (lambda e, w, m: tf.reduce_mean(e), ["rows"]),
    "a mean of all that rows have": (lambda e, w, m: tf.reduce_mean(tf.stack([e, e], 1)), ["rows"]),
    "a mean of tf.losses": (lambda e, w, m: tf.reduce_mean(tf.losses.compute_weighted_loss(e)), ["rows"]),
    "a sum": (lambda e, w, m: tf.reduce_sum(e), ["sum"]),
    "half of a sum": (lambda e, w, m: 0.5 * tf.reduce_sum(tf.square(e)), ["sum"]),
    "the size of errors": (lambda e, w, m: tf.nn.l2_loss(e), ["sum"]),
    "a sum divided by the rows": (lambda e, w, m: tf.reduce_sum(e) / tf.cast(tf.shape(e)[0], tf.float32), ["rows"]),
    "a sum divided by all elements": (lambda e, w, m: tf.reduce_sum(e) / tf.cast(tf.size(e), tf.float32), ["rows"]),
    "a mean with a penalty": (lambda e, w, m: tf.reduce_mean(e) + tf.nn.l2_loss(w), ["rows"]),
    "a sum with a penalty": (lambda e, w, m: tf.reduce_sum(e) + tf.nn.l2_loss(w), ["sum", "constant"]),
    "a mean and a sum": (lambda e, w, m: tf.add_n([tf.reduce_mean(e), tf.reduce_sum(e)]), ["rows", "sum"]),
    "a penalty alone": (lambda e, w, m: tf.nn.l2_loss(w), ["constant"]),
    "printed": (lambda e, w, m: tf.Print(tf.reduce_mean(e), [e]), ["rows"]),
    "a mean that does not learn": (lambda e, w, m: tf.stop_gradient(tf.reduce_mean(e)), ["rows"]),
    "a condition": (lambda e, w, m: tf.reduce_mean(tf.cond(w[0, 0] > 0, lambda: e, lambda: -e)), ["rows"]),
    "a part of a sum by a mask": (lambda e, w, m: tf.reduce_sum(e * m) * (2.0 / tf.reduce_sum(m)), ["joint"]),
    "weights of rows": (lambda e, w, m: tf.losses.compute_weighted_loss(e, m), ["joint"]),
    "a mean of chosen rows": (lambda e, w, m: tf.reduce_mean(tf.boolean_mask(e, m > 0)), ["joint"]),
    "a mean minus a sum": (lambda e, w, m: tf.reduce_mean(e) - tf.reduce_sum(e), ["joint"]),
    "a root that does not learn, and a mean": (
        lambda e, w, m: tf.stop_gradient(tf.sqrt(tf.reduce_mean(e))) + tf.reduce_mean(e),
        ["joint"],
    ),
    "a gradient of its own": (lambda e, w, m: turned(tf.reduce_mean(e) + tf.reduce_sum(e)), ["joint"]),
    "a product of means": (lambda e, w, m: tf.reduce_mean(e) * tf.reduce_mean(m), ["joint"]),
    "the largest": (lambda e, w, m: tf.reduce_max(e), ["joint"]),
    "a sum by the root of rows": (
        lambda e, w, m: tf.reduce_sum(e) / tf.sqrt(tf.cast(tf.shape(e)[0], tf.float32)),
        ["joint"],
    ),
    "a sum by the numbers of rows": (
        lambda e, w, m: tf.reduce_sum(e) / tf.cast(tf.reduce_sum(tf.range(tf.shape(e)[0])), tf.float32),
        ["joint"],
    ),
}


def turned(loss: Any) -> Any:
    """Return a loss whose gradient is turned around."""

    @tf.RegisterGradient(f"Turned{id(loss)}")
    def back(op: Any, upstream: Any) -> Any:
        return -upstream

    with loss.graph.gradient_override_map({"Identity": f"Turned{id(loss)}"}):
        return tf.identity(loss)


@pytest.fixture(params=["functions", "operations"])
def loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make loops and conditions of functions, as today, or of operations, as TensorFlow 1 did."""
    if request.param == "operations":
        tf.disable_control_flow_v2()
    yield
    tf.enable_control_flow_v2()


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("name", LOSSES)
def test_the_graph_says_what_a_loss_is_over(name: str) -> None:
    make, kinds = LOSSES[name]
    with tf.Graph().as_default():
        x, mask = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None])
        weight = tf.get_variable("weight", [4, 1])
        each = tf.squeeze(x @ weight, 1)
        loss = make(each, weight, mask)
        tf.gradients(loss, weight)  # which changes loops
        terms = Analysis([x, mask]).terms(loss)
    assert [term.kind for term in terms] == kinds


def test_the_frontier_is_where_rows_become_numbers() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 4], "x")
        loss = tf.sqrt(tf.reduce_mean(x, name="mean")) / tf.cast(tf.shape(x, name="shape")[0], tf.float32)
        head = Analysis([x]).head([loss.op])
    assert [op.name for op in head.reductions] == ["mean", "shape"]
    assert loss.op in head.ops and x.op not in head.ops
