"""Keras resume: a Keras fit that is interrupted, in the middle of an epoch too, ends as if it had not been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")
import keras
import tensorflow as tf
import tf_keras

from orca import Estimator
from orca.errors import ArgumentError, WorkerFailed
from orca.estimators.keras import KerasEstimator
from orca.storage.checkpoints import newest_run, versions
from orca.triggers import EveryEpoch, MaxIteration, SeveralIteration

pytestmark = pytest.mark.timeout(240)
ROWS, BATCH, STEPS = 43, 6, 8  # the last step has one row
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(ROWS, 4)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)
WEIGHTS = DRAW.uniform(0.2, 2.0, ROWS).astype(np.float32)


def full(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.full)


def creator(config: dict[str, Any]) -> Any:
    """Return a model that draws, normalizes, and has metrics that are sums over an epoch."""
    family = tf_keras if config.get("legacy") else keras
    layers = family.layers
    middle = [layers.BatchNormalization(momentum=0.8), layers.Dropout(0.4)]
    model = family.Sequential([family.Input((4,)), *middle, layers.Dense(1, "sigmoid")])
    model.layers[-1].set_weights([np.full((4, 1), 0.3, np.float32), np.zeros(1, np.float32)])
    model.compile(
        config.get("optimizer", sgd)(family),
        loss="binary_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["mae"] if config.get("weighted") else None,
        run_eagerly=config.get("eager", False),
    )
    return model


def sgd(family: Any, **options: Any) -> Any:
    return family.optimizers.SGD(0.05, momentum=0.9, **options)


OPTIMIZERS = {
    "accumulating": lambda family: family.optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "averaging": lambda family: sgd(family, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "scaled": lambda family: family.optimizers.LossScaleOptimizer(sgd(family), initial_scale=8, dynamic_growth_steps=3),
    "scheduled": lambda family: family.optimizers.Adam(family.optimizers.schedules.ExponentialDecay(0.1, 3, 0.7)),
}


def pipeline(config: dict[str, Any], batch_size: int) -> Any:
    """Shuffle in another way in each pass; of unknown length where it is asked for."""
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).batch(batch_size)
    return dataset.filter(lambda x, y: True) if config.get("unknown") else dataset


class Failing:
    """Fail on the last rank after so many steps in all, as long as the mark is there; after 0, when an epoch ends."""

    def __init__(self, step: int, mark: str, kill: bool = False) -> None:
        super().__init__()
        self.step, self.mark, self.kill, self.seen = step, mark, kill, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        last = self.params["rank"] == self.params["size"] - 1
        if last and self.seen == self.step and os.path.exists(self.mark):
            time.sleep(0.3)  # the checkpoint before it is written in the background
            if self.kill:
                os.remove(self.mark)
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("no more")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self.step and os.path.exists(self.mark):
            raise RuntimeError("no more")


class Trouble(Failing, keras.callbacks.Callback):
    pass


class LegacyTrouble(Failing, tf_keras.callbacks.Callback):
    pass


def estimator(ranks: int = 2, **options: Any) -> KerasEstimator:
    """Return an Estimator on so many ranks."""
    arguments = {"model_creator": creator, "seed": 3, "backend": "local", "workers_per_node": ranks, **options}
    return KerasEstimator.from_keras(**arguments)


def interrupted(folder: Path, step: int, ranks: int = 2, options: Any = None, **arguments: Any) -> Any:
    """Run a program that fails after a step, and then the same program again; return (Estimator, statistics)."""
    mark = folder / "mark"
    mark.touch()
    arguments = {"data": (X, Y), "epochs": 3, "batch_size": BATCH, "resume": True, **arguments}
    callbacks = arguments.pop("callbacks", list)
    options = {"model_dir": str(folder / "models"), **(options or {})}
    legacy = options.get("config", {}).get("legacy")
    first = estimator(ranks, **options)
    with pytest.raises(WorkerFailed, match="no more"):
        first.fit(callbacks=[*callbacks(), (LegacyTrouble if legacy else Trouble)(step, str(mark))], **arguments)
    mark.unlink()
    again = estimator(ranks, **options)
    return again, again.fit(callbacks=callbacks(), **arguments)


def unbroken(ranks: int = 2, options: Any = None, **arguments: Any) -> Any:
    arguments = {"data": (X, Y), "epochs": 3, "batch_size": BATCH, **arguments}
    callbacks = arguments.pop("callbacks", list)
    made = estimator(ranks, **(options or {}))
    return made, made.fit(callbacks=callbacks(), **arguments)


def check_alike(one: Any, other: Any) -> None:
    """Check that weights, the optimizer's variables and all numbers of the history are equal."""
    (left, stats), (right, expected) = one, other
    assert stats.keys() == expected.keys()
    for name, value in expected.items():
        numbers = all(isinstance(each, int | float) for each in (value if isinstance(value, list) else [value]))
        assert stats[name] == (pytest.approx(value, rel=1e-6) if numbers else value), name
    for name in ("models", "optimizers"):
        for some, others in zip(left._state.payload[name], right._state.payload[name], strict=True):
            for mine, theirs in zip(some, others, strict=True):
                np.testing.assert_allclose(mine, theirs, 1e-6, 1e-7)
    assert (left._state.epoch, left._state.steps) == (right._state.epoch, right._state.steps)


