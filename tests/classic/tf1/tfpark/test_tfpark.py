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

from classic.tf1.graphs import CLASSES, ROWS, X, Y, adam
from orca.errors import ArgumentError, DataError, WorkerFailed
from orca.metrics import Accuracy
from orca.triggers import EveryEpoch, MaxEpoch, MaxIteration, MinLoss, SeveralIteration
from orca_classic.bigdl.optimizer import TrainSummary, ValidationSummary
from orca_classic.bigdl.optimizers import SGD, Adam
from orca_classic.tf1.tfpark import (
    KerasModel,
    TFDataset,
    TFEstimator,
    TFEstimatorSpec,
    TFNet,
    TFOptimizer,
    TFPredictor,
    ZooOptimizer,
)
from orca_classic.tf1.tfpark.gan import GANEstimator
from orca_classic.tf1.tfpark.net import export_tf, get_checkpoint_state, load_tf_checkpoint, save_tf_checkpoint
from programs import run_program

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


def test_a_loss_of_features_alone_is_lowered(spark: Any, tmp_path: Path) -> None:
    def trained(make: Any, parse: Any) -> np.ndarray:
        with tf.Graph().as_default():
            (features,) = make().tensors
            rows, labels = parse(features)
            optimizer = TFOptimizer.from_loss(cross_entropy(network(rows), labels), adam(), workers_per_node=2)
            optimizer.optimize(MaxEpoch(3))
            return optimizer.sess.run(tf.trainable_variables()[0])

    def parsed(records: Any) -> Any:
        numbers = tf.reshape(tf.decode_raw(records, tf.float32), [-1, X.shape[1] + 1])
        return numbers[:, :-1], tf.cast(numbers[:, -1], tf.int32)

    joined = np.concatenate([X, Y[:, None]], 1).astype("float32")
    records = [row.tobytes() for row in joined]
    with tf.io.TFRecordWriter(str(tmp_path / "rows")) as writer:
        for record in records:
            writer.write(record)
    df = spark.createDataFrame([(row.tolist(),) for row in joined], "row array<float>")
    truth = plain(3)
    for make, parse in (
        (lambda: TFDataset.from_bytes_rdd(spark.sparkContext.parallelize(records, 3), batch_size=ROWS), parsed),
        (lambda: TFDataset.from_tfrecord_file(None, str(tmp_path / "rows"), batch_size=ROWS), parsed),
        (lambda: TFDataset.from_ndarrays(joined, batch_size=ROWS), lambda x: (x[:, :-1], tf.cast(x[:, -1], tf.int32))),
        (
            lambda: TFDataset.from_dataframe(df, ["row"], batch_size=ROWS),
            lambda x: (tf.reshape(x, [-1, 6])[:, :-1], tf.cast(x[:, -1], tf.int32)),
        ),
    ):
        np.testing.assert_allclose(trained(make, parse), truth, atol=2e-6)


def test_named_inputs_are_fed_by_their_names() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = (tf.placeholder(tf.float32, [None], name=name) for name in "ab")
        net = TFNet.from_session(session, [a, b], a - b, backend="local")
        given = {"b": X[:, 1], "a": X[:, 0]}
        np.testing.assert_array_equal(as_array(net.predict(given)), X[:, 0] - X[:, 1])
        with pytest.raises((DataError, WorkerFailed), match="x has no 'a'; it has"):
            net.predict({"b": X[:, 1], "c": X[:, 0]})


def test_labels_that_a_model_takes_must_be_there() -> None:
    unlabelled = TFDataset.from_ndarrays(X, batch_size=8)
    model = tf2.keras.Sequential([tf2.keras.layers.Dense(1, input_shape=(X.shape[1],))])
    model.compile("sgd", "mse")
    with pytest.raises(DataError, match="fit needs labels, and this TFDataset has features alone"):
        KerasModel(model, **LOCAL).fit(unlabelled)
    with pytest.raises(DataError, match="evaluate needs labels, and this TFDataset has features alone"):
        KerasModel(model, **LOCAL).evaluate(unlabelled)


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


def test_the_seed_decides_on_the_first_weights() -> None:
    def drawn(features: Any, labels: Any, mode: str) -> TFEstimatorSpec:
        outputs = features @ tf.get_variable("drawn", [X.shape[1], CLASSES])
        return TFEstimatorSpec(mode, outputs, None if labels is None else cross_entropy(outputs, labels))

    answers = []
    for seed in (3, 3, 4):
        made = TFEstimator(drawn, tf.train.GradientDescentOptimizer(0.1), backend="local", seed=seed)
        answers.append(as_array(made.train(input_fn, steps=1).predict(input_fn)))
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not np.allclose(answers[0], answers[2])


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
    with pytest.raises(ArgumentError, match="predict_keys asks for 'thrice'; the model's predictions are"):
        made.predict(rows, predict_keys=["thrice"])
    for verb in ("predict", "evaluate"):
        with pytest.raises(ArgumentError, match="the model has not learned anything yet"):
            getattr(TFEstimator(model_fn, adam(), **LOCAL), verb)(input_fn)


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


