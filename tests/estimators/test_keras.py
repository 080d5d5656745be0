from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from orca import Estimator
from orca.errors import ArgumentError, LossNotFinite, NotYet, OrcaError, WorkerFailed
from orca.estimators.keras import KerasEstimator
from orca.triggers import MaxScore
from raised import raises

pytestmark = pytest.mark.timeout(200)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X @ np.array([1, -1, 2, 0.5], np.float32) > 0).astype(np.int64)
BATCH = 8
STEPS = 7  # of 50 rows


def classifier(config: dict[str, Any], family: Any = keras) -> Any:
    """Return a compiled model with two classes, the same weights each time."""
    layers = family.layers
    model = family.Sequential([family.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(2, "softmax")])
    model.set_weights([np.random.default_rng(1).normal(size=w.shape).astype(np.float32) for w in model.get_weights()])
    optimizer = family.optimizers.SGD(config.get("lr", 0.1), momentum=0.9)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def legacy(config: dict[str, Any]) -> Any:
    return classifier(config, tf_keras)


def batched(config: dict[str, Any], batch_size: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


def endless(config: dict[str, Any], batch_size: int) -> Any:
    return batched(config, batch_size).repeat()


def estimator(**options: Any) -> KerasEstimator:
    """Return an Estimator of the classifier on two ranks."""
    if not {"model_creator", "keras_model"} & set(options):
        options["model_creator"] = classifier
    return KerasEstimator.from_keras(**{"backend": "local", "workers_per_node": 2, **options})


def fitted(**options: Any) -> tuple[KerasEstimator, dict[str, Any]]:
    est = estimator()
    return est, est.fit(batched, batch_size=BATCH, **options)


def alone(model: Any = None, data: Any = None, **options: Any) -> tuple[Any, dict[str, list[float]]]:
    """Train with Keras itself, on the same batches; return (model, history)."""
    model = classifier({}) if model is None else model
    history = model.fit(batched({}, BATCH) if data is None else data, verbose=0, **options).history
    return model, history


def assert_same_weights(mine: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    for left, right in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def assert_same_history(stats: dict[str, Any], history: dict[str, list[float]]) -> None:
    for name, values in history.items():
        assert stats[name] == pytest.approx(values, rel=1e-4), name


# On processes: one fit with all that a first program might pass.


class Ranks(keras.callbacks.Callback):
    """Write down what each rank is told."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        results = {name: round(float(value), 5) for name, value in sorted(logs.items())}
        with open(f"{self.folder}/rank-{self.params['rank']}-of-{self.params['size']}", "a") as file:
            file.write(f"{epoch} {results}\n")

    def on_train_end(self, logs: Any = None) -> None:
        Path(f"{self.folder}/process-{os.getpid()}").touch()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Train on two processes with callbacks that write, a scheduler, validation and a folder for checkpoints."""
    folder = tmp_path_factory.mktemp("first")
    callbacks = [
        Ranks(str(folder)),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.2 / (epoch + 1)),
        keras.callbacks.ModelCheckpoint(str(folder / "best-{epoch}.keras")),
        keras.callbacks.CSVLogger(str(folder / "log.csv")),
        keras.callbacks.TensorBoard(str(folder / "board")),
    ]
    est = Estimator.from_keras(
        model_creator=classifier,
        config={"lr": 0.5},
        workers_per_node=2,
        backend="local",
        model_dir=str(folder / "kept"),
    )
    stats = est.fit(batched, epochs=3, batch_size=BATCH, validation_data=batched, callbacks=callbacks)
    return SimpleNamespace(est=est, stats=stats, folder=folder, callbacks=callbacks)


@pytest.mark.full
@pytest.mark.slow
def test_processes_train_as_one_process_with_the_same_callbacks(first: Any) -> None:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.2 / (epoch + 1))
    model, history = alone(epochs=3, validation_data=batched({}, BATCH), callbacks=[scheduler])
    assert_same_weights(first.est.get_model(), model)
    assert_same_history(first.stats, history)


@pytest.mark.slow
def test_statistics_come_under_both_families_of_names(first: Any) -> None:
    stats = first.stats
    assert [len(stats[name]) for name in ("loss", "accuracy", "val_loss", "val_accuracy")] == [3] * 4
    assert (stats["train_loss"], stats["train_accuracy"]) == (stats["loss"][-1], stats["accuracy"][-1])
    assert (stats["validation_loss"], stats["validation_accuracy"]) == (
        stats["val_loss"][-1],
        stats["val_accuracy"][-1],
    )
    assert stats["num_samples"] == 50


@pytest.mark.slow
def test_every_rank_hears_the_same_and_the_first_alone_writes(first: Any) -> None:
    left, right = ((first.folder / f"rank-{rank}-of-2").read_text() for rank in (0, 1))
    assert left == right
    assert [line.split()[0] for line in left.splitlines()] == ["0", "1", "2"]
    assert "'val_accuracy'" in left
    assert len(list(first.folder.glob("process-*"))) == 2
    with open(first.folder / "log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["loss"]) for row in rows] == pytest.approx(first.stats["loss"])
    assert len(list(first.folder.glob("board/train/*tfevents*"))) == 1
    assert len(list(first.folder.glob("board/validation/*tfevents*"))) == 1


@pytest.mark.slow
def test_checkpoints_of_a_callback_are_models_of_keras(first: Any) -> None:
    assert sorted(path.name for path in first.folder.glob("best-*")) == [f"best-{n}.keras" for n in (1, 2, 3)]
    model = keras.models.load_model(first.folder / "best-3.keras")
    assert_same_weights(model, first.est.get_model())
    assert float(model.optimizer.learning_rate) == pytest.approx(0.2 / 3)
    assert int(model.optimizer.iterations) == 3 * STEPS


@pytest.mark.slow
def test_model_dir_keeps_a_checkpoint_to_go_on_from(first: Any) -> None:
    newest = Estimator.from_keras(model_creator=classifier).latest_checkpoint(str(first.folder / "kept"))
    assert newest == str(first.folder / "kept" / "checkpoint-3")
    again = estimator().load_checkpoint(newest)
    assert_same_weights(again.get_model(), first.est.get_model(), 0)
    assert int(again.get_model().optimizer.iterations) == 3 * STEPS


@pytest.mark.full
def test_processes_evaluate_and_predict_as_keras_does(first: Any) -> None:
    model = first.est.get_model()
    loss, accuracy = model.evaluate(X, Y, verbose=0)
    stats = first.est.evaluate((X, Y), batch_size=BATCH)
    assert stats == pytest.approx({"num_samples": 50, "validation_loss": loss, "validation_accuracy": accuracy}, 1e-4)
    np.testing.assert_allclose(first.est.predict(X), model.predict(X, verbose=0), atol=1e-6)


# Data


@pytest.mark.full
def test_creator_without_steps_per_epoch_sees_all_rows() -> None:
    est, stats = fitted(epochs=2)
    model, history = alone(epochs=2)
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)
    assert stats["num_samples"] == 50