@pytest.mark.parametrize(("ranks", "legacy"), [full(1, False), (1, True), full(2, False), (3, False), full(3, True)])
def test_interrupted_program_goes_on_in_mid_epoch(tmp_path: Path, ranks: int, legacy: bool) -> None:
    options = {"config": {"legacy": legacy}}
    resumed = interrupted(tmp_path, 13, ranks, options, checkpoint_trigger=SeveralIteration(5))
    assert versions(newest_run(str(tmp_path / "models")) or "") == [5, 10, 15, 20]
    check_alike(resumed, unbroken(ranks, options))


@pytest.mark.full
@pytest.mark.parametrize("unknown", [False, full(True)])
def test_pipeline_that_shuffles_anew_in_each_pass_goes_on_in_the_order_it_had(tmp_path: Path, unknown: bool) -> None:
    options = {"config": {"unknown": unknown}}
    resumed = interrupted(tmp_path, 21, 1, options, data=pipeline, checkpoint_trigger=SeveralIteration(5))
    check_alike(resumed, unbroken(1, options, data=pipeline))


@pytest.mark.parametrize("unknown", [full(False), True])
def test_steps_per_epoch_go_on_where_the_data_was(tmp_path: Path, unknown: bool) -> None:
    arguments = {"options": {"config": {"unknown": unknown}}, "data": pipeline, "steps_per_epoch": 5, "epochs": 4}
    resumed = interrupted(tmp_path, 13, 1, checkpoint_trigger=SeveralIteration(3), **arguments)
    check_alike(resumed, unbroken(1, **arguments))


@pytest.mark.full
def test_stream_that_was_kept_after_its_last_step_goes_on_with_the_next_epoch(tmp_path: Path) -> None:
    arguments = {"options": {"config": {"unknown": True}}, "data": pipeline, "validation_data": pipeline}
    resumed = interrupted(tmp_path, 0, 2, checkpoint_trigger=SeveralIteration(STEPS), **arguments)
    check_alike(resumed, unbroken(2, **arguments))


@pytest.mark.full
def test_each_worker_goes_on_with_its_own_batch_normalization(tmp_path: Path) -> None:
    options = {"sync_batch_norm": False}
    resumed = interrupted(tmp_path, 13, 2, options, checkpoint_trigger=SeveralIteration(5))
    check_alike(resumed, unbroken(2, options))