def generator(z: Any) -> Any:
    return z @ tf.get_variable("g", [2, 5], initializer=tf.glorot_uniform_initializer(seed=1))


def discriminator(data: Any) -> Any:
    return data @ tf.get_variable("d", [5, 1], initializer=tf.glorot_uniform_initializer(seed=2))


def generator_loss(made: Any) -> Any:
    return tf.reduce_mean(tf.nn.softplus(-made))


def discriminator_loss(real: Any, made: Any) -> Any:
    return tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(made))


NOISE = np.random.default_rng(3).normal(size=(ROWS, 2)).astype("float32")


def two_optimizers(turns: str) -> np.ndarray:
    """Return what a generator makes of NOISE after a plain loop: "d" and "g" say whose turn it is."""
    with tf.Graph().as_default(), tf.Session() as session:
        z, real = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [None, 5])
        with tf.variable_scope("G"):
            made = generator(z)
        with tf.variable_scope("D", reuse=tf.AUTO_REUSE):
            of_made, of_real = discriminator(made), discriminator(real)
        ops = {
            "d": adam().minimize(discriminator_loss(of_real, of_made), var_list=tf.trainable_variables("D")),
            "g": adam().minimize(generator_loss(of_made), var_list=tf.trainable_variables("G")),
        }
        session.run(tf.global_variables_initializer())
        for turn in turns:
            session.run(ops[turn], {z: NOISE, real: X})
        return session.run(made, {z: NOISE})


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_generator_and_discriminator_take_turns(workers: int, tmp_path: Path) -> None:
    def gan() -> GANEstimator:
        return GANEstimator(
            generator, discriminator, generator_loss, discriminator_loss, adam(), adam(), discriminator_steps=2,
            generator_steps=1, model_dir=str(tmp_path / "kept"), backend="local", workers_per_node=workers,
        )  # fmt: skip

    def pairs() -> TFDataset:
        return TFDataset.from_ndarrays((NOISE, X), batch_size=ROWS)

    with pytest.raises(ArgumentError, match="has not learned anything yet"):
        gan().generate(NOISE)
    first = gan()
    first.train(pairs, MaxIteration(4))  # d d g d
    np.testing.assert_allclose(first.generate(NOISE), two_optimizers("ddgd"), atol=1e-5)
    second = gan()  # as another program would, it goes on in the middle of a turn
    second.train(pairs, MaxIteration(9))
    np.testing.assert_allclose(second.generate(NOISE.astype("float64")), two_optimizers("ddgddgddg"), atol=1e-5)


def test_turns_on_uneven_partitions_are_those_of_one_session(spark: Any) -> None:
    context, rows = spark.sparkContext, list(zip(NOISE, X, strict=True))
    rdd = context.parallelize(rows[:40], 1).union(context.parallelize([], 1)).union(context.parallelize(rows[40:], 1))
    gan = GANEstimator(
        generator, discriminator, generator_loss, discriminator_loss, adam(), adam(), workers_per_node=2
    )  # fmt: skip

    def pairs(mode: str) -> TFDataset:
        return TFDataset.from_rdd(rdd, features=(tf.float32, [2]), labels=(tf.float32, [5]), batch_size=ROWS)

    gan.train(pairs, MaxIteration(5))
    np.testing.assert_allclose(gan.generate(NOISE), two_optimizers("dgdgd"), atol=1e-5)