def test_steps_per_epoch_go_on_in_the_data() -> None:
    est = estimator()
    stats = est.fit(endless, epochs=3, batch_size=BATCH, steps_per_epoch=3)
    model, history = alone(data=endless({}, BATCH), epochs=3, steps_per_epoch=3)
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)


def test_endless_data_needs_steps_per_epoch() -> None:
    with raises("endless-data"):
        estimator().fit(endless, batch_size=BATCH)
    with raises("endless-data"):
        estimator().fit(batched, batch_size=BATCH, validation_data=endless)
    stats = estimator().fit(batched, batch_size=BATCH, validation_data=endless, validation_steps=2)
    assert stats["val_loss"] == pytest.approx(
        alone(validation_data=endless({}, BATCH), validation_steps=2)[1]["val_loss"], rel=1e-4
    )


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        {"x": X, "y": Y},
        pytest.param(lambda config, batch_size: (X, Y), marks=pytest.mark.full),  # sources have tests of their own
        pytest.param(pd.DataFrame({"x": list(X), "y": Y}), marks=pytest.mark.full),
    ],
    ids=["pair", "dict", "creator", "pandas"],
)
def test_arrays_train(data: Any) -> None:
    columns = {"feature_cols": ["x"], "label_cols": ["y"]} if isinstance(data, pd.DataFrame) else {}
    est = estimator()
    stats = est.fit(data, epochs=5, batch_size=BATCH, validation_data=data, **columns)
    assert stats["num_samples"] == 50
    assert stats["val_accuracy"][-1] > 0.9
    answers = est.predict(X if isinstance(data, tuple) else data, feature_cols=columns.get("feature_cols"))
    if columns:
        answers = np.stack(answers["prediction"].tolist())
    np.testing.assert_allclose(answers, est.get_model().predict(X, verbose=0), atol=1e-6)


@pytest.mark.full
def test_validation_freq_says_which_epochs_validate() -> None:
    every = alone(epochs=4, validation_data=batched({}, BATCH))[1]
    second = fitted(epochs=4, validation_data=batched, validation_freq=2)[1]
    these = fitted(epochs=4, validation_data=batched, validation_freq=[1, 4])[1]
    assert second["val_loss"] == pytest.approx([every["val_loss"][1], every["val_loss"][3]], rel=1e-4)
    assert these["val_loss"] == pytest.approx([every["val_loss"][0], every["val_loss"][3]], rel=1e-4)
    assert len(second["loss"]) == 4


@pytest.mark.full
def test_class_weight_weighs_rows_as_keras_does() -> None:
    est, stats = fitted(epochs=2, class_weight={0: 3.0, 1: 0.25})
    model, history = alone(epochs=2, class_weight={0: 3.0, 1: 0.25})
    assert_same_weights(est.get_model(), model)
    assert stats["loss"] == pytest.approx(history["loss"], rel=1e-4)
    assert stats["loss"][0] != pytest.approx(fitted()[1]["loss"][0], rel=0.01)


def test_sample_weight_weighs_rows_as_keras_does() -> None:
    weights = RNG.uniform(0.2, 3.0, len(X)).astype(np.float32)
    frame = pd.DataFrame({"x": list(X), "y": Y, "w": weights})
    model = classifier({})
    history = model.fit(X, Y, BATCH, sample_weight=weights, shuffle=False, verbose=0, epochs=2).history
    columns = {"feature_cols": ["x"], "label_cols": ["y"], "sample_weight": "w"}
    data = lambda config, batch_size: tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(batch_size)  # noqa: E731
    est = estimator()
    stats = est.fit(data, epochs=2, batch_size=BATCH, sample_weight=True)
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)
    loss = model.evaluate(X, Y, BATCH, sample_weight=weights, verbose=0)[0]
    assert est.evaluate(frame, BATCH, **columns)["validation_loss"] == pytest.approx(loss, rel=1e-4)
    assert estimator().fit(frame, 1, BATCH, **columns)["num_samples"] == 50
    with raises("missing-sample-weights"):
        est.fit(batched, batch_size=BATCH, sample_weight=True)


@pytest.mark.full
def test_sample_weights_of_a_dataset_count() -> None:
    weights = np.linspace(0, 2, 50).astype(np.float32)

    def weighted(config: Any, batch_size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(batch_size)

    est = estimator()
    stats = est.fit(weighted, epochs=2, batch_size=BATCH)
    model, history = alone(data=weighted({}, BATCH), epochs=2)
    assert_same_weights(est.get_model(), model)
    assert stats["loss"] == pytest.approx(history["loss"], rel=1e-4)


def test_initial_epoch_counts_for_callbacks(tmp_path: Path) -> None:
    watch = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: (tmp_path / str(epoch)).touch())
    stats = fitted(epochs=5, initial_epoch=3, callbacks=watch, validation_data=batched, validation_freq=2)[1]
    assert (sorted(os.listdir(tmp_path)), len(stats["loss"])) == (["3", "4"], 2)