@pytest.mark.full
def test_fewer_workers_take_over_what_all_had_counted(tmp_path: Path) -> None:
    options = {"sync_batch_norm": False, "model_dir": str(tmp_path)}
    unbroken(3, options, end_trigger=MaxIteration(13), checkpoint_trigger=SeveralIteration(5))
    _, stats = unbroken(2, options, resume=True)
    assert len(stats["loss"]) == 3 and stats["num_samples"] == ROWS
    correct = np.array(stats["accuracy"]) * ROWS
    assert correct == pytest.approx(correct.round(), abs=1e-3)  # of 43 rows in every epoch, the interrupted one too


@pytest.mark.full
def test_weighted_rows_and_a_number_of_steps_resume(tmp_path: Path) -> None:
    arguments = {
        "options": {"config": {"weighted": True}},
        "data": (X, Y, WEIGHTS),
        "validation_data": (X, Y, WEIGHTS),
        "sample_weight": True,
        "max_steps": 19,
    }
    resumed = interrupted(tmp_path, 13, 2, checkpoint_trigger=SeveralIteration(5), **arguments)
    check_alike(resumed, unbroken(2, **arguments))
    assert resumed[0]._state.steps == 19


def remembering(folder: Path) -> list[Any]:
    """Return callbacks that remember: nothing is ever better by so much as the first epoch."""
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=2, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=4, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.keras"), "val_loss", save_best_only=True, mode="max"),
        keras.callbacks.CSVLogger(str(folder / "lines.csv")),
    ]


@pytest.mark.full
def test_callbacks_remember_over_a_resume(tmp_path: Path) -> None:
    folders = [tmp_path / "resumed", tmp_path / "unbroken"]
    for folder in folders:
        folder.mkdir()
    arguments: dict[str, Any] = {"validation_data": (X, Y), "epochs": 9}
    resumed = interrupted(
        folders[0],
        3 * STEPS + 6,
        checkpoint_trigger=SeveralIteration(3 * STEPS - 3),  # in the middle of the third epoch
        callbacks=lambda: remembering(folders[0]),
        **arguments,
    )
    expected = unbroken(callbacks=lambda: remembering(folders[1]), **arguments)
    check_alike(resumed, expected)
    assert len(expected[1]["loss"]) == 5  # the first and four that are no better
    left, right = ([*folder.glob("*.keras")] for folder in folders)
    assert {path.name for path in left} == {path.name for path in right}
    lines = [[line.split(",")[0] for line in (folder / "lines.csv").read_text().splitlines()] for folder in folders]
    assert lines[0] == lines[1] == ["epoch", "0", "1", "2", "3", "4"]


@pytest.mark.full
def test_lost_worker_is_made_up_for_in_mid_epoch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    options = {"model_creator": creator, "seed": 3, "backend": "local", "workers_per_node": 2}
    made = Estimator.from_keras(model_dir=str(tmp_path / "models"), **options)
    stats = made.fit(
        (X, Y),
        epochs=3,
        batch_size=BATCH,
        checkpoint_trigger=SeveralIteration(5),
        callbacks=[Trouble(13, str(mark), kill=True)],
        max_failures=1,
    )
    assert not mark.exists()
    assert "Failure 1 of the 1 that max_failures allows: going on after step 10." in caplog.text
    check_alike((made, stats), unbroken())


def test_finished_fit_has_nothing_left_to_train_and_more_epochs_go_on(tmp_path: Path) -> None:
    folder = str(tmp_path)
    first = unbroken(1, {"model_dir": folder}, resume=True, epochs=2)
    assert versions(newest_run(folder) or "") == [STEPS, 2 * STEPS]
    check_alike(unbroken(1, {"model_dir": folder}, resume=True, epochs=2), first)
    check_alike(unbroken(1, {"model_dir": folder}, resume=True), unbroken(1))


def test_fit_that_a_callback_stopped_is_over(tmp_path: Path) -> None:
    def stopping() -> list[Any]:
        return [keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=1, restore_best_weights=True)]

    arguments: dict[str, Any] = {"options": {"model_dir": str(tmp_path)}, "callbacks": stopping, "epochs": 9}
    first = unbroken(1, resume=True, **arguments)
    assert len(first[1]["loss"]) == 2
    check_alike(unbroken(1, resume=True, **arguments), first)  # with the weights that the callback restored


