"""The Estimator of graphs: any number of ranks is the plain session loop; data kinds, options, files and errors."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow.compat.v1 as tf

from classic.tf1.graphs import CLASSES, ROWS, X, Y, adam, assert_same, graph, momentum, plain_loop, values
from orca.callbacks import Callback
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.data.shard import XShards
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, DataError, NotSupported, WorkerFailed, WorkerLost
from orca.job import FitJob
from orca.metrics import Accuracy
from orca.storage.checkpoints import newest_run, path_of
from orca.testing import shards_of
from orca.triggers import EveryEpoch, MaxIteration, SeveralIteration
from orca_classic import Estimator
from orca_classic.bigdl.optimizers import SGD, Adam
from orca_classic.bigdl.validation import Top1Accuracy, Top5Accuracy
from orca_classic.data.tf.data import Dataset
from orca_classic.tf1.packed_rows import PackedDataset

WHOLE = np.arange(ROWS)
OPTIMIZERS = {
    "adam": adam,
    "momentum": momentum,
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
}


def estimator(made: Any, optimizer: Any = None, **options: Any) -> Any:
    ends = {"inputs": made.x, "outputs": made.outputs, "labels": made.y, "loss": made.loss, "sess": made.session}
    options = {"backend": "local", "metrics": {"acc": made.accuracy}} | options
    with made.graph.as_default():
        return Estimator.from_graph(**ends, optimizer=optimizer() if callable(optimizer) else optimizer, **options)


def trained_on(
    cuts: list[int], optimizer: Any, make_loss: Any = None, steps: int = 4, normalize: Any = None, **options: Any
) -> Any:
    """Train on rows dealt out so, all of them in each step; return the values that rank 0 ends with."""
    made = graph(make_loss, normalize=normalize)
    est = estimator(made, optimizer, **normalizing(made) | options)
    parts = [np.arange(ROWS)[start:stop] for start, stop in zip([0, *cuts], [*cuts, ROWS], strict=True)]
    job = FitJob(est._learner(None, None), FitPlan(epochs=steps, batch_size=ROWS, shuffle=False), (), est._current())
    results = LocalEngine(len(parts)).run(job, shards_of([(X[rows], Y[rows]) for rows in parts]), Settings(20))
    est._state = results[0][1]
    est._put_back()
    return values(made)


def normalizing(made: Any) -> dict[str, Any]:
    return {"updates": made.updates, "feeds": {made.training: (True, False)}}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_uneven_and_empty_shards_train_as_a_session_does(optimizer: str) -> None:
    plain = plain_loop(OPTIMIZERS[optimizer], [WHOLE] * 4)
    assert_same(trained_on([40, 40], OPTIMIZERS[optimizer]), plain)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_trains_as_a_session_does(ranks: int) -> None:
    made = graph()
    est = estimator(made, adam, workers_per_node=ranks)
    assert est.fit((X, Y), epochs=4, batch_size=ROWS) is est
    plain = plain_loop(adam, [WHOLE] * 4)
    assert_same(values(made), plain)
    assert est.fit((X, Y), epochs=2, batch_size=ROWS).trained == (6, 6)  # goes on with the optimizer's slots
    assert_same(values(made), plain_loop(adam, [WHOLE] * 6))


def masked(ends: Any) -> Any:
    weights = tf.cast(ends.y, tf.float32) * 2.0
    return tf.losses.compute_weighted_loss(ends.each, weights)


LOSSES = {
    "a mean with a penalty": lambda ends: tf.reduce_mean(ends.each) + penalty(ends),
    "a sum and a penalty": lambda ends: tf.reduce_sum(ends.each) + penalty(ends),
    "weights of rows": masked,
    "a part of a sum": lambda ends: 2.0 / tf.cast(tf.shape(ends.each)[0], tf.float32) * tf.reduce_sum(ends.each),
    "a mean of chosen rows": lambda ends: tf.reduce_mean(tf.boolean_mask(ends.each, ends.y > 0)) + penalty(ends),
}


def penalty(ends: Any) -> Any:
    return 0.05 * tf.nn.l2_loss(ends.top)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_every_kind_are_exact(name: str) -> None:
    def slow() -> Any:
        return tf.train.MomentumOptimizer(0.01, 0.9)

    assert_same(trained_on([11, 12], slow, LOSSES[name]), plain_loop(slow, [WHOLE] * 4, LOSSES[name]))


def hardest(ends: Any) -> Any:
    return tf.reduce_mean(tf.nn.top_k(ends.each, tf.shape(ends.each)[0] // 2)[0], name="hardest")


def test_a_loss_in_which_rows_need_each_other_trains_on_one_worker_or_as_claimed() -> None:
    made = graph(hardest)
    estimator(made, adam).fit((X, Y), epochs=4, batch_size=ROWS)
    assert_same(values(made), plain_loop(adam, [WHOLE] * 4, hardest))
    with pytest.raises(WorkerFailed, match="'hardest:0' takes rows together: 2 workers.*loss_reduction="):
        estimator(graph(hardest), adam, workers_per_node=2).fit((X, Y))
    estimator(graph(hardest), adam, workers_per_node=2, loss_reduction="mean").fit((X, Y), batch_size=ROWS)
    with pytest.raises(ArgumentError, match='loss_reduction must be "mean", "sum", "none" or None; got \'avg\''):
        estimator(graph(), adam, loss_reduction="avg")


def test_a_loss_of_one_value_a_row_is_averaged_if_it_is_no_reduction() -> None:
    made = graph(lambda ends: ends.each)
    estimator(made, adam, workers_per_node=2, loss_reduction="none").fit((X, Y), epochs=2, batch_size=ROWS)
    assert_same(values(made), plain_loop(adam, [WHOLE] * 2))


def chosen(ends: Any) -> Any:
    return tf.cast(tf.equal(ends.y, 2), tf.float32)


RARE = {
    "a ratio": lambda ends: tf.reduce_sum(ends.each * chosen(ends)) / tf.reduce_sum(chosen(ends)),
    "a product": lambda ends: 1.0 / tf.reduce_sum(chosen(ends)) * tf.reduce_sum(ends.each * chosen(ends)),
    "a ratio and a mean": lambda ends: RARE["a ratio"](ends) + tf.reduce_mean(tf.square(ends.outputs)),
    "a mask": lambda ends: tf.reduce_mean(tf.boolean_mask(ends.each, tf.equal(ends.y, 2))),
    "no weight anywhere": lambda ends: masked_by_nothing(ends) + penalty(ends),
}


def masked_by_nothing(ends: Any) -> Any:
    return tf.losses.compute_weighted_loss(ends.each, tf.cast(tf.equal(ends.y, 9), tf.float32))


@pytest.mark.parametrize("name", RARE)
def test_a_rank_that_counts_nothing_adds_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    order = np.argsort(Y, kind="stable")  # the rows that count are all on the last rank
    for array, rows in (("X", X[order]), ("Y", Y[order])):
        monkeypatch.setitem(globals(), array, rows)
        monkeypatch.setattr(f"classic.tf1.graphs.{array}", rows)
    assert_same(trained_on([11], momentum, RARE[name], steps=2), plain_loop(momentum, [WHOLE] * 2, RARE[name]))


def test_a_rehearsal_leaves_no_trace() -> None:
    def moved(ends: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(tf.get_variable("count", [], tf.int32, trainable=False), 1)]):
            return tf.reduce_mean(tf.identity(ends.each)) * tf.reduce_mean(ends.each)

    for dropout in (0.0, 0.5):  # whose draws are no difference between ranks
        made = graph(moved, dropout=dropout)
        with made.graph.as_default():
            made.session.run(tf.assign(tf.global_variables("count")[0], 0))
        estimator(made, adam, workers_per_node=2).fit((X, Y), epochs=2, batch_size=ROWS)
        assert values(made)["count"] == 2


def test_batches_without_a_counted_row_leave_means_alone() -> None:
    made = graph(RARE["a mask"])
    with made.graph.as_default():
        right = tf.cast(tf.equal(tf.argmax(made.outputs, 1, output_type=tf.int32), made.y), tf.float32) + made.each
        picked = tf.boolean_mask(right, tf.equal(made.y, 2))
        metrics = {"rows": picked, "mean": tf.reduce_mean(picked)}
        expected = made.session.run([made.loss, metrics["mean"]], {made.x: X, made.y: Y})
    scores = estimator(made, metrics=metrics).evaluate((X, Y), batch_size=4)
    assert [scores["loss"], scores["mean"]] == pytest.approx(expected, abs=1e-5)
    assert scores["rows"] == pytest.approx(expected[1], abs=1e-5)


def test_a_learning_rate_is_fed() -> None:
    made = graph()
    with made.graph.as_default():
        rate = tf.placeholder(tf.float32, [], name="rate")
    est = estimator(made, lambda: tf.train.GradientDescentOptimizer(rate), workers_per_node=2)
    est.fit((X, Y), batch_size=ROWS, feed_dict={rate: 0.05})
    plain = plain_loop(lambda: tf.train.GradientDescentOptimizer(0.05), [WHOLE])
    assert_same(values(made), plain)
    assert est.predict(X[:2]).shape == (2, 3)  # which needs no rate
    with pytest.raises(ArgumentError, match="the placeholder 'rate:0' gets no value"):
        est.fit((X, Y))
    with pytest.raises(ArgumentError, match="feed_dict must have tensors for keys; got 'rate:0'"):
        est.fit((X, Y), feed_dict={"rate:0": 0.1})


def test_long_values_are_fed_as_they_are() -> None:
    made = graph()
    with made.graph.as_default():
        long, pair = tf.placeholder(tf.float32, [3000]), tf.placeholder(tf.float32, [2])
        made.outputs = made.outputs[:, :2] * pair + long[1500]
    est, one = estimator(made), np.zeros(3000)
    other = one.copy()
    other[1500] = 7.0
    first, second = (est.predict(X[:2], feed_dict={long: each, pair: [0.0, 1.0]}) for each in (one, other))
    np.testing.assert_allclose(second - first, 7.0, atol=1e-5)
    np.testing.assert_array_equal(first[:, 0], 0.0)


def test_sparse_gradients_move_the_rows_they_are_of() -> None:
    ids = np.array([0, 2, 2, 5, 0, 7, 1], "int32")

    def build() -> Any:
        made = graph()
        with made.graph.as_default():
            made.x = tf.placeholder(tf.int32, [None])
            start = tf.glorot_uniform_initializer(seed=4)
            table = tf.get_variable("table", [9, 3], initializer=start)
            made.outputs = tf.nn.embedding_lookup(table, made.x)
            made.loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(logits=made.outputs, labels=made.y)
            )
            made.session.run(tf.global_variables_initializer())
        return made

    plain, ours = build(), build()
    labels = Y[: len(ids)]
    with plain.graph.as_default():
        optimizer = momentum()
        op = optimizer.minimize(plain.loss, var_list=[v for v in tf.trainable_variables() if v.op.name == "table"])
        plain.session.run(tf.variables_initializer(optimizer.variables()))
        plain.session.run(op, {plain.x: ids, plain.y: labels})
        plain.session.run(op, {plain.x: ids[:3], plain.y: labels[:3]})
    est = estimator(ours, momentum, workers_per_node=2, metrics=None)
    est.fit((ids, labels), batch_size=7, shuffle=False)
    est.fit((ids[:3], labels[:3]), batch_size=3, shuffle=False)
    one, other = values(plain), values(ours)
    assert_same({k: one[k] for k in ("table", "table/Momentum")}, {k: other[k] for k in ("table", "table/Momentum")})


def clipped_by_norm(pairs: list[Any]) -> list[Any]:
    return list(zip(tf.clip_by_global_norm([g for g, _ in pairs], 0.05)[0], [v for _, v in pairs], strict=True))


def clipped_by_value(pairs: list[Any]) -> list[Any]:
    return [(tf.clip_by_value(gradient, -0.01, 0.02), variable) for gradient, variable in pairs]


@pytest.mark.parametrize(
    ("options", "change"),
    [({"clip_norm": 0.05}, clipped_by_norm), ({"clip_value": (-0.01, 0.02)}, clipped_by_value)],
    ids=["norm", "value"],
)
def test_gradients_are_clipped_after_ranks_agree(options: Any, change: Any) -> None:
    assert_same(trained_on([30], momentum, **options), plain_loop(momentum, [WHOLE] * 4, change=change))
    made = graph()
    est = estimator(made, momentum, **options)
    est.clear_gradient_clipping()
    est.fit((X, Y), epochs=2, batch_size=ROWS)
    assert_same(values(made), plain_loop(momentum, [WHOLE] * 2))
    if "clip_norm" in options:
        est.set_l2_norm_gradient_clipping(0.05)
    else:
        est.set_constant_gradient_clipping(-0.01, 0.02)
    assert (est.learner.clip_norm, est.learner.clip_value) != (None, None)


def test_optimizers_of_keras_step_in_the_graph() -> None:
    tf_keras = pytest.importorskip("tf_keras")
    import keras

    wanted = trained_on([30], lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9))
    plain = plain_loop(momentum, [WHOLE] * 4)
    for twin in (tf_keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1, momentum=0.9)):
        got = trained_on([30], lambda twin=twin: twin)
        for name in ("top", "hidden/kernel", "hidden/bias"):
            np.testing.assert_allclose(got[name], wanted[name], atol=2e-6)
            np.testing.assert_allclose(got[name], plain[name], atol=2e-6)
    averaging = keras.optimizers.SGD(0.1, use_ema=True)
    with pytest.raises(ArgumentError, match="SGD with use_ema does not work in a graph"):
        estimator(graph(), lambda: averaging)
    with pytest.raises(ArgumentError, match="SGD was made within a graph.*Make it outside"):
        estimator(graph(), lambda: keras.optimizers.SGD(0.1))


def test_optim_methods_of_bigdl_step_beside_the_graph(tmp_path: Path) -> None:
    import torch

    made = graph()
    weights = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in values(made).items()}
    method = SGD(learningrate=0.1, learningrate_decay=0.5)
    stepper = method.build(list(weights.values()))
    for _ in range(3):
        hidden = torch.tanh(torch.tensor(X) @ weights["hidden/kernel"] + weights["hidden/bias"])
        stepper.zero_grad()
        torch.nn.functional.cross_entropy(hidden @ weights["top"], torch.tensor(Y).long()).backward()
        stepper.step()
    est = estimator(made, lambda: method, workers_per_node=2, model_dir=str(tmp_path))
    est.fit((X, Y), epochs=2, batch_size=ROWS, checkpoint_trigger=EveryEpoch())
    est.fit((X, Y), epochs=1, batch_size=ROWS)
    assert_same(values(made), {name: value.detach().numpy() for name, value in weights.items()})
    rates = [value for _, value, _ in est.get_train_summary("LearningRate")]
    assert rates == pytest.approx([0.1, 0.1 / 1.5, 0.05], rel=1e-4)
    again = estimator(graph(), lambda: Adam(1e-3))
    assert again.fit((X, Y), epochs=1).evaluate((X, Y))["loss"] < 2


def test_evaluation_is_exact_for_any_batch() -> None:
    made = graph()
    loss, accuracy = made.session.run([made.loss, made.accuracy], {made.x: X, made.y: Y})
    for ranks, size in ((1, 7), (3, 10)):
        scores = estimator(made, adam, workers_per_node=ranks).evaluate((X, Y), batch_size=size)
        assert scores == pytest.approx({"loss": loss, "acc": accuracy}, abs=1e-6)
    by_outputs = estimator(made, adam, metrics=[Accuracy()]).evaluate((X, Y), batch_size=8)
    assert by_outputs == pytest.approx({"loss": loss, "Accuracy": accuracy}, abs=1e-6)


@pytest.mark.parametrize(("ranks", "size"), [(1, 7), (2, 10)])
def test_metrics_that_are_no_means_are_exact(ranks: int, size: int) -> None:
    made = graph()
    with made.graph.as_default():
        error = made.outputs[:, 0] - tf.cast(made.y, tf.float32)
        classes = tf.argmax(made.outputs, 1)
        centred = tf.square(error - tf.reduce_mean(error))
        metrics = {
            "root": tf.sqrt(tf.reduce_mean(tf.square(error))),
            "largest": tf.reduce_max(tf.abs(error)),
            "total": tf.reduce_sum(error),
            "ratio": tf.reduce_sum(error) / tf.reduce_sum(tf.abs(error)),
            "streamed": tf.metrics.accuracy(made.y, classes),
            "recall": tf.metrics.recall(made.y > 0, classes > 0)[1],
        }
        made.session.run(tf.local_variables_initializer())
        tensors = {name: each[1] if isinstance(each, tuple) else each for name, each in metrics.items()}
        truth = made.session.run(tensors, {made.x: X, made.y: Y})
        mixing = {"r2": 1 - tf.reduce_mean(tf.square(error)) / tf.reduce_mean(centred)}
    scores = estimator(made, workers_per_node=ranks, metrics=metrics).evaluate((X, Y), batch_size=size)
    scores.pop("loss")
    assert scores == pytest.approx({name: float(value) for name, value in truth.items()}, rel=1e-4)
    refused = estimator(made, workers_per_node=ranks, metrics=mixing)
    if ranks == 1:
        expected = made.session.run(mixing["r2"], {made.x: X, made.y: Y})
        assert refused.evaluate((X, Y), batch_size=ROWS)["r2"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises((ArgumentError, WorkerFailed), match="the metric 'r2' of a batch is not made of those of its"):
        refused.evaluate((X, Y), batch_size=size)


def test_classes_of_tensorflow_count_from_zero() -> None:
    made = graph()
    with made.graph.as_default():
        made.outputs = tf.one_hot(made.y, CLASSES)
    metrics = [Top1Accuracy(), Top5Accuracy()]
    scores = estimator(made, metrics=metrics, targets=made.y).evaluate((X, Y))
    assert [scores["Top1Accuracy"], scores["Top5Accuracy"]] == [1.0, 1.0]


def test_weighted_losses_are_evaluated_over_all_weights() -> None:
    made = graph(masked)
    loss = made.session.run(made.loss, {made.x: X, made.y: Y})
    scores = estimator(made, adam, workers_per_node=2).evaluate((X, Y), batch_size=6)
    assert scores["loss"] == pytest.approx(loss, abs=1e-6)


def test_predictions_come_in_the_order_of_the_rows() -> None:
    made = graph()
    truth = made.session.run(made.outputs, {made.x: X})
    est = estimator(made, adam, workers_per_node=2)
    np.testing.assert_allclose(est.predict(X, batch_size=9), truth, atol=1e-6)
    rows = tf.data.Dataset.from_tensor_slices(X).map(lambda row: row * 1.0)
    np.testing.assert_allclose(est.predict(rows), truth, atol=1e-6)
    with made.graph.as_default():
        both = Estimator.from_graph(inputs=made.x, outputs=[made.outputs, made.x], sess=made.session, backend="local")
    first, second = both.predict(X)
    np.testing.assert_allclose(first, truth, atol=1e-6)
    assert np.array_equal(second, X)
    with pytest.raises(ArgumentError, match="there is nothing to evaluate"):
        both.evaluate((X, Y))
    with pytest.raises(ArgumentError, match="fit needs a loss and an optimizer"):
        both.fit((X, Y))


def test_a_tf_data_dataset_trains_in_parts() -> None:
    made = graph()
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x * 1.0, y))
    est = estimator(made, adam, workers_per_node=2)
    est.fit(rows, epochs=4, batch_size=ROWS, validation_data=rows)
    assert_same(values(made), plain_loop(adam, [WHOLE] * 4))
    assert est.history.epochs[-1]["val_num_samples"] == ROWS
    with pytest.raises(DataError, match="has no end"):
        est.fit(rows.repeat())
    with pytest.raises(DataError, match=r"must give \(features, labels\) to train"):
        est.fit(tf.data.Dataset.from_tensor_slices(X))
    python = rows.map(lambda x, y: (tf.numpy_function(np.sign, [x], tf.float32), y))
    with pytest.raises(ArgumentError, match="calls a function of Python.*cannot be sent"):
        est.fit(python)


def test_elements_of_tf_data_meet_inputs_and_labels_in_order() -> None:
    made = graph()
    with made.graph.as_default():
        other = tf.placeholder(tf.float32, [None])
        loss = tf.reduce_mean(made.each * other)
        est = Estimator.from_graph(
            inputs=[made.x, other], labels=made.y, outputs=made.outputs, loss=loss, optimizer=momentum(),
            sess=made.session, backend="local", workers_per_node=2,
        )  # fmt: skip
    rows = tf.data.Dataset.from_tensor_slices((X, np.ones(ROWS, "float32"), Y))
    est.fit(rows, epochs=2, batch_size=ROWS)
    assert_same(values(made), plain_loop(momentum, [WHOLE] * 2))
    assert est.evaluate(rows)["loss"] == pytest.approx(est.evaluate(((X, np.ones(ROWS)), Y))["loss"])


def test_ranks_read_a_pipeline_that_shuffles_in_one_order() -> None:
    packed = PackedDataset.of(tf.data.Dataset.range(40).shuffle(40))
    parts = [np.concatenate(list(packed.rows(number, 2))) for number in range(2)]
    assert sorted(np.concatenate(parts)) == list(range(40))


def test_a_pipeline_without_end_is_read_step_by_step() -> None:
    made = graph()
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).repeat()
    est = estimator(made, adam, workers_per_node=2).fit(rows, max_steps=4, batch_size=ROWS)
    assert est.trained[1] == 4
    assert_same(values(made), plain_loop(adam, [WHOLE] * 4))
    with pytest.raises(DataError, match="the data has no end"):
        est.predict(rows)


def test_values_are_fed_by_the_mode() -> None:
    made = graph()
    with made.graph.as_default():
        training = tf.placeholder(tf.bool, [], name="training")
        factor = tf.cond(training, lambda: tf.constant(0.5), lambda: tf.constant(1.0))
        made.loss = tf.reduce_mean(made.each) * factor
    with pytest.raises(ArgumentError, match="the placeholder 'training:0' gets no value"):
        estimator(made, momentum).fit((X, Y))
    with made.graph.as_default():
        est = Estimator.from_graph(
            inputs=made.x, labels=made.y, outputs=made.outputs, loss=made.loss, optimizer=momentum(),
            sess=made.session, backend="local", workers_per_node=2, feeds={training: (True, False)},
        )  # fmt: skip
    before = made.session.run(made.loss, {made.x: X, made.y: Y, training: False})
    assert est.evaluate((X, Y))["loss"] == pytest.approx(before, abs=1e-6)
    est.fit((X, Y), epochs=1, batch_size=ROWS)
    assert est.history.epochs[-1]["train_loss"] == pytest.approx(before / 2, abs=1e-6)


def test_several_inputs_come_as_a_list_or_by_name() -> None:
    made = graph()
    with made.graph.as_default():
        other = tf.placeholder(tf.float32, [None, 3], name="other")
        output = made.outputs + other
    truth = made.session.run(output, {made.x: X, other: X[:, :3]})
    for ends, data in (
        ([made.x, other], (X, X[:, :3])),
        ({"a": made.x, "b": other}, {"x": {"b": X[:, :3], "a": X}}),
    ):
        est = Estimator.from_graph(inputs=ends, outputs=output, sess=made.session, backend="local")
        np.testing.assert_allclose(est.predict(data), truth, atol=1e-6)
    with pytest.raises(DataError, match=r"x must have 2 part\(s\)"):
        est.predict(X)


def test_a_fit_resumed_mid_epoch_ends_where_the_whole_one_does(tmp_path: Path) -> None:
    whole = graph(dropout=0.3)
    estimator(whole, adam, workers_per_node=2).fit((X, Y), epochs=3, batch_size=8)
    first = graph(dropout=0.3)
    folder = str(tmp_path / "kept")
    cut = estimator(first, adam, workers_per_node=2, model_dir=folder)
    cut.fit((X, Y), epochs=3, batch_size=8, checkpoint_trigger=SeveralIteration(5), end_trigger=MaxIteration(10))
    shutil.rmtree(path_of(newest_run(folder), 10))  # so that the fifth step is the last that is known
    rest = graph(dropout=0.3)
    est = estimator(rest, adam, workers_per_node=2, model_dir=folder)
    est.fit((X, Y), epochs=3, batch_size=8, resume=True)
    assert est.trained == (3, 21)
    assert_same(values(rest), values(whole), 1e-7)
    loaded = graph(dropout=0.3)
    again = estimator(loaded, adam, model_dir=folder)
    again.load_orca_checkpoint(folder, version=5)
    assert again.trained[1] == 5 and not np.array_equal(values(loaded)["top"], values(graph())["top"])
    assert "top/Adam" in values(loaded) and values(loaded)["top/Adam"].any()


def test_summaries_tell_loss_rate_and_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    est = estimator(graph(), adam)
    assert est.get_train_summary("Loss") is None
    est.set_tensorboard(str(tmp_path), "app")
    est.fit((X, Y), epochs=2, batch_size=20, validation_data=(X, Y))
    assert [step for step, *_ in est.get_train_summary("Loss")] == [1, 2, 3, 4, 5, 6]
    assert {round(rate, 4) for _, rate, _ in est.get_train_summary("LearningRate")} == {0.02}
    assert [step for step, *_ in est.get_validation_summary("acc")] == [3, 6]


def test_a_checkpoint_is_one_of_tensorflow(tmp_path: Path) -> None:
    made = graph()
    est = estimator(made, adam)
    est.fit((X, Y), epochs=1, batch_size=20)
    path = est.save(str(tmp_path / "saved" / "model"))
    other = graph()
    again = estimator(other, adam).load(path)
    assert_same(values(other), values(made), 0)
    assert again.evaluate((X, Y)) == est.evaluate((X, Y))
    with other.graph.as_default():
        tf.train.Saver().restore(other.session, path)
    est.save_tf_checkpoint("memory://graphs/model")
    third = graph()
    estimator(third, adam).load_tf_checkpoint("memory://graphs/model")
    assert_same(values(third), values(made), 0)
    with pytest.raises(ArgumentError, match="there is no checkpoint of TensorFlow at"):
        est.load(str(tmp_path / "none"))
    with pytest.raises(ArgumentError, match="does not fit the graph"):
        smaller = graph()
        with smaller.graph.as_default():
            tf.get_variable("more", [1])
            smaller.session.run(tf.global_variables_initializer())
        estimator(smaller, adam).load(path)


def test_variables_without_a_value_get_their_first() -> None:
    made = graph()
    with made.graph.as_default():
        est = Estimator.from_graph(
            inputs=made.x, outputs=made.outputs, labels=made.y, loss=made.loss, optimizer=adam(), backend="local"
        )
    assert est.sess is not made.session
    np.testing.assert_array_equal(est.sess.run(made.top), made.session.run(made.top))


def test_wrong_ends_are_refused_at_once() -> None:
    made = graph()
    with made.graph.as_default():
        nothing = tf.reduce_mean(made.x, name="nothing")
        with pytest.raises(ArgumentError, match="the loss 'nothing:0' depends on no variable"):
            Estimator.from_graph(inputs=made.x, labels=made.y, loss=nothing, optimizer=adam())
        with pytest.raises(ArgumentError, match=r"the loss '.*' must be one number; it has the shape \(None,\)\. Pass"):
            Estimator.from_graph(inputs=made.x, labels=made.y, loss=made.each, optimizer=adam())
        with pytest.raises(ArgumentError, match="an optimizer lowers a loss, and there is none"):
            Estimator.from_graph(inputs=made.x, optimizer=adam())
        with pytest.raises(ArgumentError, match="inputs must be tensors of a graph; got str"):
            Estimator.from_graph(inputs="features", outputs=made.outputs)
        with pytest.raises(ArgumentError, match="optimizer must be one of tf.train, of Keras or of BigDL"):
            Estimator.from_graph(inputs=made.x, labels=made.y, loss=made.loss, optimizer=3)
        with pytest.raises(ArgumentError, match="sess belongs to another graph"):
            Estimator.from_graph(inputs=made.x, outputs=made.outputs, sess=tf.Session(graph=tf.Graph()))
        with pytest.raises(ArgumentError, match="the metric 'acc' must be one number"):
            estimator(made, adam, metrics={"acc": tf.zeros([3])})
    est = estimator(made, adam)
    with pytest.raises(NotSupported, match="the model is your own graph"):
        est.get_model()
    with pytest.raises(ArgumentError, match="hard_code_batch_size=True is not supported"):
        est.fit((X, Y), hard_code_batch_size=True)
    with pytest.raises(WorkerFailed, match=r"a row for 'features:0' must have the shape \(5,\); the data has \(4,\)"):
        est.fit((X[:, :4], Y))
    with pytest.raises((DataError, WorkerFailed), match="'labels:0' takes int32, and the data has 0.5"):
        est.fit((X, Y * 0.5))
    with pytest.raises((DataError, WorkerFailed), match="the graph takes labels, and the data has none"):
        est.fit(X)
    with pytest.raises(ArgumentError, match="sample_weight is not supported for a graph"):
        est.fit((X, Y), sample_weight=Y)


def test_updates_run_and_agree() -> None:
    made = graph()
    with made.graph.as_default():
        average = tf.get_variable("average", [5], initializer=tf.zeros_initializer(), trainable=False)
        update = tf.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(made.x, 0))
        made.session.run(average.initializer)
    est = estimator(made, momentum, workers_per_node=2, updates=[update])
    est.fit((X, Y), epochs=2, batch_size=ROWS)
    np.testing.assert_allclose(values(made)["average"], X.mean(0) * 0.19, atol=1e-6)


def test_counters_count_the_rows_of_all_ranks() -> None:
    made = graph()
    with made.graph.as_default():
        seen = tf.get_variable("seen", [], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
        steps = tf.get_variable("steps", [], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
        updates = [tf.assign_add(seen, tf.shape(made.x)[0]), tf.assign_add(steps, 1)]
        made.session.run([seen.initializer, steps.initializer])
    estimator(made, momentum, workers_per_node=2, updates=updates).fit((X, Y), epochs=3, batch_size=20)
    assert (values(made)["seen"], values(made)["steps"]) == (3 * ROWS, 9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_averages_move_once_a_step(ranks: int, tmp_path: Path) -> None:
    def averaged(ends: Any) -> Any:
        average = tf.get_variable("average", [CLASSES], initializer=tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([tf.assign(average, 0.9 * average + 0.1 * tf.reduce_mean(ends.outputs, 0))]):
            ends.outputs = tf.identity(ends.outputs)  # as slim.batch_norm(updates_collections=None) does
            loss = tf.reduce_mean(ends.each) + tf.reduce_sum(ends.each)
        return tf.identity(loss)

    made = graph(averaged)
    est = estimator(made, slow, workers_per_node=ranks, model_dir=str(tmp_path))
    est.fit((X, Y), epochs=3, batch_size=ROWS, validation_data=(X, Y), checkpoint_trigger=EveryEpoch())
    est.evaluate((X, Y))
    assert_same(values(made), plain_loop(slow, [WHOLE] * 3, averaged))


def slow() -> Any:
    return tf.train.MomentumOptimizer(0.001, 0.9)


def by_hand(rows: Any, training: Any) -> Any:
    mean, variance = tf.nn.moments(rows, [0])
    return tf.nn.batch_normalization(rows, mean, variance, None, None, 1e-3)


def fused(rows: Any, training: Any) -> Any:
    """Normalize in two branches that do not wait for each other, where a condition in the graph is true."""
    images = tf.reshape(rows, [-1, 2, 2, 2])
    return tf.reshape(layer(images, training, fused=True) + tf.tanh(layer(images, training, fused=True)), [-1, 8])


def not_fused(rows: Any, training: Any) -> Any:
    return layer(layer(rows, training, fused=False), True, fused=False)


def layer(rows: Any, training: Any, fused: bool) -> Any:
    norm = pytest.importorskip("tf_keras").layers.BatchNormalization(fused=fused, momentum=0.5)
    rows = norm(rows, training=training)
    tf.get_collection_ref(tf.GraphKeys.UPDATE_OPS).extend(norm.updates)
    return rows


def own(rows: Any, training: Any) -> Any:
    return rows - tf.reduce_mean(rows, 0) * tf.reduce_mean(tf.abs(rows), 0, keepdims=True)


@pytest.mark.parametrize(
    "normalize", [fused, not_fused, *(pytest.param(each, marks=pytest.mark.full) for each in (by_hand, own))]
)
def test_batch_normalization_is_over_the_rows_of_all_ranks(normalize: Any) -> None:
    plain = plain_loop(momentum, [WHOLE] * 4, normalize=normalize)
    assert_same(trained_on([11, 11], momentum, normalize=normalize), plain)


def test_batch_normalization_within_a_loop_needs_one_worker() -> None:
    made = graph()
    with made.graph.as_default():
        images = tf.reshape(made.outputs, [-1, 1, 1, 3])
        scale, offset = tf.ones([3]), tf.zeros([3])
        rows = tf.while_loop(
            lambda at, _: at < 2,
            lambda at, each: (at + 1, tf.nn.fused_batch_norm(each, scale, offset)[0]),
            [tf.constant(0), images],
        )[1]
        made.loss = tf.reduce_mean(tf.square(rows))
    est = estimator(made, adam, workers_per_node=2, metrics=None)
    with pytest.raises(WorkerFailed, match=r"takes rows together.*one worker"):
        est.fit((X, Y), batch_size=ROWS)


def test_a_fit_with_batch_normalization_is_resumed_evaluated_and_answers(tmp_path: Path) -> None:
    def fitted(**options: Any) -> tuple[Any, Any]:
        made = graph(normalize=fused)
        est = estimator(made, adam, workers_per_node=2, model_dir=str(tmp_path), **normalizing(made))
        return made, est.fit((X, Y), epochs=2, batch_size=9, validation_data=(X, Y), **options)

    whole, _ = fitted()
    fitted(checkpoint_trigger=SeveralIteration(4), end_trigger=MaxIteration(8))
    shutil.rmtree(path_of(newest_run(str(tmp_path)), 8))  # so that the fourth step is the last that is known
    made, est = fitted(resume=True)
    assert est.trained == (2, 12)
    assert_same(values(made), values(whole), 1e-6)
    loss, answers = made.session.run([made.loss, made.outputs], {made.x: X, made.y: Y})
    assert est.evaluate((X, Y), batch_size=10)["loss"] == pytest.approx(loss, abs=1e-6)
    np.testing.assert_allclose(est.predict(X, batch_size=10), answers, atol=1e-6)


@dataclass
class Death(Callback):
    """Kill the last rank after a step, once for each mark there is."""

    mark: str
    step: int

    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == runner.size - 1 and runner.global_step == self.step and os.path.exists(self.mark):
            time.sleep(0.3)  # the checkpoint before it is written in the background
            os.remove(self.mark)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_a_worker_that_dies_is_named_and_the_fit_goes_on(tmp_path: Path) -> None:
    def fit(folder: str, **options: Any) -> Any:
        made = graph(normalize=by_hand)  # whose ranks meet in the middle of a step
        est = estimator(made, adam, workers_per_node=2, model_dir=str(tmp_path / folder))
        death = Death(str(tmp_path / "mark"), 6)
        est.fit((X, Y), epochs=2, batch_size=10, callbacks=[death], checkpoint_trigger=SeveralIteration(4), **options)
        return values(made)

    whole = fit("whole")
    (tmp_path / "mark").touch()
    with pytest.raises(WorkerLost, match="rank 1 .*was lost"):
        fit("lost")
    assert_same(fit("lost", resume=True), whole, 1e-6)
    (tmp_path / "mark").touch()
    assert_same(fit("again", max_failures=1), whole, 1e-6)
    assert not (tmp_path / "mark").exists()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_dataframes_and_shards_train_score_and_answer_as_arrays_do(spark: Any) -> None:
    made = graph()
    est = estimator(made, adam, backend="bigdl", workers_per_node=2)
    frame = spark.createDataFrame([(n, X[n].tolist(), int(Y[n])) for n in range(ROWS)], "n int, x array<float>, y int")
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    est.fit(frame, epochs=2, batch_size=ROWS, validation_data=frame, **columns)
    assert_same(values(made), plain_loop(adam, [WHOLE] * 2))
    shards = XShards.partition({"x": X, "y": Y}, num_shards=3)
    est.fit(shards, epochs=2, batch_size=ROWS)
    assert_same(values(made), plain_loop(adam, [WHOLE] * 4))
    loss, accuracy, truth = made.session.run([made.loss, made.accuracy, made.outputs], {made.x: X, made.y: Y})
    assert est.evaluate(frame, batch_size=7, **columns) == pytest.approx({"loss": loss, "acc": accuracy}, abs=1e-6)
    assert est.evaluate(shards, batch_size=7) == pytest.approx({"loss": loss, "acc": accuracy}, abs=1e-6)
    rows = sorted(est.predict(frame, feature_cols=["x"]).collect(), key=lambda row: row.n)
    np.testing.assert_allclose([row.prediction for row in rows], truth, atol=1e-5)
    mapped = Dataset.from_tensor_slices(shards).map(lambda row: row["x"])
    np.testing.assert_allclose(est.predict(mapped).collect(), truth, atol=1e-5)  # an entry per row
    parts = est.predict(shards).collect()
    np.testing.assert_allclose(np.concatenate([part["prediction"] for part in parts]), truth, atol=1e-5)


def test_a_session_that_ran_before_its_loop_was_differentiated_is_refused() -> None:
    made = graph()
    with made.graph.as_default():
        start = [tf.constant(0), made.each]
        made.loss = tf.reduce_mean(tf.while_loop(lambda at, _: at < 2, lambda at, rows: (at + 1, rows * 2.0), start)[1])
        made.session.run(made.loss, {made.x: X, made.y: Y})
    with pytest.raises(ArgumentError, match="sess has run before the optimizer was made.*tf.while_loop"):
        estimator(made, adam)