def test_config_reaches_creators_and_data_config_takes_its_place_for_data(tmp_path: Path) -> None:
    def noting(config: dict[str, Any], batch_size: int) -> Any:
        (tmp_path / f"{config.get('who')}-{batch_size}").touch()
        return batched(config, batch_size)

    def compile_args(config: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": keras.optimizers.SGD(config["rate"]), "loss": "sparse_categorical_crossentropy"}

    est = estimator(compile_args_creator=compile_args, config={"rate": 0.25, "who": "model"})
    est.fit(noting, batch_size=10)
    assert float(est.get_model().optimizer.learning_rate) == pytest.approx(0.25)
    est.fit(noting, batch_size=10, data_config={"who": "data"})
    est.predict(noting, batch_size=5, data_config={"who": "asked"})
    assert sorted(os.listdir(tmp_path)) == ["asked-5", "data-10", "model-10"]


def test_model_without_compile_gets_it_from_its_creator() -> None:
    def bare(config: Any) -> Any:
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    est = estimator(model_creator=bare, compile_args_creator=lambda config: {"optimizer": "sgd", "loss": "mse"})
    assert len(est.fit((X, Y.astype(np.float32)), epochs=2)["loss"]) == 2


@pytest.mark.parametrize("family", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_model_instance_trains_and_stays_as_it_was(family: Any) -> None:
    model = classifier({}, family)
    before = model.get_weights()
    est = estimator(keras_model=model)
    stats = est.fit(batched, epochs=2, batch_size=BATCH)
    for left, right in zip(model.get_weights(), before, strict=True):
        assert (left == right).all()
    history = alone(model, epochs=2)[1]
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)
    assert type(est.get_model()).__module__.split(".")[0] == family.__name__


@pytest.mark.full
def test_creator_of_an_old_model_trains() -> None:
    est = estimator(model_creator=legacy)
    stats = est.fit(batched, epochs=2, batch_size=BATCH, validation_data=batched)
    assert_same_history(stats, alone(legacy({}), epochs=2, validation_data=batched({}, BATCH))[1])


def test_subclassed_model_without_input_shape_trains_and_answers() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2, "softmax")

        def call(self, x: Any) -> Any:
            return self.dense(x)

    def own(config: Any) -> Any:
        model = Own()
        model.compile("adam", loss="sparse_categorical_crossentropy")
        return model

    est = estimator(model_creator=own)
    with raises("model-not-built"):
        est.get_model()
    est.fit((X, Y), epochs=2, batch_size=BATCH)
    np.testing.assert_allclose(est.predict(X), est.get_model().predict(X, verbose=0), atol=1e-6)


def test_initial_epoch_counts_for_validation_freq() -> None:
    options = {"epochs": 5, "initial_epoch": 2, "validation_freq": [3]}
    stats = fitted(validation_data=batched, **options)[1]
    history = alone(validation_data=batched({}, BATCH), **options)[1]
    assert stats["val_loss"] == pytest.approx(history["val_loss"], rel=1e-4)


def sentences(config: dict[str, Any], batch_size: int) -> Any:
    """Give rows of different lengths, padded to the longest of their batch."""
    rows = tf.ragged.constant([[n % 9] * (n % 5 + 1) for n in range(20)], dtype=tf.int64)
    labels = np.arange(20, dtype=np.float32) % 2
    return tf.data.Dataset.from_tensor_slices((rows, labels)).map(lambda r, y: (r, y)).padded_batch(batch_size)


def reader(config: dict[str, Any]) -> Any:
    layers = keras.layers
    pooled = layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.Input((None,)), layers.Embedding(9, 3), pooled, layers.Dense(1, "sigmoid")])
    model.set_weights([np.random.default_rng(1).normal(size=w.shape).astype(np.float32) for w in model.get_weights()])
    model.compile(keras.optimizers.SGD(0.5), loss="binary_crossentropy")
    return model


@pytest.mark.full
def test_batches_padded_to_different_lengths_train() -> None:
    est = estimator(model_creator=reader)
    stats = est.fit(sentences, epochs=2, batch_size=3, validation_data=sentences)
    model, history = alone(reader({}), sentences({}, 3), epochs=2, validation_data=sentences({}, 3))
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)


@pytest.mark.full
def test_sparse_batches_train_and_are_answered() -> None:
    def creator(config: Any) -> Any:
        model = keras.Sequential([keras.Input((4,), sparse=True), keras.layers.Dense(2, "softmax")])
        model.set_weights([np.random.default_rng(1).normal(size=w.shape) for w in model.get_weights()])
        model.compile(keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    rows = np.where(X > 0, X, 0)

    def sparse(config: Any, batch_size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(rows), Y)).batch(batch_size)

    est = estimator(model_creator=creator)
    stats = est.fit(sparse, epochs=2, batch_size=BATCH, validation_data=sparse)
    model, history = alone(creator({}), sparse({}, BATCH), epochs=2, validation_data=sparse({}, BATCH))
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)
    np.testing.assert_allclose(est.predict(sparse, batch_size=BATCH), model.predict(rows, verbose=0), atol=1e-5)


def test_rows_of_different_widths_and_types_are_answered() -> None:
    est = estimator(model_creator=reader)
    model = est.get_model()
    for rows in (np.ones((4, 3), np.int64), np.ones((3, 5), np.int64), np.ones((3, 5), np.int32)):
        np.testing.assert_allclose(est.predict(rows), model.predict(rows, verbose=0), atol=1e-6)


# Callbacks