def test_checkpoints_of_triggers_are_loaded_by_version_and_need_a_place(tmp_path: Path) -> None:
    folder = str(tmp_path)
    made, _ = unbroken(1, {"model_dir": folder}, checkpoint_trigger=SeveralIteration(5), keep_checkpoints=2)
    run = newest_run(folder)
    assert run is not None and versions(run) == [15, 20]
    assert estimator().latest_checkpoint(folder) == f"{folder}/checkpoint-3"  # what the end of a fit leaves is newer
    assert estimator().load_orca_checkpoint(folder, 3)._state.steps == 3 * STEPS
    (tmp_path / "checkpoint-3" / "weights.safetensors").unlink()  # the one before is taken
    assert estimator(1).load_orca_checkpoint(folder)._state.steps == 20
    back = estimator(1).load_orca_checkpoint(folder, version=20)
    assert (back._state.steps, back._state.epoch, back._state.position) == (20, 2, None)
    assert len(back.fit((X, Y), 1, BATCH)["loss"]) == 1  # a fit of its own
    assert estimator().latest_checkpoint(run) is not None
    with pytest.raises(ArgumentError, match=r"there is no checkpoint 7 in .*; there are orca.15, orca.20"):
        made.load_orca_checkpoint(folder, version=7)
    with pytest.raises(ArgumentError, match="checkpoints need a place to go to. Pass model_dir= to the Estimator"):
        estimator().fit((X, Y), checkpoint_trigger=EveryEpoch())
    with pytest.raises(ArgumentError, match="max_steps must be a positive whole number; got 0"):
        estimator().fit((X, Y), max_steps=0)


def test_end_trigger_stops_in_mid_epoch() -> None:
    made, stats = unbroken(1, end_trigger=MaxIteration(11))
    assert len(stats["loss"]) == 2 and made._state.steps == 11


@pytest.mark.full
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_state_of_an_optimizer_resumes(tmp_path: Path, optimizer: str) -> None:
    options = {"config": {"optimizer": OPTIMIZERS[optimizer]}}
    resumed = interrupted(tmp_path, 13, 2, options, checkpoint_trigger=SeveralIteration(5))
    check_alike(resumed, unbroken(2, options))


@pytest.mark.full
def test_eager_model_with_class_weights_resumes(tmp_path: Path) -> None:
    arguments = {"options": {"config": {"eager": True}}, "class_weight": {0: 0.5, 1: 2.0}}
    resumed = interrupted(tmp_path, 13, 2, checkpoint_trigger=SeveralIteration(5), **arguments)
    check_alike(resumed, unbroken(2, **arguments))


def test_other_metrics_in_mid_epoch_are_refused(tmp_path: Path) -> None:
    options = {"model_dir": str(tmp_path / "models")}
    unbroken(1, options, end_trigger=MaxIteration(6), checkpoint_trigger=SeveralIteration(5))
    with pytest.raises(WorkerFailed, match="the model was compiled with other metrics then"):
        unbroken(1, {**options, "config": {"weighted": True}}, resume=True)


