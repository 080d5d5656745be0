"""Losses of every kind on 1 and 2 uneven ranks: each trains as one session does on all rows, or is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.engines.local import LocalEngine
from orca.errors import WorkerFailed
from orca.job import FitJob
from orca.testing import shards_of
from orca_classic import Estimator

ROWS, CUT, STEPS = 23, 8, 3
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = RNG.normal(size=ROWS).astype("float32")
M = (RNG.random(ROWS) < 0.6).astype("float32")
IDS = RNG.integers(0, 7, ROWS).astype("int32")


def ends() -> Any:
    """Return placeholders, variables and values of each row, in the default graph."""
    e = SimpleNamespace()
    e.x, e.y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None])
    e.m, e.ids = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.int32, [None])
    normal = np.random.default_rng(3).normal
    e.w = tf.get_variable("w", initializer=normal(size=(4, 3)).astype("float32"))
    e.v = tf.get_variable("v", initializer=normal(size=(3, 1)).astype("float32"))
    e.table = tf.get_variable("table", initializer=normal(size=(7, 3)).astype("float32"))
    e.h = tf.nn.tanh(e.x @ e.w + tf.gather(e.table, e.ids))
    e.o = tf.squeeze(e.h @ e.v, 1)
    e.d = e.o - e.y
    e.each = tf.square(e.d)
    e.n = tf.cast(tf.shape(e.x)[0], tf.float32)
    return e


def mean(x: Any) -> Any:
    return tf.reduce_mean(x)


def total(x: Any) -> Any:
    return tf.reduce_sum(x)


def open_time(e: Any) -> Any:
    return tf.placeholder_with_default(tf.stack([e.h, e.h * 2.0], 1), [None, None, 3])


def sparse_embedding(e: Any) -> Any:
    ids = tf.stack([e.ids, (e.ids + 1) % 7], 1)
    where = tf.where(ids > 0)
    sparse = tf.SparseTensor(where, tf.gather_nd(ids, where), tf.cast(tf.shape(ids), tf.int64))
    pooled = tf.nn.embedding_lookup_sparse(e.table, sparse, None, combiner="sum")
    return mean(tf.square(tf.reduce_sum(pooled, 1) + total(e.v) * tf.cast(tf.shape(pooled)[0], tf.float32) * 0.0))


def ctc(e: Any) -> Any:
    logits = tf.transpose(tf.stack([e.h] * 4, 1), [1, 0, 2])
    labels = tf.cast(tf.where(e.h[:, :1] > -9.0), tf.int64)
    sparse = tf.SparseTensor(labels, e.ids % 2, tf.stack([tf.shape(e.x, out_type=tf.int64)[0], 1]))
    return mean(tf.nn.ctc_loss(sparse, logits, tf.fill([tf.shape(e.x)[0]], 4)))


def masked_sequence(e: Any) -> Any:
    keras = pytest.importorskip("tf_keras")
    ids = tf.stack([e.ids, tf.nn.relu(e.ids - 3), tf.nn.relu(e.ids - 5)], 1)
    layer = keras.layers.Embedding(8, 3, mask_zero=True, embeddings_initializer=keras.initializers.Constant(0.3))
    e.more = layer
    cell = keras.layers.SimpleRNN(2, kernel_initializer="ones", recurrent_initializer="ones")
    out = cell(layer(ids), mask=tf.not_equal(ids, 0))
    return mean(tf.square(tf.reduce_sum(out, 1) * e.o))


def moved(e: Any) -> Any:
    average = tf.get_variable("average", initializer=np.zeros(3, "float32"), trainable=False)
    with tf.control_dependencies([tf.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(e.h, 0))]):
        return mean(e.each) + tf.reduce_sum(tf.square(tf.identity(e.v)))


# Exact on two ranks.
EXACT: dict[str, Any] = {
    "mean": lambda e: mean(e.each),
    "sum": lambda e: 0.1 * total(e.each),
    "mean and penalty": lambda e: mean(e.each) + 0.1 * tf.nn.l2_loss(e.w),
    "mean minus sum": lambda e: mean(e.each) - 0.01 * total(e.o),
    "l2_loss of the error": lambda e: 0.1 * tf.nn.l2_loss(e.d),
    "sum / (sum(mask) + eps)": lambda e: total(e.each * e.m) / (total(e.m) + 1e-8),
    "sum / (sum(mask) + 1)": lambda e: total(e.each * e.m) / (total(e.m) + 1.0),
    "sum / max(sum(mask), 1)": lambda e: total(e.each * e.m) / tf.maximum(total(e.m), 1.0),
    "mean(e * m) / mean(m)": lambda e: mean(e.each * e.m) / mean(e.m),
    "printed": lambda e: tf.Print(mean(e.each), [e.n]),
    "weighted": lambda e: tf.losses.compute_weighted_loss(e.each, e.m),
    "of chosen rows": lambda e: mean(tf.boolean_mask(e.each, e.m > 0)),
    "root of a mean": lambda e: tf.sqrt(mean(e.each)),
    "product of means": lambda e: mean(e.each) * mean(tf.square(e.o)),
    "sum by the root of rows": lambda e: total(e.each) / tf.sqrt(e.n),
    "stopped root and a mean": lambda e: tf.stop_gradient(tf.sqrt(mean(e.each))) + mean(e.each),
    "learned weights": lambda e: total(e.each * tf.nn.softplus(e.o)) / total(tf.nn.softplus(e.o)),
    "correlation": lambda e: 1 - mean(e.o * e.y) / tf.sqrt(mean(tf.square(e.o)) * mean(tf.square(e.y))),
    "covariance matrix": lambda e: tf.reduce_sum(tf.square(tf.matmul(e.h, e.h, transpose_a=True) / e.n)),
    "dice": lambda e: 1 - 2 * total(tf.sigmoid(e.o) * e.m) / (total(tf.sigmoid(e.o)) + total(e.m) + 1.0),
    "centred rows": lambda e: mean(tf.square(e.d - mean(e.d))),
    "batch normalization": lambda e: mean(tf.square(tf.reduce_sum(normalized(e.h), 1) - e.y)),
    "embedding_lookup_sparse": sparse_embedding,
    "ctc_loss": ctc,
    "mask_zero": masked_sequence,
    "times of any number": lambda e: mean(tf.reduce_mean(open_time(e), [1, 2]) * e.y),
    "moving average in the forward pass": moved,
    "an entropy of mean probabilities": lambda e: (
        -tf.reduce_sum(tf.reduce_mean(tf.nn.softmax(e.h), 0) * tf.log(tf.reduce_mean(tf.nn.softmax(e.h), 0)))
    ),
    "logarithm of a sum of exponentials": lambda e: tf.log(total(tf.exp(e.d))),
    "rows one by one": lambda e: mean(tf.map_fn(lambda row: row * row, e.d)),
    "softmax of a batch mean": lambda e: tf.reduce_logsumexp(tf.stop_gradient(tf.reduce_mean(e.h, 0))) + mean(e.each),
    "huber of two kinds": lambda e: tf.losses.huber_loss(e.y, e.o) + tf.reduce_max(tf.abs(e.v)) * mean(tf.abs(e.d)),
    "class weights": lambda e: total(tf.gather([1.0, 3.0], tf.cast(e.m, tf.int32)) * e.each) / e.n,
}


def normalized(rows: Any) -> Any:
    return (rows - tf.nn.moments(rows, [0])[0]) * tf.rsqrt(tf.nn.moments(rows, [0])[1] + 1e-3)


# Rows need other rows: exact or refused, never wrong.
MIXED: dict[str, Any] = {
    "listwise": lambda e: -mean(tf.nn.log_softmax(e.o) * e.m),
    "rows and constants": lambda e: mean(tf.concat([e.each, tf.constant([1.0, 2.0]) * tf.reduce_sum(e.v)], 0)),
    "penalty on what occurs": lambda e: mean(e.each) + tf.nn.l2_loss(tf.gather(e.table, tf.unique(e.ids)[0])),
    "gradient of a mean": lambda e: mean(tf.square(tf.gradients(mean(e.h), e.x)[0])) * 100.0,
    "moments with open time": lambda e: mean(
        tf.square(open_time(e) - tf.nn.moments(open_time(e), [0], keepdims=True)[0])
    ),
    "moments of one more axis": lambda e: mean(tf.square(e.h[None] - tf.nn.moments(e.h[None], [1], keepdims=True)[0])),
    "rows and trained rows": lambda e: mean(tf.square(tf.concat([e.h, e.table], 0))),
    "meshgrid": lambda e: mean(tf.square(tf.subtract(*tf.meshgrid(e.o, e.y)))),
    "pairs": lambda e: mean(tf.nn.relu(1.0 - e.o[:, None] + e.o[None, :])),
    "idle pairs": lambda e: mean(e.each) + mean(tf.nn.relu(tf.abs(e.o[:, None] - e.o[None, :]) - 9.0)),
    "neighbours": lambda e: mean(tf.square(e.o[1:] - e.o[:-1])),
    "largest row": lambda e: tf.reduce_max(e.each),
    "hardest half": lambda e: mean(tf.nn.top_k(e.each, tf.shape(e.each)[0] // 2)[0]),
    "in-batch negatives": lambda e: mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            logits=tf.matmul(e.h, e.h, transpose_b=True), labels=tf.range(tf.shape(e.h)[0])
        )
    ),
    "first row": lambda e: mean(e.each) + e.o[0],
    "largest of exponentials": lambda e: tf.reduce_logsumexp(e.o),
    "sorted": lambda e: mean(tf.sort(e.o) * e.y),
    "number of rows": lambda e: mean(e.each * e.n),
    "scan": lambda e: mean(tf.scan(tf.add, e.o)),
    "median": lambda e: tf.nn.top_k(e.each, tf.shape(e.each)[0] // 2)[0][-1],
    "softmax over rows by hand": lambda e: total(tf.exp(e.o) / total(tf.exp(e.o)) * e.y),
    "segments": lambda e: mean(tf.square(tf.math.unsorted_segment_sum(e.o, e.ids, 7))),
    "variance": lambda e: tf.nn.moments(e.d, [0])[1],
    "reversed": lambda e: mean(e.o * tf.reverse(e.y, [0])),
    "any": lambda e: mean(tf.where(tf.reduce_any(e.m > 0), e.each, -e.each)),
    "product": lambda e: tf.reduce_prod(1.0 + 0.1 * e.d),
}
ALL = EXACT | MIXED
EXACT_TOO = {"segments", "variance", "idle pairs"}  # though rows meet


def built(make: Any) -> tuple[Any, Any, Any]:
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(1)
        e = ends()
        loss = make(e)
        session = tf.Session(graph=graph)
    return e, loss, session


def values(graph: Any, session: Any) -> dict[str, np.ndarray]:
    with graph.as_default():
        return {v.op.name: session.run(v) for v in tf.global_variables()}


def plain(make: Any) -> dict[str, np.ndarray]:
    e, loss, session = built(make)
    with loss.graph.as_default():
        step = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            session.run([step, loss], {e.x: X, e.y: Y, e.m: M, e.ids: IDS})
    return values(loss.graph, session)


def trained(make: Any, ranks: int, **options: Any) -> dict[str, np.ndarray]:
    e, loss, session = built(make)
    with loss.graph.as_default():
        est = Estimator.from_graph(
            inputs=[e.x, e.ids], labels=[e.y, e.m], loss=loss, sess=session, backend="local",
            optimizer=tf.train.GradientDescentOptimizer(0.05), **options,
        )  # fmt: skip
    cuts = [(0, ROWS)] if ranks == 1 else [(0, CUT), (CUT, ROWS)]
    shards = shards_of([([X[a:b], IDS[a:b]], [Y[a:b], M[a:b]]) for a, b in cuts])
    learner = est._learner(None, None)
    job = FitJob(learner, FitPlan(epochs=STEPS, batch_size=ROWS, shuffle=False), (), est._current())
    est._state = LocalEngine(len(cuts)).run(job, shards, Settings(60))[0][1]
    est._put_back()
    return values(loss.graph, session)


def assert_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    for name in one:
        largest = max(1.0, np.abs(other[name]).max())
        np.testing.assert_allclose(one[name], other[name], atol=1e-5 * largest, err_msg=name)


QUICK = {
    "mean minus sum", "sum / (sum(mask) + 1)", "of chosen rows", "stopped root and a mean", "learned weights",
    "moving average in the forward pass", "listwise", "penalty on what occurs", "gradient of a mean", "neighbours",
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.full) for each in ALL])
def test_a_loss_is_exact_or_refused(name: str) -> None:
    truth = plain(ALL[name])
    assert_same(trained(ALL[name], 1), truth)
    if name in EXACT:
        assert_same(trained(ALL[name], 2), truth)
        return
    try:
        two = trained(ALL[name], 2)
    except WorkerFailed as error:
        assert "takes rows together" in str(error) and "loss_reduction" in str(error)
        assert name not in EXACT_TOO
    else:
        assert_same(two, truth)