def test_early_stopping_stops_all_ranks_and_gives_the_best_weights_back() -> None:
    def callback() -> Any:
        return keras.callbacks.EarlyStopping("val_loss", patience=1, mode="max", restore_best_weights=True)

    est, stats = fitted(epochs=9, validation_data=batched, callbacks=[callback()])
    model, history = alone(epochs=9, validation_data=batched({}, BATCH), callbacks=[callback()])
    assert len(stats["loss"]) == len(history["loss"]) == 2
    assert_same_weights(est.get_model(), model)
    assert est.evaluate(batched, BATCH)["validation_loss"] == pytest.approx(stats["val_loss"][0], rel=1e-4)


@pytest.mark.full
def test_rate_that_falls_on_a_plateau_falls_as_in_one_process() -> None:
    def callback() -> Any:
        return keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.1, patience=1, mode="max", min_delta=0)

    est, stats = fitted(epochs=4, validation_data=batched, callbacks=callback())
    model, history = alone(epochs=4, validation_data=batched({}, BATCH), callbacks=[callback()])
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)
    assert float(est.get_model().optimizer.learning_rate) == pytest.approx(float(model.optimizer.learning_rate))
    assert float(model.optimizer.learning_rate) < 0.05


def test_callback_that_stops_in_the_middle_of_an_epoch_on_one_rank_stops_all(tmp_path: Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            (tmp_path / f"{self.params['rank']}-{batch}").touch()
            if batch == 2 and self.params["rank"] == 1:
                self.model.stop_training = True

    stats = fitted(epochs=3, callbacks=[Stop()])[1]
    steps = {rank: sorted(p.name for p in tmp_path.glob(f"{rank}-*")) for rank in (0, 1)}
    assert len(stats["loss"]) == 1
    assert len(steps[0]) == len(steps[1]) < STEPS


def test_terminate_on_nan_stops_in_place_of_an_error() -> None:
    def broken(config: Any, batch_size: int) -> Any:
        x = X.copy()
        x[20] = np.nan  # on one rank alone, in the third step
        return tf.data.Dataset.from_tensor_slices((x, Y)).batch(batch_size)

    with pytest.raises(OrcaError, match="the loss became nan at step 3 of epoch 1"):
        estimator().fit(broken, epochs=3, batch_size=BATCH)
    stats = estimator().fit(broken, epochs=3, batch_size=BATCH, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert len(stats["loss"]) == 1 and np.isnan(stats["loss"][0])
    stats = estimator().fit(broken, epochs=2, batch_size=BATCH, on_nan="ignore")
    assert len(stats["loss"]) == 2


def test_callback_that_raises_is_shown_with_its_method() -> None:
    class Clumsy(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyError("no such key")

    with pytest.raises(WorkerFailed, match=r"(?s)KeyError: 'no such key'.*in on_epoch_end"):
        fitted(callbacks=[Clumsy()])


@pytest.mark.full
def test_old_models_take_old_callbacks(tmp_path: Path) -> None:
    est = estimator(model_creator=legacy)
    callbacks = [
        tf_keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.h5")),
        tf_keras.callbacks.EarlyStopping("loss", mode="max", patience=1),
        tf_keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
    ]
    stats = est.fit(batched, epochs=5, batch_size=BATCH, callbacks=callbacks)
    assert len(stats["loss"]) == 2
    assert sorted(os.listdir(tmp_path)) == ["1.h5", "2.h5", "log.csv"]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 3
    assert_same_weights(tf_keras.models.load_model(tmp_path / "2.h5"), est.get_model())


@pytest.mark.full
def test_the_callers_callbacks_can_be_used_again() -> None:
    stop = keras.callbacks.EarlyStopping("loss", patience=1)
    est, first = fitted(epochs=2, callbacks=[stop])
    assert len(first["loss"]) == len(est.fit(batched, epochs=2, batch_size=BATCH, callbacks=[stop])["loss"]) == 2


@pytest.mark.full
def test_interrupted_fit_goes_on_from_its_backup(tmp_path: Path) -> None:
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise RuntimeError("power cut")

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    with pytest.raises(WorkerFailed, match="power cut"):
        fitted(epochs=4, callbacks=[backup(), Interrupt()])
    est, stats = fitted(epochs=4, callbacks=[backup()])
    assert len(stats["loss"]) == 2
    assert_same_weights(est.get_model(), alone(epochs=4)[0])


class Witness(keras.callbacks.Callback):
    """A callback that evaluates, adds an entry to the logs, and writes down the logs at the end."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def write(self, what: str, logs: Any) -> None:
        if self.params.get("rank", 0) == 0:
            (self.folder / what).write_text(json.dumps({name: float(value) for name, value in logs.items()}))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["again"] = self.model.evaluate(X, Y, verbose=0)[0]

    def on_test_end(self, logs: Any = None) -> None:
        self.write("test", logs)

    def on_train_end(self, logs: Any = None) -> None:
        self.write("train", logs)


def test_callbacks_hear_and_add_what_they_do_in_one_process(tmp_path: Path) -> None:
    def creator(config: Any) -> Any:
        model = classifier(config)
        metric = keras.metrics.SparseCategoricalAccuracy(name="Right")
        model.compile(model.optimizer, loss=model.loss, metrics=[metric])
        return model

    def callbacks(folder: str) -> list[Any]:
        (tmp_path / folder).mkdir()
        return [Witness(tmp_path / folder), keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))]

    est = estimator(model_creator=creator)
    stats = est.fit(batched, epochs=2, batch_size=BATCH, validation_data=batched, callbacks=callbacks("ranks"))
    history = alone(creator({}), epochs=2, validation_data=batched({}, BATCH), callbacks=callbacks("keras"))[1]
    assert set(history) == {"loss", "Right", "val_loss", "val_Right", "again", "learning_rate"}
    assert_same_history(stats, history)
    for name in ("test", "train"):
        mine, theirs = (json.loads((tmp_path / folder / name).read_text()) for folder in ("ranks", "keras"))
        assert mine == pytest.approx(theirs, rel=1e-4)
    assert "validation_Right" in est.evaluate(batched, BATCH)


# Evaluate and predict


def test_predicting_leaves_the_callers_random_numbers_alone() -> None:
    def draw() -> list[float]:
        drawn = [random.random(), np.random.random(), keras.random.uniform(()), tf.random.uniform(())]
        return [*map(float, drawn), float(tf_keras.backend.random_uniform(()))]

    def creator(config: Any) -> Any:  # weights that are drawn, and a layer without any before the first row
        model = keras.Sequential([keras.layers.Dense(3, kernel_initializer="random_normal"), keras.layers.Dropout(0.5)])
        np.random.random()
        return model

    draws = []
    for asks in (False, True):
        keras.utils.set_random_seed(3)
        draw()
        if asks:
            estimator(model_creator=creator).predict(X)
        draws.append(draw())
    assert draws[0] == draws[1]


def test_evaluate_equals_keras_and_num_steps_ends_early() -> None:
    est = estimator()
    loss, accuracy = classifier({}).evaluate(X, Y, verbose=0)
    expected = {"num_samples": 50, "validation_loss": loss, "validation_accuracy": accuracy}
    for data in (batched, (X, Y)):
        assert est.evaluate(data, batch_size=BATCH) == pytest.approx(expected, rel=1e-4)
    loss, accuracy = classifier({}).evaluate(X[:16], Y[:16], verbose=0)
    expected = {"num_samples": 16, "validation_loss": loss, "validation_accuracy": accuracy}
    assert est.evaluate(batched, BATCH, num_steps=2) == pytest.approx(expected, rel=1e-4)
    assert est.evaluate(endless, BATCH, steps=2) == pytest.approx(expected, rel=1e-4)


def test_callbacks_hear_an_evaluation(tmp_path: Path) -> None:
    class Hears(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            (tmp_path / f"{self.params['rank']}-{batch}").touch()

        def on_test_end(self, logs: Any = None) -> None:
            (tmp_path / f"{self.params['rank']}-end").write_text(json.dumps(logs))

    stats = estimator().evaluate(batched, BATCH, num_steps=2, callbacks=Hears())
    assert sorted(os.listdir(tmp_path)) == ["0-0", "0-1", "0-end", "1-0", "1-1", "1-end"]
    logs = json.loads((tmp_path / "1-end").read_text())
    assert logs == {"loss": stats["validation_loss"], "accuracy": stats["validation_accuracy"]}


def two_inputs_two_outputs(config: dict[str, Any]) -> Any:
    """Return a model of (left, right): its outputs are named sum and scores."""
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    heads = {name: keras.layers.Dense(size, name=name)(joined) for name, size in (("total", 1), ("scores", 3))}
    inputs = {"left": left, "right": right} if config.get("named") else [left, right]
    model = keras.Model(inputs, heads if config.get("named") else list(heads.values()))
    model.set_weights([np.random.default_rng(1).normal(size=w.shape).astype(np.float32) for w in model.get_weights()])
    loss = {"total": "mse", "scores": "mse"} if config.get("named") else ["mse", "mse"]
    model.compile(keras.optimizers.SGD(0.01), loss=loss)
    return model


RIGHT = X[:, :2] * 2
TOTALS, SCORES = X.sum(axis=1, keepdims=True), X[:, :3]


def test_models_with_several_inputs_and_outputs() -> None:
    est = estimator(model_creator=two_inputs_two_outputs)
    data = ((X, RIGHT), (TOTALS, SCORES))

    def dataset(config: Any, batch_size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)

    stats = est.fit(dataset, epochs=2, batch_size=BATCH, validation_data=dataset)
    model, history = alone(two_inputs_two_outputs({}), dataset({}, BATCH), epochs=2, validation_data=dataset({}, BATCH))
    assert_same_history(stats, history)
    assert_same_weights(est.get_model(), model)
    est.fit(data, epochs=1, batch_size=BATCH)
    total, scores = est.predict((X, RIGHT))
    expected = est.get_model().predict((X, RIGHT), verbose=0)
    np.testing.assert_allclose(total, expected[0], atol=1e-5)
    np.testing.assert_allclose(scores, expected[1], atol=1e-5)


def outputs_by_other_names(config: Any) -> Any:
    """Return a model of a dict of outputs whose layers are not named as its keys, and come in another order."""
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    scores = keras.layers.Dense(3, "relu", name="a", kernel_initializer="ones")(joined)
    total = keras.layers.Dense(1, name="b", kernel_initializer="ones")(joined)
    model = keras.Model([left, right], {"total": total, "scores": scores})
    model.compile("sgd", {"total": "mse", "scores": "mae"})
    return model


@pytest.mark.parametrize("creator", [two_inputs_two_outputs, outputs_by_other_names])
def test_label_columns_named_as_the_outputs_meet_them_by_name(creator: Any) -> None:
    frame = pd.DataFrame({"left": list(X), "right": list(RIGHT), "total": TOTALS[:, 0], "scores": list(SCORES)})
    est = estimator(model_creator=creator, workers_per_node=1)
    stats = [
        est.evaluate(frame, BATCH, feature_cols=["left", "right"][::step], label_cols=["total", "scores"][::step])
        for step in (1, -1)
    ]
    assert stats[0] == stats[1]


def test_callbacks_that_watch_what_no_epoch_will_have_are_refused() -> None:
    stops = keras.callbacks.EarlyStopping
    with pytest.raises(ArgumentError, match="EarlyStopping watches 'val_loss', .* Pass validation_data to fit"):
        estimator(model_creator=None, keras_model=classifier({})).fit((X, Y), callbacks=[stops()])
    est = estimator(workers_per_node=1)
    words = (
        "ReduceLROnPlateau watches 'val_acc', .* accuracy, loss, val_accuracy, val_loss. Did you mean 'val_accuracy'"
    )
    with pytest.raises(OrcaError, match=words):
        est.fit((X, Y), validation_data=(X, Y), callbacks=[keras.callbacks.ReduceLROnPlateau("val_acc")])
    watched = [
        stops("accuracy", patience=9),
        stops("val_accuracy", patience=9),
        stops("learning_rate", patience=9, mode="min"),
    ]
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate)
    adds = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(extra=0.0))
    watched += [adds, stops("extra", patience=9, mode="min")]
    stats = est.fit((X, Y), 5, validation_data=(X, Y), callbacks=[rates, *watched], end_trigger=MaxScore(0.0))
    assert len(stats["loss"]) == 1  # the validation's first metric is the score


def test_models_with_named_inputs_and_outputs() -> None:
    est = estimator(model_creator=two_inputs_two_outputs, config={"named": True})
    data = ({"left": X, "right": RIGHT}, {"total": TOTALS, "scores": SCORES})

    def dataset(config: Any, batch_size: int) -> Any:
        return tf.data.Dataset.from_tensor_slices(data).batch(batch_size)

    stats = est.fit(dataset, epochs=2, batch_size=BATCH)
    history = alone(two_inputs_two_outputs({"named": True}), dataset({}, BATCH), epochs=2)[1]
    assert_same_history(stats, history)
    answers = est.predict({"left": X, "right": RIGHT})
    expected = est.get_model().predict(data[0], verbose=0)
    assert answers.keys() == expected.keys()
    np.testing.assert_allclose(answers["scores"], expected["scores"], atol=1e-5)


def test_creators_and_datasets_are_answered_in_order() -> None:
    est = estimator()
    expected = classifier({}).predict(X, verbose=0)
    np.testing.assert_allclose(est.predict(batched, batch_size=7), expected, atol=1e-6)
    np.testing.assert_allclose(est.predict(batched({}, 7)), expected, atol=1e-6)
    np.testing.assert_allclose(est.predict(X, batch_size=3), expected, atol=1e-6)
    for data in (endless, endless({}, 7)):
        np.testing.assert_allclose(est.predict(data, batch_size=7, steps=3), expected[:21], atol=1e-6)


# Files


@pytest.mark.parametrize(
    ("family", "name"),
    [(keras, "model.keras")]  # frameworks/keras/test_files.py has all kinds of files
    + [pytest.param(keras, name, marks=pytest.mark.full) for name in ("model.h5", "folder", "checkpoint")]
    + [pytest.param(tf_keras, name, marks=pytest.mark.full) for name in ("folder", "model.keras", "model.h5")],
)
def test_loaded_model_goes_on_as_if_never_saved(name: str, family: Any, tmp_path: Path) -> None:
    creator: Callable[..., Any] = classifier if family is keras else legacy
    model, _ = alone(creator({}), epochs=3)
    est = estimator(model_creator=creator)
    est.fit(batched, epochs=1, batch_size=BATCH)
    path = str(tmp_path / name)
    assert (est.save_checkpoint if name == "checkpoint" else est.save)(path) == path
    other = estimator(model_creator=creator) if name == "checkpoint" else estimator(keras_model=creator({}))
    other.load(path)
    other.fit(batched, epochs=2, batch_size=BATCH)
    assert_same_weights(other.get_model(), model)
    if name == "checkpoint":  # and so does the one that was not
        est.fit(batched, epochs=2, batch_size=BATCH)
        assert_same_weights(est.get_model(), model)
    np.testing.assert_allclose(other.predict(X), model.predict(X, verbose=0), atol=1e-5)
    if name in ("model.keras", "model.h5"):
        assert int(family.models.load_model(path).optimizer.iterations) == STEPS


def test_model_that_is_not_compiled_is_loaded_and_compiled_by_its_creator(tmp_path: Path) -> None:
    arguments = {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    est = estimator(compile_args_creator=lambda config: arguments)
    path = est.save(str(tmp_path / "model.h5"), include_optimizer=False)
    est.load(path)
    assert est.evaluate((X, Y), BATCH)["validation_accuracy"] == classifier({}).evaluate(X, Y, verbose=0)[1]
    with pytest.raises(ArgumentError, match="the model is not compiled"):
        estimator().load(path).fit((X, Y))


def test_weights_travel_alone(tmp_path: Path) -> None:
    est, _ = fitted(epochs=2)
    path = est.save_weights(str(tmp_path / "some.weights.h5"))
    other = estimator().load_weights(path)
    assert_same_weights(other.get_model(), est.get_model(), 0)
    model = classifier({})
    model.load_weights(path)
    assert_same_weights(model, est.get_model(), 0)


def test_get_model_without_weights_is_as_created() -> None:
    est, _ = fitted()
    assert_same_weights(est.get_model(set_weights=False), classifier({}), 0)
    with pytest.raises(AssertionError):
        assert_same_weights(est.get_model(), classifier({}), 0)


@pytest.mark.parametrize("family", [keras, tf_keras])
def test_weights_of_another_model_are_refused_and_the_old_ones_stay(tmp_path: Path, family: Any) -> None:
    def wider(config: dict[str, Any]) -> Any:
        return family.Sequential([family.Input((4,)), family.layers.Dense(7), family.layers.Dense(2)])

    est, other = (estimator(model_creator=creator) for creator in (lambda config: classifier(config, family), wider))
    before = est.get_model().get_weights()
    path = other.save_checkpoint(str(tmp_path / "checkpoint"))
    with pytest.raises(ArgumentError, match=r"weight .*\(4, 5\).*\(4, 7\)|\(4, 7\).*\(4, 5\)"):
        est.load_checkpoint(path)
    other.save_weights(str(tmp_path / "other.weights.h5"))
    with pytest.raises(ArgumentError, match="do not fit the model"):
        est.load_weights(str(tmp_path / "other.weights.h5"))
    assert all(map(np.array_equal, est.get_model().get_weights(), before))


def test_loading_draws_no_random_numbers_of_the_program(tmp_path: Path) -> None:
    est = estimator()
    path = est.save_checkpoint(str(tmp_path / "checkpoint"))
    draws = []
    for load in (str, est.load_checkpoint):
        keras.utils.set_random_seed(5)
        load(path)
        draws.append((random.random(), *np.random.rand(2), *keras.random.normal((2,)).numpy()))
    assert draws[0] == draws[1]


@pytest.mark.full
def test_latest_checkpoint_is_the_one_of_the_last_fit(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    est = estimator(model_dir=folder)
    est.fit(batched, epochs=1, batch_size=BATCH)
    est.fit(batched, epochs=2, batch_size=BATCH)
    assert sorted(os.listdir(folder)) == ["checkpoint-1", "checkpoint-3"]
    for door in (KerasEstimator, Estimator):
        assert door.latest_checkpoint(folder) == f"{folder}/checkpoint-3"
    assert KerasEstimator.latest_checkpoint(str(tmp_path / "nowhere")) is None


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either model_creator .* or keras_model .*; got neither"),
        ({"model_creator": classifier, "keras_model": 3}, "got both"),
        ({"keras_model": "model.h5"}, "must be a Keras model or a function .*; got str"),
        ({"model_creator": classifier, "compile_args_creator": {}}, "compile_args_creator must be a function"),
        ({"model_creator": classifier, "config": 3}, "config must be a dict.*got int"),
        ({"model_creator": classifier, "seed": -1}, "seed must be a whole number"),
        ({"model_creator": classifier, "backend": "mpi"}, "backend must be one of .*'mpi'"),
    ],
)
def test_wrong_arguments_of_from_keras_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Estimator.from_keras(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be a positive"),
        ({"initial_epoch": 1}, "initial_epoch must be less than epochs; got 1 and 1"),
        ({"batch_size": 0}, "batch_size must be a positive"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be a positive"),
        ({"validation_steps": -1}, "validation_steps must be a positive"),
        ({"validation_freq": "1"}, "validation_freq must be a positive"),
        ({"validation_freq": [0]}, "validation_freq must be a positive"),
        ({"on_nan": "shrug"}, "on_nan must be 'raise', 'warn' or 'ignore'; got 'shrug'"),
        ({"callbacks": ["early"]}, "callbacks must be Keras callbacks; got 'early'"),
        ({"callbacks": [keras.callbacks.EarlyStopping]}, "Pass instances"),
        ({"class_weight": {"cat": 2}}, "class_weight must be a dict of class numbers and weights; got"),
        ({"class_weight": {-1: 2}}, "class_weight must be"),
        ({"class_weight": [1, 2]}, "class_weight must be"),
        ({"class_weight": {}}, "class_weight must be"),
        ({"data": 42}, "data of type builtins.int is not supported"),
        ({"data": tf.data.Dataset.range(3).batch(2)}, "Pass a creator"),
        ({"validation_data": batched}, "same kind as data; got Array and Creator"),
        ({"data": pd.DataFrame({"a": [1.0]}), "feature_cols": ["b"], "label_cols": ["a"]}, "b"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_arguments_of_fit_are_refused_before_a_worker_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OrcaError, match=message) as caught:
        estimator().fit(**{"data": (X, Y), **options})
    assert not isinstance(caught.value, WorkerFailed)


def test_evaluate_and_predict_say_what_they_do_not_take() -> None:
    est = estimator()
    with raises("bad-sample-weight"):
        est.evaluate((X, Y), sample_weight=np.ones(50))
    with raises("not-a-callback", match="'early'"):
        est.evaluate((X, Y), callbacks="early")
    with pytest.raises(NotYet, match="callbacks"):
        est.predict(X, callbacks=[keras.callbacks.Callback()])
    with pytest.raises(ArgumentError, match="num_steps must be a positive"):
        est.evaluate((X, Y), num_steps=0)
    with pytest.raises(ArgumentError, match="steps must be a positive"):
        est.predict(endless, steps=0)
    with raises("endless-data"):
        est.predict(endless)


def bare(config: Any) -> Any:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def loss_object(config: Any) -> Any:
    model = bare(config)
    model.compile("sgd", loss=keras.losses.MeanSquaredError())
    return model


@pytest.mark.parametrize(
    ("creator", "data", "message"),
    [
        (bare, (X, Y), "the model is not compiled.*compile_args_creator"),
        (lambda config: 3, (X, Y), "model_creator must return a Keras model; got int"),
        (classifier, X, "there are no labels"),
        (loss_object, X, "there are no labels"),
        (classifier, (X[:0], Y[:0]), "there are no rows to train on"),
        (classifier, lambda config, batch_size: iter([1]), "data creator .* must return .*; got list_iterator"),
        (
            classifier,
            lambda config, batch_size: tf.data.Dataset.from_tensor_slices(Y),
            "the dataset must give batches",
        ),
    ],
    ids=["bare", "no-model", "no-labels", "no-labels-for-a-loss-object", "empty", "iterator", "not-batched"],
)
def test_what_a_worker_finds_wrong_is_said(creator: Any, data: Any, message: str) -> None:
    with pytest.raises(OrcaError, match=f"(?s){message}"):
        estimator(model_creator=creator).fit(data)


def test_compile_args_must_be_a_dict() -> None:
    with raises("bad-compile-args"):
        estimator(compile_args_creator=lambda config: None).fit((X, Y))


def test_loss_that_is_not_finite_is_an_error_of_its_own() -> None:
    with pytest.raises(LossNotFinite, match="the loss became nan at step 1 of epoch 1"):
        estimator().fit((np.full_like(X, np.nan), Y))


# Clusters


def named_columns(config: dict[str, Any]) -> Any:
    """Return a model of a number column, a text column and a column of texts, whose inputs have their names."""
    layers = keras.layers
    inputs = {
        "size": keras.Input((1,), name="size"),
        "kind": keras.Input((1,), name="kind", dtype="string"),
        "tags": keras.Input((2,), name="tags", dtype="string"),
    }
    kinds = layers.StringLookup(vocabulary=["cat", "dog"], output_mode="one_hot")(inputs["kind"])
    tags = layers.StringLookup(vocabulary=["wild", "tame", "old"], output_mode="multi_hot")(inputs["tags"])
    joined = layers.Concatenate()([inputs["size"], kinds, tags])
    model = keras.Model(inputs, layers.Dense(2, "softmax")(joined))
    model.compile(keras.optimizers.Adam(0.2), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def of_texts(config: dict[str, Any]) -> Any:
    """Return a model of sentences."""
    words = keras.layers.TextVectorization(output_mode="multi_hot", vocabulary=["good", "bad"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), words, keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.Adam(0.3), loss="binary_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.slow
def test_dataframe_trains_validates_evaluates_and_is_answered_lazily(spark: Any) -> None:
    rows = [(n, X[n].tolist(), int(Y[n])) for n in range(50)]
    df = spark.createDataFrame(rows, "number int, x array<float>, y int").repartition(3)
    est = Estimator.from_keras(model_creator=classifier, workers_per_node=2, backend="spark")
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    stats = est.fit(df, epochs=6, batch_size=BATCH, validation_data=df, validation_freq=3, **columns)
    assert (len(stats["val_loss"]), len(stats["loss"]), stats["num_samples"]) == (2, 6, 50)
    model = est.get_model()
    loss, accuracy = model.evaluate(X, Y, verbose=0)
    assert accuracy > 0.9
    assert stats["validation_loss"] == pytest.approx(loss, rel=1e-4)
    assert est.evaluate(df, BATCH, **columns)["validation_accuracy"] == pytest.approx(accuracy)
    answered = est.predict(df, feature_cols=["x"], output_cols="scores")
    assert answered.columns == ["number", "x", "y", "scores"]
    scores = {row.number: row.scores for row in answered.collect()}
    np.testing.assert_allclose([scores[n] for n in range(50)], model.predict(X, verbose=0), atol=1e-5)
    with pytest.raises(OrcaError, match="nothing"):
        est.fit(df, feature_cols=["nothing"], label_cols=["y"])
    with pytest.raises(OrcaError, match="feature_cols"):
        est.fit(df)


@pytest.mark.full
def test_text_columns_train_and_are_answered(spark: Any) -> None:
    rows = [(float(n % 3), ("cat", "dog")[n % 2], ["wild", ("tame", "old")[n % 2]], n % 2) for n in range(40)]
    df = spark.createDataFrame(rows, "size float, kind string, tags array<string>, y int")
    est = Estimator.from_keras(model_creator=named_columns, workers_per_node=2, backend="spark")
    features = ["tags", "size", "kind"]
    stats = est.fit(df, epochs=4, batch_size=BATCH, feature_cols=features, label_cols=["y"])
    assert stats["accuracy"][-1] == 1.0
    answers = [int(np.argmax(row.prediction)) == row.y for row in est.predict(df, feature_cols=features).collect()]
    assert answers == [True] * 40
    with raises("input-names-differ", match="'kind'"):
        est.fit(df, feature_cols=["size", "kind"], label_cols=["y"])


@pytest.mark.full
def test_sentences_and_xshards_train(spark: Any) -> None:
    from orca.data.shard import XShards

    rows = [(("a good day", "a bad day")[n % 2], float(n % 2)) for n in range(40)]
    est = Estimator.from_keras(model_creator=of_texts, workers_per_node=2, backend="spark")
    df = spark.createDataFrame(rows, "text string, y float")
    assert est.fit(df, 5, BATCH, feature_cols="text", label_cols="y")["accuracy"][-1] == 1.0
    answers = est.predict(df, feature_cols="text").collect()
    assert [float(np.ravel(row.prediction)[0]) > 0.5 for row in answers] == [row.y > 0.5 for row in answers]

    shards = XShards.partition({"x": X, "y": Y}, num_shards=4)
    est = Estimator.from_keras(model_creator=classifier, workers_per_node=2, backend="spark")
    stats = est.fit(shards, epochs=4, batch_size=BATCH, validation_data=shards)
    assert stats["val_accuracy"][-1] > 0.9
    collected = est.predict(shards).collect()
    answers = np.concatenate([shard["prediction"] for shard in collected])
    assert set(collected[0]) == {"x", "y", "prediction"}
    np.testing.assert_allclose(answers, est.get_model().predict(X, verbose=0), atol=1e-5)


@pytest.mark.full
def test_ray_dataset_trains_and_is_answered(ray_context: Any) -> None:
    ray = pytest.importorskip("ray")
    data = ray.data.from_items([{"number": n, "x": X[n], "y": int(Y[n])} for n in range(50)])
    est = Estimator.from_keras(model_creator=classifier, workers_per_node=2, backend="tf2")
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    stats = est.fit(data, epochs=6, batch_size=BATCH, validation_data=data, **columns)
    assert (stats["num_samples"], stats["val_accuracy"][-1] > 0.9) == (50, True)
    expected = est.get_model().predict(X, verbose=0)
    answered = est.predict(data, feature_cols=["x"]).take_all()
    assert len(answered) == 50
    for row in answered:
        np.testing.assert_allclose(row["prediction"], expected[row["number"]], atol=1e-5)