class Reporting(keras.Model):  # type: ignore[misc]
    """A model whose train_step leaves the metrics of compile alone."""

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.compute_loss(data[0], data[1], self(data[0], training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def reporting(config: dict[str, Any]) -> Any:
    inputs = keras.Input((4,))
    model = Reporting(inputs, keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(inputs))
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def test_a_train_step_may_leave_metrics_alone() -> None:
    _, stats = unbroken(options={"model_creator": reporting}, epochs=1)
    assert np.isfinite(stats["loss"]).all() and "accuracy" not in stats


@pytest.mark.full
def test_metrics_that_only_the_validation_uses_resume_in_mid_epoch(tmp_path: Path) -> None:
    arguments = {"options": {"model_creator": reporting}, "validation_data": (X, Y)}
    resumed = interrupted(tmp_path, 13, 2, checkpoint_trigger=SeveralIteration(5), **arguments)
    check_alike(resumed, unbroken(2, **arguments))
    assert "val_accuracy" in resumed[1] and "accuracy" not in resumed[1]


class Talking(Reporting):
    """A model that logs more than numbers: what a list of the last step holds differs in size between ranks."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        more = {"text": "warm", "none": None, "inner": {"deep": 2.0}, "rows": tf.zeros(len(data[0])), "thing": object()}
        return logs | more


def talking(config: dict[str, Any]) -> Any:
    inputs = keras.Input((4,))
    model = Talking(inputs, keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(inputs))
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    return model


@pytest.mark.full
def test_logs_that_are_no_numbers_are_kept_as_far_as_they_are_plain(tmp_path: Path) -> None:
    arguments = {"options": {"model_creator": talking}, "epochs": 2, "data": (X[:39], Y[:39])}  # the last step: 2 + 1
    resumed = interrupted(tmp_path, 12, 2, checkpoint_trigger=SeveralIteration(5), **arguments)
    check_alike(resumed, unbroken(2, **arguments))
    assert (resumed[1]["text"], resumed[1]["deep"]) == (["warm"] * 2, [2.0] * 2) and "thing" not in resumed[1]


class Duel(keras.Model):  # type: ignore[misc]
    """Two networks with an optimizer each and no `call`, as GANs are often written."""

    def __init__(self) -> None:
        super().__init__()
        dense = keras.layers.Dense
        self.maker = keras.Sequential([keras.Input((4,)), dense(4, kernel_initializer="ones")])
        self.critic = keras.Sequential([keras.Input((4,)), dense(1, kernel_initializer="ones")])
        self.judge = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, maker_optimizer: Any, critic_optimizer: Any) -> None:
        super().compile()
        self.maker_optimizer, self.critic_optimizer = maker_optimizer, critic_optimizer

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            real, fake = self.critic(data[0]), self.critic(self.maker(data[0][:, ::-1]))
            critic_loss = self.judge(tf.ones_like(real), real) + self.judge(tf.zeros_like(fake), fake)
            maker_loss = self.judge(tf.ones_like(fake), fake)
        weights = self.critic.trainable_variables, self.maker.trainable_variables
        self.critic_optimizer.apply(tape.gradient(critic_loss, weights[0]), weights[0])
        self.maker_optimizer.apply(tape.gradient(maker_loss, weights[1]), weights[1])
        return {"critic_loss": critic_loss, "maker_loss": maker_loss, "phase": "both"}


def duel(config: dict[str, Any]) -> Any:
    model = Duel()
    model.compile(keras.optimizers.Adam(0.05), sgd(keras))
    return model


@pytest.mark.full
def test_every_optimizer_that_a_train_step_steps_resumes(tmp_path: Path) -> None:
    options = {"model_creator": duel}
    resumed = interrupted(tmp_path, 13, 2, options, checkpoint_trigger=SeveralIteration(5), epochs=2)
    check_alike(resumed, unbroken(2, options, epochs=2))
    assert resumed[0]._state.payload["stepping"]["names"] == ["optimizer", "maker_optimizer", "critic_optimizer"]
    assert resumed[1]["phase"] == ["both"] * 2
    again = estimator(2, **options).load_checkpoint(resumed[0].save_checkpoint(str(tmp_path / "kept")))
    for one in (resumed[0], again):
        one.fit((X, Y), 1, BATCH)
    check_alike((again, {}), (resumed[0], {}))


def repeated(config: dict[str, Any], batch_size: int) -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(ROWS).repeat(2).batch(batch_size)


@pytest.mark.full
def test_a_pipeline_that_shuffles_several_times_in_a_pass_goes_on_in_its_order(tmp_path: Path) -> None:
    arguments = {"data": repeated, "epochs": 2}
    one, _ = unbroken(**arguments)
    other, _ = interrupted(tmp_path, 2 * STEPS + 5, checkpoint_trigger=SeveralIteration(2), **arguments)
    for mine, theirs in zip(one.get_model().get_weights(), other.get_model().get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
