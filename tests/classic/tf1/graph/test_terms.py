"""Terms of a loss: which kind the graph says they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from orca_classic.tf1.graph.terms import Analysis
from orca_classic.tf1.tfpark.text.crf import crf_accuracy


def looped(rows: Any, change: Any) -> Any:
    return tf.while_loop(lambda at, _: at < 3, lambda at, each: (at + 1, change(each)), [tf.constant(0), rows])[1]


LOSSES: dict[str, tuple[Any, list[str]]] = {
    "a mean times the width of what is shaped by the rows": (
        lambda e, w, m: tf.reduce_mean(e * tf.cast(tf.shape(tf.reshape(e, [tf.shape(e)[0], 1]))[1], tf.float32)),
        ["rows"],
    ),
    "a mean": (lambda e, w, m: tf.reduce_mean(e), ["rows"]),
    "a mean of all that rows have": (lambda e, w, m: tf.reduce_mean(tf.stack([e, e], 1)), ["rows"]),
    "a mean of tf.losses": (lambda e, w, m: tf.reduce_mean(tf.losses.compute_weighted_loss(e)), ["rows"]),
    "a sum": (lambda e, w, m: tf.reduce_sum(e), ["sum"]),
    "half of a sum": (lambda e, w, m: 0.5 * tf.reduce_sum(tf.square(e)), ["sum"]),
    "a sum divided by the rows": (lambda e, w, m: tf.reduce_sum(e) / tf.cast(tf.shape(e)[0], tf.float32), ["rows"]),
    "a part of a sum": (lambda e, w, m: 1.0 / tf.cast(tf.size(e), tf.float32) * tf.reduce_sum(e), ["rows"]),
    "a part of a sum by a mask": (lambda e, w, m: tf.reduce_sum(e * m) * (2.0 / tf.reduce_sum(m)), ["counted"]),
    "a sum by an inverse": (lambda e, w, m: tf.reduce_sum(e) * tf.math.reciprocal(tf.reduce_sum(m)), ["counted"]),
    "a sum by an inverse of a mean": (lambda e, w, m: tf.reduce_sum(e) * (1.0 / tf.reduce_mean(m)), ["whole"]),
    "a sum by a ratio of sums": (
        lambda e, w, m: tf.reduce_sum(e) * (tf.reduce_sum(e) / tf.reduce_sum(m)),
        ["whole"],
    ),
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
    "time in another order": (lambda e, w, m: tf.reduce_mean(tf.reverse(tf.transpose(over_time(e)), [0])), ["rows"]),
    "sums so far": (lambda e, w, m: tf.reduce_mean(tf.cumsum(e)), ["whole"]),
    "a softmax over rows": (lambda e, w, m: tf.reduce_mean(tf.nn.softmax(e[:, None], axis=0) * e[:, None]), ["whole"]),
    "a column of rows": (lambda e, w, m: tf.reduce_mean(tf.stack([e, m], 1)[:, 0] + e[:]), ["rows"]),
    "rows of other places": (lambda e, w, m: tf.reduce_mean(e - tf.gather(e, tf.cast(m, tf.int32))), ["whole"]),
    "columns of other places": (lambda e, w, m: tf.reduce_mean(tf.gather(tf.stack([e, e], 1), [1], axis=1)), ["rows"]),
    "a column of a table": (lambda e, w, m: tf.reduce_mean(tf.gather(w, tf.cast(m, tf.int32))), ["rows"]),
    "a column that a row names": (
        lambda e, w, m: tf.reduce_mean(
            tf.gather_nd(tf.stack([e, e], 1), tf.stack([tf.range(tf.shape(e)[0]), tf.cast(m, tf.int32)], 1))
        ),
        ["rows"],
    ),
    "numbers of other rows": (
        lambda e, w, m: tf.reduce_mean(tf.gather_nd(e, tf.cast(m, tf.int32)[:, None])),
        ["whole"],
    ),
    "groups of rows": (
        lambda e, w, m: tf.reduce_mean(tf.math.unsorted_segment_sum(e, tf.cast(m, tf.int32), 3)),
        ["whole"],
    ),
    "neighbours in one row": (lambda e, w, m: tf.reduce_mean(tf.reduce_max(tf.reshape(e, [-1, 2]), 1)), ["whole"]),
    "rows made of their own parts": (
        lambda e, w, m: tf.reduce_mean(tf.reshape(tf.reshape(tf.stack([e, e], 1), [-1]) * 2.0, [-1, 2])),
        ["rows"],
    ),
    "halves of the rows": (lambda e, w, m: tf.reduce_mean(tf.subtract(*tf.split(e, 2))), ["whole"]),
    "two passes at once": (
        lambda e, w, m: tf.reduce_mean(tf.subtract(*tf.split(tf.tanh(tf.concat([e, m], 0)), 2))),
        ["rows"],
    ),
    "weights of classes": (
        lambda e, w, m: tf.reduce_mean(e / tf.cast(tf.reduce_sum(tf.cast(m, tf.int32)), tf.float32)),
        ["whole"],
    ),
    "a condition": (lambda e, w, m: tf.reduce_mean(tf.cond(w[0, 0] > 0, lambda: e, lambda: -e)), ["rows"]),
    "a loop": (lambda e, w, m: tf.reduce_mean(looped(e, lambda rows: rows * 2.0)), ["rows"]),
    "a loop over rows": (
        lambda e, w, m: tf.reduce_mean(looped(e, lambda rows: rows - tf.reverse(rows, [0]))),
        ["whole"],
    ),
    "rows one by one": (lambda e, w, m: tf.reduce_mean(tf.map_fn(lambda each: each * each, e)), ["rows"]),
    "rows one by one, each of parts": (
        lambda e, w, m: tf.reduce_mean(tf.map_fn(lambda row: tf.scan(tf.add, row), tf.stack([e, m], 1))),
        ["rows"],
    ),
    "rows one after another": (lambda e, w, m: tf.reduce_mean(tf.scan(tf.add, e)), ["whole"]),
    "rows one after another, from a start": (
        lambda e, w, m: tf.reduce_mean(tf.scan(lambda before, row: before * row, e, 1.0)),
        ["whole"],
    ),
    "rows one by one, beside the last ones": (lambda e, w, m: tf.reduce_mean(beside_the_last(e)), ["whole"]),
    "times one after another": (lambda e, w, m: tf.reduce_mean(tf.scan(tf.add, turned(e))), ["rows"]),
    "the last of times one after another": (lambda e, w, m: tf.reduce_mean(tf.scan(tf.add, turned(e))[-1]), ["rows"]),
    "times one after another, turned back": (
        lambda e, w, m: tf.reduce_mean(tf.reverse(tf.transpose(tf.scan(tf.add, turned(e))), [1])),
        ["rows"],
    ),
    "times from the last to the first, one after another": (
        lambda e, w, m: tf.reduce_mean(tf.reverse(tf.transpose(tf.scan(tf.add, tf.reverse(turned(e), [0]))), [1])),
        ["rows"],
    ),
    "the last row of those one by one": (
        lambda e, w, m: tf.reduce_mean(e * tf.map_fn(lambda each: each * each, e)[-1]),
        ["whole"],
    ),
    "the last rows of those one by one": (
        lambda e, w, m: tf.reduce_mean(
            tf.reverse(tf.map_fn(lambda each: each * each, over_time(e)), [0]) * over_time(e)
        ),
        ["whole"],
    ),
    "a recurrent network": (lambda e, w, m: tf.reduce_mean(recurrent(over_time(e)[..., None])), ["rows"]),
    "a column against itself, turned": (
        lambda e, w, m: tf.reduce_mean(tf.reduce_sum(tf.square(e[:, None] - tf.transpose(e[:, None])), 1)),
        ["whole"],
    ),
    "ranks of rows": (
        lambda e, w, m: tf.reduce_mean(e * tf.reduce_sum(tf.cast(column(m) >= tf.transpose(column(m)), tf.float32), 1)),
        ["whole"],
    ),
    "a column beside weights, turned": (lambda e, w, m: tf.reduce_mean(column(e) * tf.transpose(w)), ["rows"]),
    "logarithms of sums so far": (lambda e, w, m: tf.reduce_mean(tf.math.cumulative_logsumexp(e)), ["whole"]),
    "rows in another order, after time": (
        lambda e, w, m: tf.reduce_mean(turned(e) * tf.reverse(turned(e) * 2.0, [1])),
        ["whole"],
    ),
    "the largest of all rows, after time": (
        lambda e, w, m: tf.reduce_mean(turned(e) - tf.reduce_max(turned(e), 1, keepdims=True)),
        ["whole"],
    ),
    "the largest of all rows, after a known time": (
        lambda e, w, m: tf.reduce_mean(tf.stack([e, m], 1) - tf.reduce_max(tf.stack([e, m], 0), 1)),
        ["whole"],
    ),
    "the largest of all times, before rows": (
        lambda e, w, m: tf.reduce_mean(turned(e) - tf.reduce_max(turned(e), 0, keepdims=True)),
        ["rows"],
    ),
    "the last time, before rows": (lambda e, w, m: tf.reduce_mean(tf.tanh(turned(e))[-1]), ["rows"]),
    "times turned back": (
        lambda e, w, m: tf.reduce_mean(tf.reverse(tf.transpose(turned(e)), [0]) * column(e)),
        ["whole"],
    ),
    "rows from the last to the first": (
        lambda e, w, m: tf.reduce_mean(e * tf.gather(m, tf.range(tf.shape(e)[0] - 1, -1, -1))),
        ["whole"],
    ),
    "a place in rows that lie one after another": (
        lambda e, w, m: tf.reduce_mean(
            tf.gather(tf.reshape(tf.stack([e, m], 1), [-1]), tf.range(tf.shape(e)[0]) * 2 + tf.cast(m, tf.int32))
        ),
        ["rows"],
    ),
    "rows at places of a mask": (
        lambda e, w, m: tf.reduce_mean(tf.gather(e, tf.where(m > 0)[:, 0])),
        ["counted"],
    ),
    "a product over rows": (
        lambda e, w, m: tf.reduce_mean(e[:, None] * tf.einsum("ij,ik->jk", column(e), column(m))),
        ["whole"],
    ),
    "a product of each row": (lambda e, w, m: tf.reduce_mean(tf.einsum("ji,bj->bi", w[:1], column(e))), ["rows"]),
    "whether any row is so": (lambda e, w, m: tf.reduce_mean(tf.where(tf.reduce_any(m > 0), e, -e)), ["whole"]),
    "whether all rows are so": (
        lambda e, w, m: tf.reduce_mean(e * tf.cast(tf.reduce_all(m > 0), tf.float32)),
        ["whole"],
    ),
    "rows of one of two": (
        lambda e, w, m: tf.reduce_mean(tf.where(m > 0, tf.stack([e, m], 1), tf.stack([m, e], 1))),
        ["rows"],
    ),
    "parts of a sum, each divided by the rows": (
        lambda e, w, m: tf.reduce_sum(e / tf.cast(tf.shape(e)[0], tf.float32)),
        ["whole"],
    ),
    "parts of a sum, each divided by those that a mask chooses": (
        lambda e, w, m: tf.reduce_sum(e * m / tf.cast(tf.size(tf.where(m > 0)), tf.float32)),
        ["whole"],
    ),
    "numbers of rows": (
        lambda e, w, m: tf.reduce_mean(e * tf.cast(tf.range(tf.shape(e)[0]), tf.float32)),
        ["whole"],
    ),
    "a mean divided by a time": (
        lambda e, w, m: tf.reduce_mean(turned(e) / tf.sqrt(tf.cast(tf.shape(turned(e))[0], tf.float32))),
        ["rows"],
    ),
    "sums so far, of rows that lie along another axis": (
        lambda e, w, m: tf.reduce_mean(tf.transpose(tf.cumsum(tf.transpose(tf.stack([e, m], 1)), 1))),
        ["whole"],
    ),
    "sums so far, of one row that all became": (
        lambda e, w, m: tf.reduce_mean(tf.reshape(tf.cumsum(tf.reshape(e, [1, -1]), 1), [-1])),
        ["whole"],
    ),
    "rows sorted": (lambda e, w, m: tf.reduce_mean(tf.sort(tf.stack([e, m], 1), axis=0) * column(m)), ["whole"]),
    "each row sorted": (lambda e, w, m: tf.reduce_mean(tf.sort(tf.stack([e, m], 1), axis=1) * column(m)), ["rows"]),
    "a convolution over rows": (
        lambda e, w, m: tf.reduce_mean(
            tf.reshape(tf.nn.conv1d(tf.reshape(e, [1, -1, 1]), tf.ones([3, 1, 1]), 1, "SAME"), [-1])
        ),
        ["whole"],
    ),
    "a convolution over time": (
        lambda e, w, m: tf.reduce_mean(tf.nn.conv1d(over_time(e)[..., None], tf.ones([3, 1, 1]), 1, "SAME")),
        ["rows"],
    ),
    "two groups of rows": (lambda e, w, m: tf.reduce_mean(tf.reduce_max(tf.reshape(e, [2, -1]), 0)), ["whole"]),
    "rows put in another order": (
        lambda e, w, m: tf.reduce_mean(
            m * tf.ensure_shape(tf.dynamic_stitch([tf.range(tf.shape(e)[0] - 1, -1, -1)], [e]), [None])
        ),
        ["whole"],
    ),
    "singular values of rows": (
        lambda e, w, m: tf.reduce_mean(tf.linalg.svd(tf.stack([e, m], 1), compute_uv=False)),
        ["whole"],
    ),
    "tags of a chain": (lambda e, w, m: tf.reduce_mean(chained(e, m)), ["rows"]),
    "a penalty alone": (lambda e, w, m: tf.nn.l2_loss(w), ["constant"]),
}


def over_time(each: Any) -> Any:
    """Return a tensor (rows, time) whose second size is not known."""
    return tf.placeholder_with_default(tf.stack([each, each], 1), [None, None])


def turned(each: Any) -> Any:
    return tf.transpose(over_time(each))


def beside_the_last(each: Any) -> Any:
    """Return rows times those from the last to the first, in a loop over rows."""
    count = tf.shape(each)[0]
    rows, results = tf.TensorArray(tf.float32, count).unstack(each), tf.TensorArray(tf.float32, count)
    _, results = tf.while_loop(
        lambda at, _: at < count,
        lambda at, kept: (at + 1, kept.write(at, rows.read(at) * rows.read(count - 1 - at))),
        (0, results),
    )
    return tf.ensure_shape(results.stack(), [None])


def recurrent(rows: Any) -> Any:
    """Return what an LSTM says of rows of some lengths, after each time."""
    lengths = tf.cast(tf.reduce_sum(tf.abs(tf.sign(rows)), [1, 2]), tf.int32)
    weight = tf.get_variable("recurrent", [3, 2])

    def step(before: Any, now: Any) -> Any:
        state, at = before
        new = tf.tanh(tf.concat([state, now], 1) @ weight)
        return tf.where((at >= lengths)[:, None] & tf.ones_like(new, tf.bool), state, new), at + 1

    states, _ = tf.scan(step, tf.transpose(rows, [1, 0, 2]), (tf.zeros([tf.shape(rows)[0], 2]), 0))
    return states


def chained(each: Any, mask: Any) -> Any:
    """Return the share of right tags that a CRF of three words finds."""
    scores = tf.stack([tf.stack([each, mask], 1)] * 3, 1)
    nothing = tf.zeros_like(scores[:, :1])
    outputs = tf.concat([scores, nothing + tf.eye(2), nothing + 3.0], 1)
    return crf_accuracy(tf.stack([tf.cast(mask > 0, tf.int32)] * 3, 1), outputs)


def column(each: Any) -> Any:
    return each[:, None]


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
    assert all((term.mass is not None) == (term.kind == "counted") for term in terms)
