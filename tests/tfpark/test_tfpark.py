"""TFPark in this process, where TensorFlow stays eager: datasets, optimizers, model functions, nets and GANs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from orca.errors import ArgumentError, DataError
from orca.metrics import Accuracy
from orca.tfpark import TFDataset, TFEstimator, TFEstimatorSpec, TFNet, TFOptimizer, TFPredictor, ZooOptimizer
from orca.tfpark.gan import GANEstimator
from orca.tfpark.net import export_tf, get_checkpoint_state, load_tf_checkpoint, save_tf_checkpoint
from orca.triggers import EveryEpoch, MaxEpoch, MaxIteration
from tfgraphs import CLASSES, ROWS, X, Y, adam

LOCAL = {"backend": "local", "workers_per_node": 2}


def as_array(answers: Any) -> np.ndarray:
    return np.array(answers.collect() if hasattr(answers, "collect") else answers)


def network(features: Any) -> Any:
    start = tf.glorot_uniform_initializer(seed=1)
    with tf.variable_scope("net", reuse=tf.AUTO_REUSE):
        return features @ tf.get_variable("kernel", [X.shape[1], CLASSES], initializer=start)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return tf.reduce_mean(tf.losses.sparse_softmax_cross_entropy(logits=logits, labels=tf.squeeze(labels)))


def plain(steps: int, clip: float | None = None) -> np.ndarray:
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float32, [None, X.shape[1]]), tf.placeholder(tf.int32, [None])
        loss, optimizer = cross_entropy(network(x), y), adam()
        pairs = optimizer.compute_gradients(loss)
        if clip is not None:
            pairs = [(tf.clip_by_norm(gradient, clip), variable) for gradient, variable in pairs]
        op = optimizer.apply_gradients(pairs)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(op, {x: X, y: Y})
        return session.run(tf.global_variables()[0])


def test_optimize_leaves_the_trained_variables_in_the_session(tmp_path: Path) -> None:
    assert tf2.executing_eagerly()  # importing TFPark has not changed it
    with tf.Graph().as_default():
        data = TFDataset.from_ndarrays((X, Y), batch_size=ROWS, val_tensors=(X, Y))
        images, labels = data.tensors
        logits = network(images)
        optimizer = TFOptimizer.from_loss(
            cross_entropy(logits, labels), adam(), val_outputs=[logits], val_labels=[tf.squeeze(labels)],
            val_method=Accuracy(), **LOCAL,
        )  # fmt: skip
        optimizer.set_train_summary(SimpleNamespace(log_dir=str(tmp_path), app_name="park"))
        optimizer.optimize(end_trigger=MaxEpoch(3))
        optimizer.optimize()  # one more epoch
        kernel = optimizer.sess.run(tf.trainable_variables()[0])
        np.testing.assert_allclose(kernel, plain(4), atol=2e-6)
        saver = tf.train.Saver()
        saver.save(optimizer.sess, str(tmp_path / "saved" / "model"))
        assert get_checkpoint_state(str(tmp_path / "saved")).model_checkpoint_path.endswith("model")
        right = (X @ kernel).argmax(1) == Y
        assert optimizer.estimator.get_validation_summary("Accuracy")[-1][1] == pytest.approx(right.mean(), abs=1e-5)
    with tf.Graph().as_default(), tf.Session() as session:
        (features,) = TFDataset.from_ndarrays(X, batch_per_thread=4).tensors
        answers = network(features)
        load_tf_checkpoint(session, str(tmp_path / "saved" / "model"), tf.train.Saver())
        got = as_array(TFPredictor.from_outputs(session, [answers], **LOCAL).predict())
        np.testing.assert_allclose(got, X @ kernel, atol=1e-5)
        save_tf_checkpoint(session, f"{tmp_path}/again/")
        assert (tmp_path / "again" / "model.index").exists()


def test_a_train_op_clips_after_ranks_agree() -> None:
    with tf.Graph().as_default():
        images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
        loss = cross_entropy(network(images), labels)
        zoo = ZooOptimizer(adam())
        pairs = [(tf.clip_by_norm(gradient, 0.1), variable) for gradient, variable in zoo.compute_gradients(loss)]
        train_op = zoo.apply_gradients(pairs)
        optimizer = TFOptimizer.from_train_op(train_op, loss, **LOCAL)
        optimizer.optimize(end_trigger=MaxIteration(3))
        np.testing.assert_allclose(optimizer.sess.run(tf.trainable_variables()[0]), plain(3, 0.1), atol=2e-6)
        optimizer.sess.run(train_op, {images: X, labels: Y})  # it also works as any train op does
        np.testing.assert_allclose(optimizer.sess.run(tf.trainable_variables()[0]), plain(4, 0.1), atol=2e-6)
        with pytest.raises(ArgumentError, match="applies gradients that ranks cannot agree on.*ZooOptimizer"):
            TFOptimizer.from_train_op(adam().minimize(loss), loss)


def test_a_train_op_is_run_as_a_whole() -> None:
    with tf.Graph().as_default():
        images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
        loss = cross_entropy(network(images), labels)
        (kernel,) = tf.trainable_variables()
        count = tf.get_variable("count", [], tf.int32, tf.zeros_initializer(), trainable=False)
        last = tf.get_variable("last", kernel.shape, initializer=tf.zeros_initializer(), trainable=False)
        step = ZooOptimizer(adam()).minimize(loss)
        with tf.control_dependencies([step]):
            kept = tf.assign(last, kernel)
        train_op = tf.group(step, tf.assign_add(count, 1), kept)
        optimizer = TFOptimizer.from_train_op(train_op, loss, **LOCAL)
        optimizer.optimize(end_trigger=MaxIteration(3))
        assert optimizer.sess.run(count) == 3
        np.testing.assert_allclose(optimizer.sess.run(last), plain(3), atol=2e-6)
        counted = tf.assign_add(count, tf.shape(images)[0])
        with pytest.raises(ArgumentError, match="also runs 'AssignAdd.*, which needs .*Pass it as one of updates"):
            TFOptimizer.from_train_op(tf.group(step, counted), loss)


def test_a_train_op_lowers_the_loss_that_it_was_made_of() -> None:
    def trained(reported: bool) -> Any:
        with tf.Graph().as_default():
            images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
            loss = cross_entropy(network(images), labels)
            (kernel,) = tf.trainable_variables()
            total = loss + 0.5 * tf.nn.l2_loss(kernel)
            train_op = ZooOptimizer(adam()).minimize(total)
            optimizer = TFOptimizer.from_train_op(train_op, loss if reported else total, **LOCAL)
            return optimizer.optimize(end_trigger=MaxIteration(3)).sess.run(kernel)

    np.testing.assert_allclose(trained(True), trained(False), atol=1e-7)


def test_gradients_of_unknown_making_are_refused() -> None:
    with tf.Graph().as_default():
        images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
        loss = cross_entropy(network(images), labels)
        variables = tf.trainable_variables()
        clipped = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.05)[0]
        train_op = ZooOptimizer(adam()).apply_gradients(zip(clipped, variables, strict=True))
        with pytest.raises(ArgumentError, match="its ZooOptimizer did not compute.*compute_gradients"):
            TFOptimizer.from_train_op(train_op, loss)


def test_checkpoints_of_an_optimizer_are_gone_on_from(tmp_path: Path) -> None:
    def make() -> Any:
        images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
        return TFOptimizer.from_loss(cross_entropy(network(images), labels), adam(), model_dir=str(tmp_path), **LOCAL)

    with tf.Graph().as_default():
        make().optimize(MaxEpoch(3), checkpoint_trigger=EveryEpoch())
    with tf.Graph().as_default():
        second = make()
        second.load_checkpoint(str(tmp_path), 2)
        second.optimize(MaxEpoch(5))
        np.testing.assert_allclose(second.sess.run(tf.trainable_variables()[0]), plain(5), atol=2e-6)


def model_fn(features: Any, labels: Any, mode: str) -> TFEstimatorSpec:
    logits = network(features)
    if mode == "infer":
        return TFEstimatorSpec(mode, predictions=logits)
    return TFEstimatorSpec(mode, predictions=logits, loss=cross_entropy(logits, labels))


def input_fn(mode: str) -> TFDataset:
    if mode == "infer":
        return TFDataset.from_ndarrays(X, batch_per_thread=8)
    return TFDataset.from_ndarrays((X, Y), batch_size=ROWS)


@pytest.mark.parametrize("kept", [True, False], ids=["model_dir", "memory"])
def test_a_model_function_trains_evaluates_and_answers(kept: bool, tmp_path: Path) -> None:
    folder = str(tmp_path / "kept") if kept else None
    made = TFEstimator(model_fn, adam(), model_dir=folder, **LOCAL)
    assert made.train(input_fn, steps=2) is made
    if kept:
        assert (tmp_path / "kept" / "model-2.index").exists()
        made = TFEstimator(model_fn, adam(), model_dir=folder, **LOCAL)
    made.train(input_fn, steps=2)
    kernel = plain(4)
    answers = as_array(made.predict(input_fn))
    np.testing.assert_allclose(answers, X @ kernel, atol=1e-5)
    scores = made.evaluate(input_fn, ["acc", "loss"])
    assert scores["Top1Accuracy"] == pytest.approx(((X @ kernel).argmax(1) == Y).mean())
    assert set(scores) == {"loss", "Top1Accuracy"}
    if kept:
        first = as_array(made.predict(input_fn, checkpoint_path=f"{folder}/model-2"))
        np.testing.assert_allclose(first, X @ plain(2), atol=1e-5)


def test_a_model_function_of_later_releases_has_its_train_op() -> None:
    def later(features: Any, labels: Any, mode: str, params: Any) -> Any:
        logits = network(features["rows"])
        if mode == "infer":
            return SimpleNamespace(mode=mode, predictions={"logits": logits, "twice": logits * params["by"]}, loss=None)
        loss = cross_entropy(logits, labels)
        train_op = ZooOptimizer(adam()).minimize(loss, global_step=tf.train.get_global_step())
        return SimpleNamespace(mode=mode, predictions=logits, loss=loss, train_op=train_op)

    def rows(mode: str) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(({"rows": X}, Y)).batch(ROWS)
        return dataset if mode != "infer" else TFDataset.from_ndarrays({"rows": X}, batch_per_thread=4)

    made = TFEstimator.from_model_fn(later, params={"by": 2.0}, **LOCAL)
    made.train(rows, steps=3)
    answers = made.predict(rows, predict_keys=["twice"])
    got = [row["twice"] for row in answers.collect()] if hasattr(answers, "collect") else answers["twice"]
    np.testing.assert_allclose(np.array(got), 2 * (X @ plain(3)), atol=1e-5)
    with pytest.raises(ArgumentError, match="there is nothing to lower the loss with"):
        TFEstimator(model_fn, **LOCAL).train(input_fn, steps=1)


def test_a_net_is_read_from_a_session_a_folder_and_a_saved_model(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, X.shape[1]])
        y = network(x)
        session.run(tf.global_variables_initializer())
        truth = session.run(y, {x: X})
        here = TFNet.from_session(session, [x], [y], **LOCAL)
        export_tf(session, str(tmp_path / "folder"), [x], [y])
        tf.saved_model.simple_save(session, str(tmp_path / "saved"), {"x": x}, {"y": y})
    for net in (
        here,
        TFNet.from_export_folder(str(tmp_path / "folder"), **LOCAL),
        TFNet.from_saved_model(str(tmp_path / "saved"), **LOCAL),
    ):
        np.testing.assert_allclose(net.predict(X), truth, atol=1e-6)
        np.testing.assert_allclose(net.forward(X), truth, atol=1e-6)
        assert net.evaluate((X, Y), 10, [Accuracy()])["Accuracy"] == pytest.approx((truth.argmax(1) == Y).mean())
    with pytest.raises(ArgumentError, match="there is no folder"):
        TFNet.from_export_folder(str(tmp_path / "none"))


def test_generator_and_discriminator_take_turns(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(size=(ROWS, 2)).astype("float32")

    def generator(z: Any) -> Any:
        return z @ tf.get_variable("g", [2, 5], initializer=tf.glorot_uniform_initializer(seed=1))

    def discriminator(data: Any) -> Any:
        return data @ tf.get_variable("d", [5, 1], initializer=tf.glorot_uniform_initializer(seed=2))

    def generator_loss(made: Any) -> Any:
        return tf.reduce_mean(tf.nn.softplus(-made))

    def discriminator_loss(real: Any, made: Any) -> Any:
        return tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(made))

    with tf.Graph().as_default(), tf.Session() as session:  # by hand
        z, real = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [None, 5])
        with tf.variable_scope("G"):
            made = generator(z)
        with tf.variable_scope("D", reuse=tf.AUTO_REUSE):
            of_made, of_real = discriminator(made), discriminator(real)
        ops = [
            adam().minimize(discriminator_loss(of_real, of_made), var_list=tf.trainable_variables("D")),
            adam().minimize(generator_loss(of_made), var_list=tf.trainable_variables("G")),
        ]
        session.run(tf.global_variables_initializer())
        for turn in (0, 0, 1, 0, 0):
            session.run(ops[turn], {z: noise, real: X})
        truth = session.run(made, {z: noise})
        before = noise @ session.run(tf.trainable_variables("G"))[0]
    np.testing.assert_allclose(truth, before, atol=1e-5)
    gan = GANEstimator(
        generator, discriminator, generator_loss, discriminator_loss, adam(), adam(), discriminator_steps=2, **LOCAL
    )

    def pairs() -> TFDataset:
        return TFDataset.from_ndarrays((noise, X), batch_size=ROWS)

    gan.train(pairs, MaxIteration(5))
    np.testing.assert_allclose(gan.generate(noise), truth, atol=1e-5)


def test_wrong_datasets_are_refused() -> None:
    with pytest.raises(ArgumentError, match="batch_size is for training and batch_per_thread for evaluation"):
        TFDataset.from_ndarrays((X, Y), batch_size=8, batch_per_thread=4)
    with pytest.raises(ArgumentError, match="hard_code_batch_size=True is not supported"):
        TFDataset.from_ndarrays((X, Y), batch_size=8, hard_code_batch_size=True)
    with pytest.raises(ArgumentError, match="got a tuple of 3"):
        TFDataset.from_ndarrays((X, X, Y))
    with tf.Graph().as_default():
        data = TFDataset.from_ndarrays(X, batch_size=8)
        (features,) = data.tensors
        assert data.label_tensors is None
        loss = tf.reduce_mean(network(features))
        with pytest.raises(DataError, match="fit needs labels, and this TFDataset has features alone"):
            TFOptimizer.from_loss(loss, adam(), **LOCAL).optimize()
        with pytest.raises(ArgumentError, match="are computed from 0 TFDatasets"):
            TFOptimizer.from_loss(tf.reduce_mean(network(tf.placeholder(tf.float32, [None, 5]))), adam())
    with tf.Graph().as_default():
        with pytest.raises(ArgumentError, match="batch_size should be specified for training"):
            images, labels = TFDataset.from_ndarrays((X, Y)).tensors
            TFOptimizer.from_loss(cross_entropy(network(images), labels), adam(), **LOCAL).optimize()