def test_triggers_end_a_training_and_keep_its_curves(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        data = TFDataset.from_ndarrays((X, Y), batch_size=ROWS, val_tensors=(X, Y))
        images, labels = data.tensors
        logits = network(images)
        right = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
        loss = cross_entropy(logits, labels)
        optimizer = TFOptimizer.from_loss(
            loss, Adam(0.2), metrics={"acc": tf.reduce_mean(tf.cast(right, tf.float32))},
            model_dir=str(tmp_path / "kept"), **LOCAL,
        )  # fmt: skip
        optimizer.set_train_summary(TrainSummary(str(tmp_path / "logs"), "training"))
        optimizer.set_val_summary(ValidationSummary(str(tmp_path / "logs"), "checking"))
        limit = 0.6 * float(optimizer.sess.run(loss, {images: X, labels: Y}))
        optimizer.optimize(end_trigger=MinLoss(limit), checkpoint_trigger=SeveralIteration(2))
        losses = ValidationSummary(str(tmp_path / "logs"), "checking").read_scalar("Loss")[:, 1]
        assert losses[-1] < limit
        assert (losses[:-1] >= limit).all()
        checked = ValidationSummary(str(tmp_path / "logs"), "checking").read_scalar("acc")
        kernel = optimizer.sess.run(tf.trainable_variables()[0])
        assert checked[-1][1] == pytest.approx(((X @ kernel).argmax(1) == Y).mean(), abs=1e-5)
        steps = len(losses)
        assert optimizer.optimize(MaxIteration(steps)) is optimizer  # it has taken them
        np.testing.assert_array_equal(optimizer.sess.run(tf.trainable_variables()[0]), kernel)
        optimizer.optimize(MaxIteration(steps + 2))
        assert len(TrainSummary(str(tmp_path / "logs"), "training").read_scalar("Loss")) == steps + 2


@pytest.mark.full
def test_a_saved_session_is_restored_by_a_program_without_orca(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
        optimizer = TFOptimizer.from_loss(cross_entropy(network(images), labels), adam(), **LOCAL)
        optimizer.optimize(MaxEpoch(2))
        tf.train.Saver().save(optimizer.sess, str(tmp_path / "model"))
        np.save(tmp_path / "kernel.npy", optimizer.sess.run(tf.trainable_variables()[0]))
    program = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
kernel = tf.get_variable("net/kernel", [5, 3])
with tf.Session() as session:
    tf.train.Saver([kernel]).restore(session, sys.argv[1] + "/model")
    print(np.array_equal(session.run(kernel), np.load(sys.argv[1] + "/kernel.npy")))
"""
    assert run_program(program, timeout=120, args=[str(tmp_path)]).stdout.splitlines() == ["True"]


def test_a_keras_model_is_trained_by_an_optimizer_and_twice_by_itself(tmp_path: Path) -> None:
    def make() -> Any:
        tf2.keras.utils.set_random_seed(5)
        made = tf2.keras.Sequential([tf2.keras.layers.Dense(CLASSES, input_shape=(X.shape[1],), activation="softmax")])
        made.compile(tf2.keras.optimizers.SGD(0.3), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return made

    truth, ours, twice = make(), make(), make()
    truth.fit(X, Y, batch_size=ROWS, epochs=4, verbose=0)
    data = TFDataset.from_ndarrays((X, Y), batch_size=ROWS, val_tensors=(X, Y))
    TFOptimizer.from_keras(ours, data, **LOCAL).optimize(MaxEpoch(4))
    model = KerasModel(twice, **LOCAL)
    model.fit(data, epochs=2)
    model.fit(data, epochs=2)
    for each in (ours, twice):
        for one, other in zip(truth.get_weights(), each.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    here, there = model.evaluate(X, Y), model.evaluate(TFDataset.from_ndarrays((X, Y), batch_per_thread=7))
    assert set(here) == {"loss", "accuracy"} <= set(there)
    assert [there[name] for name in here] == pytest.approx(list(here.values()), abs=1e-4)
    assert model.metrics_names == ["loss", "accuracy"]
    answers = as_array(model.predict(TFDataset.from_ndarrays(X, batch_per_thread=8)))
    np.testing.assert_allclose(answers, model.predict(X), atol=1e-5)
    with pytest.raises(ArgumentError, match="The batch_size of TFDataset must be specified when used in KerasModel"):
        model.fit(TFDataset.from_ndarrays((X, Y), batch_per_thread=4))
    with pytest.raises(ArgumentError, match="validation_split is for training here"):
        model.fit(data, validation_split=0.2)


def test_a_model_function_trains_on_data_without_end(tmp_path: Path) -> None:
    def batches(mode: str) -> Any:
        rows = tf2.data.Dataset.from_tensor_slices((X[:50], Y[:50]))
        return rows.shuffle(ROWS).repeat().batch(10) if mode == "train" else rows.batch(10)

    made = TFEstimator(model_fn, adam(), model_dir=str(tmp_path), **LOCAL)
    made.train(batches, steps=6)
    assert made._progress[1] == 6
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model-6")
    assert np.isfinite(made.evaluate(batches)["loss"])


def test_an_optimizer_writes_checkpoints_that_tensorflow_finds(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
        loss = cross_entropy(network(images), labels)
        TFOptimizer.from_loss(loss, adam(), model_dir=str(tmp_path), **LOCAL).optimize(MaxEpoch(2))
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model-2")


def test_variables_have_optim_methods_by_their_prefixes() -> None:
    def trained(methods: Any) -> Any:
        with tf.Graph().as_default():
            images, labels = TFDataset.from_ndarrays((X, Y), batch_size=ROWS).tensors
            logits = network(images) + tf.get_variable("other/bias", [CLASSES], initializer=tf.zeros_initializer())
            optimizer = TFOptimizer.from_loss(cross_entropy(logits, labels), methods, **LOCAL)
            optimizer.optimize(MaxEpoch(2))
            return [optimizer.sess.run(variable) for variable in tf.trainable_variables()]

    both = trained({"net/": Adam(0.1), "other/": SGD(0.0)})
    np.testing.assert_array_equal(both[1], 0.0)
    assert np.abs(both[0] - trained(Adam(0.1))[0]).max() < 0.1
    with pytest.raises(ArgumentError, match="each trained variable needs one optim method.*'other/bias' has none"):
        trained({"net/": Adam(0.1)})


def test_elements_of_several_parts_have_a_tensor_each() -> None:
    with tf.Graph().as_default():
        rows = tf2.data.Dataset.from_tensor_slices((X[:, :2], X[:, 2:], Y))
        data = TFDataset.from_tf_data_dataset(rows, batch_size=ROWS)
        one, two, labels = data.tensors
        loss = cross_entropy(network(tf.concat([one, two], 1)), labels)
        optimizer = TFOptimizer.from_loss(loss, adam(), **LOCAL)
        optimizer.optimize(MaxEpoch(3))
        np.testing.assert_allclose(optimizer.sess.run(tf.trainable_variables()[0]), plain(3), atol=2e-6)


def test_evaluations_have_the_names_of_the_older_systems() -> None:
    model = tf2.keras.Sequential([tf2.keras.layers.Dense(CLASSES, activation="softmax")])  # without an input shape
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    park = KerasModel(model, **LOCAL)
    park.fit(TFDataset.from_ndarrays((X, Y), batch_size=ROWS), epochs=2, verbose=0)
    scores = park.evaluate(X, Y, distributed=True)
    assert set(scores) == {"loss", "acc Top1Accuracy"}
    assert scores["accuracy"] == pytest.approx(park.evaluate(X, Y)["accuracy"], abs=1e-5)
    for verb in (park.evaluate, park.predict):
        with pytest.raises(
            ArgumentError, match=f"The batch_per_thread of TFDataset must be specified.*{verb.__name__}"
        ):
            verb(TFDataset.from_ndarrays((X, Y)))


def test_wrong_datasets_are_refused() -> None:
    with pytest.raises(ArgumentError, match="batch_size is for training and batch_per_thread for evaluation"):
        TFDataset.from_ndarrays((X, Y), batch_size=8, batch_per_thread=4)
    with pytest.raises(ArgumentError, match="hard_code_batch_size=True is not supported"):
        TFDataset.from_ndarrays((X, Y), batch_size=8, hard_code_batch_size=True)
    with pytest.raises(ArgumentError, match="got a tuple of 3"):
        TFDataset.from_ndarrays((X, X, Y))
    with tf.Graph().as_default():
        data = TFDataset.from_ndarrays(X, batch_size=8)
        assert len(data.tensors) == 1
        assert data.label_tensors is None
        with pytest.raises(ArgumentError, match="are computed from 0 TFDatasets"):
            TFOptimizer.from_loss(tf.reduce_mean(network(tf.placeholder(tf.float32, [None, 5]))), adam())
    with tf.Graph().as_default():
        with pytest.raises(ArgumentError, match="batch_size should be specified for training"):
            images, labels = TFDataset.from_ndarrays((X, Y)).tensors
            TFOptimizer.from_loss(cross_entropy(network(images), labels), adam(), **LOCAL).optimize()


@pytest.mark.full
def test_slim_normalizes_batches_fused_or_not() -> None:
    pytest.importorskip("tf_slim")
    run_program("""
import numpy as np
from zoo.tfpark import tf1 as tf

rows = np.random.default_rng(0).normal(3.0, 2.0, (7, 4)).astype("float32")
wanted = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
for fused in (True, False):
    with tf.Graph().as_default(), tf.Session() as session:
        x, training = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.bool, [])
        y = tf.contrib.slim.batch_norm(x, is_training=training, fused=fused)
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(y, {x: rows, training: True}), wanted, atol=1e-4)
        moving = session.run(y, {x: rows, training: False})
        np.testing.assert_allclose(moving, rows / np.sqrt(1 + 1e-3), atol=1e-4)
""")
