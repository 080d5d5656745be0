"""Norms: which statistics over rows a graph has, and the order in which ranks sum them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from orca.errors import ArgumentError
from orca_classic.tf1.graph.norms import GRADIENTS, AgreedGraph, agreed, let_ranks_meet, sums_of
from orca_classic.tf1.graph.terms import Analysis


def fused(rows: Any, training: bool = True) -> Any:
    images = tf.reshape(rows, [-1, 1, 1, 4])
    known = {} if training else {"mean": tf.zeros([4]), "variance": tf.ones([4])}
    outputs = tf.nn.fused_batch_norm(images, tf.ones([4]), tf.zeros([4]), is_training=training, **known)
    return tf.reshape(outputs[0], [-1, 4])


def looped(rows: Any, change: Any) -> Any:
    return tf.while_loop(lambda at, _: at < 2, lambda at, each: (at + 1, change(each)), [tf.constant(0), rows])[1]


def stepped(rows: Any, change: Any) -> Any:
    """Return what a loop over time makes of each row."""
    times = tf.transpose(tf.stack([rows, -rows], 1), [1, 0, 2])
    return tf.transpose(tf.scan(lambda before, now: before + change(now), times), [1, 0, 2])


STATISTICS: dict[str, tuple[Any, int]] = {
    "moments": (lambda x: x - tf.nn.moments(x, [0])[0], 1),
    "moments of rows and time": (lambda x: x - tf.nn.moments(tf.reshape(x, [-1, 2, 2]), [0, 1])[0][0], 1),
    "of each row": (lambda x: x - tf.nn.moments(x, [1], keepdims=True)[0], 0),
    "a mean": (lambda x: x - tf.reduce_mean(x), 1),
    "a mean of chosen rows": (lambda x: x - tf.reduce_mean(tf.boolean_mask(x, x[:, 0] > 0)), 1),  # of the loss alone
    "fused": (fused, 1),
    "fused, of each row": (lambda x: layer_normalized(x), 0),
    "fused, of what was learned": (lambda x: fused(x, False), 0),
    "fused, by a condition": (lambda x: tf.cond(flag() > 0, lambda: fused(x), lambda: x), 1),
    "fused, as rows decide": (lambda x: tf.cond(x[0, 0] > 0, lambda: fused(x), lambda: x), 0),
    "fused, as the number of rows decides": (
        lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: fused(x), lambda: x),
        0,
    ),
    "fused, as a draw decides": (
        lambda x: tf.cond(tf.random.uniform([]) > 0.5, lambda: fused(x), lambda: x),
        0,
    ),
    "fused, in a loop": (lambda x: looped(x, fused), 0),
    "fused, in a loop over time": (lambda x: stepped(x, fused), 0),
    "of each row, in a loop over time": (
        lambda x: stepped(x, lambda rows: rows - tf.nn.moments(rows, [1], keepdims=True)[0]),
        0,
    ),
    "fused, with a gradient in the loss": (lambda x: tf.gradients(tf.reduce_sum(fused(x) ** 2), x)[0], 0),
}


def layer_normalized(rows: Any) -> Any:
    """Normalize each row, as Keras does: by batch normalization with a channel for each."""
    count = tf.shape(rows)[0]
    images = tf.ensure_shape(tf.reshape(rows, tf.stack([1, count, 4, 1])), [1, None, 4, 1])
    scale, offset = tf.ensure_shape(tf.ones([count]), [None]), tf.ensure_shape(tf.zeros([count]), [None])
    return tf.reshape(tf.nn.fused_batch_norm(images, scale, offset, data_format="NCHW")[0], [-1, 4])


def flag() -> Any:
    return tf.placeholder_with_default(1.0, [], name="flag")


def made(make: Any) -> AgreedGraph:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        loss = tf.reduce_mean(tf.square(make(x)))
    return agreed(graph, [x.name], [loss.op.name], [], [])


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_rows_need_are_over_all_ranks(name: str) -> None:
    make, sums = STATISTICS[name]
    whole = made(make)
    assert len(whole.sums) == sums
    assert whole.has_statistics == bool(sums) or "chosen" in name


@pytest.mark.parametrize("name", ["moments", "fused"])
def test_one_rank_has_the_graph_as_it_is(name: str) -> None:
    with tf.Graph().as_default() as graph:
        x, weight = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None])
        each = tf.reduce_sum(tf.square(STATISTICS[name][0](x)), 1)
        loss = tf.reduce_sum(each * weight) / tf.reduce_sum(weight)
    whole = agreed(graph, [x.name, weight.name], [loss.op.name], [], [], alone=True)
    assert whole.graph is graph and not whole.sums


def test_a_loss_that_an_update_averages_is_that_of_all_ranks() -> None:
    with tf.Graph().as_default() as graph:
        x, kept = tf.placeholder(tf.float32, [None, 4]), tf.get_variable("kept", [2])
        loss = tf.reduce_mean(x) + tf.nn.l2_loss(kept)
        update = tf.assign(kept, 0.9 * kept + 0.1 * tf.stack([loss, tf.reduce_mean(tf.square(x))]))
    whole = agreed(graph, [x.name], [loss.op.name], [], [update.op.name])
    analysis = Analysis([whole.graph.get_tensor_by_name(x.name)])
    assert [term.kind for term in analysis.terms(whole.graph.get_tensor_by_name(loss.name))] == ["joint"]
    assert len(whole.sums) == 1  # of both means that the update writes


def test_losses_and_writes_are_made_of_totals() -> None:
    with tf.Graph().as_default() as graph:
        x, seen = tf.placeholder(tf.float32, [None, 4]), tf.get_variable("seen", [], tf.int32)
        root = tf.sqrt(tf.reduce_mean(tf.square(x)))
        loss = root / tf.reduce_sum(x)
        count = tf.assign_add(seen, tf.shape(x)[0])
    whole = agreed(graph, [x.name], [loss.op.name], [], [count.op.name])
    assert len(whole.sums) == 2 and len(whole.totals) == 3
    assert agreed(graph, [x.name], [], [root.op.name], []).graph is graph  # a metric is none of these


def test_the_graph_of_the_user_stays_as_it_is() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        loss = tf.reduce_mean(tf.cond(flag() > 0, lambda: fused(x), lambda: x))
    before = graph.as_graph_def()
    agreed(graph, [x.name], [loss.op.name], [], [])
    assert graph.as_graph_def() == before


def test_sums_of_branches_have_one_order() -> None:
    def branches(x: Any) -> Any:
        on = flag() > 0
        one, two = (tf.cond(on, lambda n=n: fused(x * n), lambda: x) for n in (1.0, 2.0))
        return one + two + fused(x * 3.0) + tf.cond(flag() > 2, lambda: fused(x * 4.0), lambda: x)

    definition = made(branches).graph.as_graph_def()
    with tf.Graph().as_default():
        let_ranks_meet(definition, lambda array: array)
        tf.import_graph_def(definition, name="")  # has no cycle
    sums = {node.name: node for node in sums_of(definition)}
    assert len(sums) == 4 and {node.op for node in sums.values()} == {"PyFunc"}
    waiting = [name for name, node in sums.items() if any(each.startswith("^") for each in node.input)]
    assert len(waiting) == 3


def sums_in_order(graph: Any) -> list[str]:
    """Return the sums in the order in which ranks meet; each waits for one, itself or by what follows it."""
    definition = graph.as_graph_def()
    with tf.Graph().as_default():
        let_ranks_meet(definition, lambda array: array)
        tf.import_graph_def(definition, name="")
    return [node.name for node in sums_of(definition) if any(each.startswith("^") for each in node.input)]


def test_a_sum_after_a_loop_and_one_beside_it_have_an_order() -> None:
    functional = tf.control_flow_v2_enabled()
    tf.disable_control_flow_v2()
    try:
        whole = made(lambda x: fused(looped(x, tf.tanh)) + fused(x))
    finally:
        if functional:
            tf.enable_control_flow_v2()
    assert len(whole.sums) == 2 and len(sums_in_order(whole.graph)) == 1


def test_gradients_of_sums_with_and_without_a_condition_have_an_order() -> None:
    def towers(x: Any) -> Any:
        on = flag() > 0
        one, two = (tf.cond(on, lambda n=n: fused(x * n), lambda: x) for n in (1.0, 2.0))
        return one * two + tf.tanh(x - tf.nn.moments(tf.square(x), [0])[0])

    whole = made(towers)
    graph = whole.graph
    with graph.as_default(), tf.name_scope(GRADIENTS):
        rows, loss = graph.get_operations()[0].outputs[0], graph.get_tensor_by_name("Mean:0")
        tf.gradients(loss, rows)
    assert len(sums_in_order(graph)) == 5


def test_conditions_within_conditions_without_an_order_are_refused() -> None:
    node = tf.NodeDef
    switch = [node(name="p", op="Placeholder"), node(name="q", op="Placeholder")]
    switch += [node(name=f"s{n}", op="Switch", input=["p" if n else "q", "p" if n else "q"]) for n in (0, 1)]
    sums = [node(name=f"orca_sum_{n}", op="Identity", input=[f"s{n}:1"]) for n in (0, 1)]
    with tf.Graph().as_default(), pytest.raises(ArgumentError, match="has no order that all workers can keep"):
        let_ranks_meet(tf.GraphDef(node=[*switch, *sums]), lambda array: array)
