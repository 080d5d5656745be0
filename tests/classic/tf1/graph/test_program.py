"""Programs: what of a graph is shipped, what is refused by the name of its tensor, and what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from classic.tf1.graphs import X, graph
from orca.core.source import Batch
from orca.errors import ArgumentError, DataError
from orca_classic.tf1.graph.learner import GraphLearner
from orca_classic.tf1.graph.optimizers import ZooOptimizer, step_of
from orca_classic.tf1.graph.program import FedTensor, training_program


def shipped(**ends: Any) -> Any:
    return training_program(**ends)


def test_only_what_is_needed_is_shipped() -> None:
    made = graph()
    with made.graph.as_default():
        tf.constant(np.zeros(1_000_000, "float32"), name="unused")
    program = shipped(inputs=made.x, outputs=made.outputs)
    assert len(program.graph) < 20_000
    assert {spec.name for spec in program.variables} == {"hidden/kernel", "hidden/bias", "top"}


def test_a_placeholder_without_a_value_is_named() -> None:
    made = graph()
    with made.graph.as_default():
        rate = tf.placeholder(tf.float32, [], name="keep_rate")
        output = made.outputs * rate
    with pytest.raises(ArgumentError, match="the placeholder 'keep_rate:0' gets no value from the data.*feed_dict"):
        shipped(inputs=made.x, outputs=output).checked()
    assert shipped(inputs=made.x, outputs=output, feeds={rate: (0.5, 1.0)}).feeds[0][0] == "keep_rate:0"


def test_a_py_func_is_named() -> None:
    made = graph()
    with made.graph.as_default():
        output = tf.py_func(np.sign, [made.outputs], tf.float32, name="signs")
    with pytest.raises(ArgumentError, match="'signs:0' is a py_func.*cannot be sent to the workers"):
        shipped(inputs=made.x, outputs=output)


def test_a_py_func_within_a_branch_is_named() -> None:
    made = graph()
    with made.graph.as_default():
        output = tf.cond(
            made.outputs[0, 0] > 0,
            lambda: tf.py_func(np.sign, [made.outputs], tf.float32, name="signs"),
            lambda: made.outputs,
        )
    with pytest.raises(ArgumentError, match="'signs_0:0' is a py_func.*cannot be sent to the workers"):
        shipped(inputs=made.x, outputs=output)


def test_a_queue_is_named() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 5])
        row = tf.train.input_producer(X, name="rows").dequeue()
        with pytest.raises(ArgumentError, match="'rows/rows:0' reads from a queue of tf.train.*pass the data to fit"):
            shipped(inputs=x, outputs=x + row)


def test_an_iterator_is_named() -> None:
    with tf.Graph().as_default():
        rows = tf.data.Dataset.from_tensor_slices(X).batch(5)
        x = tf.data.make_initializable_iterator(rows).get_next()
        other = tf.placeholder(tf.float32, [None, 5])
        output = x @ tf.get_variable("weight", [5, 1]) + other[:, :1]
        with pytest.raises(ArgumentError, match="reads from an iterator of tf.data.*pass the dataset itself"):
            shipped(inputs=other, outputs=output)


def test_ends_of_two_graphs_are_named() -> None:
    one, other = graph(), graph()
    with pytest.raises(ArgumentError, match="'features:0' and 'add:0' belong to different graphs|different graphs"):
        shipped(inputs=one.x, outputs=other.outputs)


@pytest.mark.parametrize(
    ("shape", "rows", "arranged"),
    [
        ((None, 2, 3), (4, 6), (4, 2, 3)),
        ((None, 2, 3, 1), (4, 2, 3), (4, 2, 3, 1)),
        ((None,), (4, 1), (4,)),
        ((None, 1), (4,), (4, 1)),
        ((None, None), (4,), (4, 1)),
        ((None, None), (4, 9), (4, 9)),
        (None, (4, 9), (4, 9)),
    ],
)
def test_rows_get_the_shape_of_their_placeholder(shape: Any, rows: Any, arranged: Any) -> None:
    array = FedTensor("x:0", "float32", shape).arrange(np.zeros(rows))
    assert array.shape == arranged and array.dtype == np.float32


def test_rows_that_do_not_fit_name_the_placeholder() -> None:
    with pytest.raises(DataError, match=r"a row for 'x:0' must have the shape \(28, 28, 1\); the data has \(27, 28\)"):
        FedTensor("x:0", "float32", (None, 28, 28, 1)).arrange(np.zeros((2, 27, 28)))
    with pytest.raises(DataError, match="'x:0' takes float32; the data has texts or objects"):
        FedTensor("x:0", "float32", (None,)).arrange(np.array(["a", "b"]))


def test_a_graph_draws_by_the_seed_of_the_step() -> None:
    made = graph(dropout=0.5)
    program = shipped(inputs=made.x, outputs=made.outputs)
    learner = GraphLearner(program).copy_for(None, 0)
    learner.set_weights({spec.name: np.ones(spec.shape, "float32") for spec in program.variables})

    def drawn(seed: int) -> Any:
        learner.seed_step(seed)
        return learner.outputs(X)

    assert np.array_equal(drawn(1), drawn(1)) and not np.array_equal(drawn(1), drawn(2))
    learner.close()


DRAWS = {
    "integers": lambda rows: tf.random.uniform([rows, 40], 0, 9, tf.int32),
    "categories": lambda rows: tf.random.categorical(tf.log([[0.2, 0.8]]) + tf.zeros([rows, 2]), 40),
    "gamma": lambda rows: tf.random.gamma([40], tf.ones([rows]) * 4.5),
    "poisson": lambda rows: tf.random.poisson(tf.ones([rows]) * 4.5, [40]),
}
MEANS = {"integers": 4.0, "categories": 0.8, "gamma": 4.5, "poisson": 4.5}


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_goes_by_the_seed_of_the_step(name: str) -> None:
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        x = tf.placeholder(tf.float32, [None, 5])
        drawn = DRAWS[name](tf.shape(x)[0])
        fixed = DRAWS[name](2)
        program = shipped(inputs=x, outputs=[x[:, 0], drawn + 0, fixed + 0])
    learner = GraphLearner(program).copy_for(None, 0)

    def draws(seed: int) -> Any:
        learner.seed_step(seed)
        return learner.fetch("draws", [drawn.name, fixed.name], Batch(X, None, len(X), len(X)), True)

    (one, same), (two, again), (three, _) = draws(1), draws(2), draws(1)
    assert np.array_equal(one, three) and not np.array_equal(one, two)
    assert np.array_equal(same, again)  # what no row decides is the same on all ranks
    assert np.mean(one) == pytest.approx(MEANS[name], rel=0.1)
    learner.steps += 1
    assert not np.array_equal(draws(1)[1], same)
    learner.close()


def test_draws_in_a_loop_differ_from_pass_to_pass() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 3])
        start = [tf.constant(0), tf.zeros([0])]
        shapes = [tf.TensorShape([]), tf.TensorShape([None])]
        _, drawn = tf.while_loop(
            lambda at, _: at < 4,
            lambda at, seen: (at + 1, tf.concat([seen, tf.random.uniform([1])], 0)),
            start,
            shapes,
        )
        program = shipped(inputs=x, outputs=x + tf.reduce_sum(drawn), metrics={"spread": drawn[0]})
        learner = GraphLearner(program).copy_for(None, 0)
        assert len(set(learner.session.run(drawn.name).tolist())) == 4
        learner.close()


def test_a_term_of_two_losses_that_take_turns_counts_once() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, 2])
        one, two = tf.get_variable("one", [2]), tf.get_variable("two", [2])
        both = tf.reduce_mean(x * one * two)
        losses = tf.reduce_sum(x * one) + both, both
        made = [ZooOptimizer(tf.train.GradientDescentOptimizer(0.1)) for _ in losses]
        steps = [
            step_of(each.minimize(loss, var_list=[variable]))
            for each, loss, variable in zip(made, losses, (one, two), strict=True)
        ]
        program = training_program(inputs=x, loss=losses[0] + losses[1], turns=[(step, 1) for step in steps])
    assert [part.kind for part in program.loss] == ["sum", "rows"]
    assert [len(turn.terms) for turn in program.turns] == [2, 1]
