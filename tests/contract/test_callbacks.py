"""Callbacks of learners of arrays: stopping early, going on after an interruption, against a plain loop of numpy."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca import Estimator
from orca.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    MainCallback,
    MaxstepsCallback,
    ModelCheckpoint,
    TensorBoardCallback,
    TqdmCallback,
)
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.loop import History
from orca.core.state import State
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, WorkerFailed
from orca.job import FitJob
from orca.report.tensorboard import Summaries
from orca.storage.checkpoints import new_run, path_of, versions
from orca.storage.states import load_state
from orca.testing import LinearLearner, shards_of
from orca.triggers import SeveralIteration

X = np.random.default_rng(1).normal(size=(53, 3))
Y = X @ [2.0, -1.0, 0.5] + 0.3
RATE, MOMENTUM, BATCH, EPOCHS = 0.05, 0.9, 9, 20  # so much momentum that the loss goes up again
STEPS = 6  # of an epoch


def learner() -> LinearLearner:
    return LinearLearner(3, RATE, MOMENTUM)


def estimator(ranks: int = 2, **options: Any) -> Any:
    return Estimator.from_learner(learner(), backend="local", workers_per_node=ranks, **options)


@dataclass
class Diary(Callback):
    """Write down the rows of each step, in a file for each rank, and every hook that is called."""

    folder: str

    def after_train_iter(self, runner: Any) -> None:
        x, y = runner.batch
        assert len(x) == len(y) and runner.loss >= 0
        np.save(f"{self.folder}/{runner.global_step}-{runner.rank}", x)

    def after_val_iter(self, runner: Any) -> None:
        assert runner.loss is None and len(runner.batch[0])  # not that of a step of training

    def steps(self) -> list[np.ndarray]:
        """Return the rows of every step, of all ranks."""
        files = sorted(Path(self.folder).glob("*.npy"), key=lambda file: [*map(int, file.stem.split("-"))])
        steps: dict[str, list[np.ndarray]] = {}
        for file in files:
            steps.setdefault(file.stem.split("-")[0], []).append(np.load(file))
        return [np.concatenate(parts) for parts in steps.values()]


@dataclass
class Cut(Callback):
    """Fail, or die, on the last rank after so many steps in all, as long as the mark is there.

    Checkpoints are written in the background: it waits until the one of `kept` steps is there, beside the mark.
    """

    step: int
    mark: str
    kill: bool = False
    kept: int = 0

    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == runner.size - 1 and runner.global_step == self.step and os.path.exists(self.mark):
            deadline = time.monotonic() + 30
            while self.kept and not self._is_kept() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.remove(self.mark)
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the power is gone")

    def _is_kept(self) -> bool:
        place = Path(self.mark).parent
        folders = [*place.glob("run-*"), *place.glob("models/run-*")]  # nothing deeper: drafts come and go
        return any(self.kept in versions(str(folder)) for folder in folders)


def plain_loop(steps: list[np.ndarray], patience: int) -> tuple[list[float], int, np.ndarray]:
    """Train in one process on the rows of these steps; return validation losses, the best epoch and its weights."""
    labels = dict(zip(map(bytes, X), Y, strict=True))
    weight = learner().initial_state(0).payload["models"][0]["weight"]
    speed, losses, best, waited = np.zeros(4), list[float](), (np.inf, 0, weight), 0
    for epoch in range(1, EPOCHS + 1):
        for rows in steps[(epoch - 1) * STEPS : epoch * STEPS]:
            inputs = np.column_stack([rows, np.ones(len(rows))])
            error = inputs @ weight - [labels[bytes(row)] for row in rows]
            speed = MOMENTUM * speed + 2.0 * inputs.T @ error / len(rows)
            weight = weight - RATE * speed
        losses.append(float(np.mean((np.column_stack([X, np.ones(53)]) @ weight - Y) ** 2)))
        if losses[-1] < best[0]:
            best, waited = (losses[-1], epoch, weight), 0
        elif (waited := waited + 1) == patience:
            break
    return losses, best[1], best[2]


def train(folder: Path, cuts: list[int], *callbacks: Callback, state: State | None = None) -> tuple[History, Any]:
    """Train on shards of these rows, with checkpoints."""
    parts = list(zip(np.split(X, cuts), np.split(Y, cuts), strict=True))
    plan = FitPlan(
        epochs=EPOCHS,
        batch_size=BATCH,
        callbacks=callbacks,
        checkpoint_trigger=SeveralIteration(4),
        checkpoint_folder=str(folder),
    )
    job = FitJob(learner(), plan, (), state)
    (history, last), *_ = LocalEngine(len(parts)).run(job, shards_of(parts, parts), Settings(20))
    return history, last


@pytest.mark.parametrize("cuts", [[], [5, 5]])  # one rank; three, of which one has no rows
@pytest.mark.parametrize("step", [0, 9, 46])  # 0: not interrupted
def test_a_fit_stops_early_with_the_weights_of_a_plain_loop(tmp_path: Path, cuts: list[int], step: int) -> None:
    diary = Diary(str(tmp_path))
    stopping = EarlyStopping(patience=3, restore_best_weights=True)
    folder, mark = Path(new_run(str(tmp_path / "models"))), tmp_path / "mark"
    callbacks = (diary, stopping, LearningRateMonitor(), Cut(step, str(mark), kept=step // 4 * 4))
    if step:
        mark.touch()
        with pytest.raises(WorkerFailed, match="the callback Cut failed in after_train_iter: RuntimeError: the power"):
            train(folder, cuts, *callbacks)
        kept = load_state(path_of(str(folder)), "linear")
        assert kept.steps == step // 4 * 4
        history, state = train(folder, cuts, *callbacks, state=kept)
    else:
        history, state = train(folder, cuts, *callbacks)
    losses, best, weight = plain_loop(diary.steps(), patience=3)
    assert best == len(losses) - 3 and best > 3  # it stopped early, and not with the weights of the last epoch
    assert [line["val_loss"] for line in history.epochs] == pytest.approx(losses, rel=1e-9)
    assert [line["lr"] for line in history.epochs] == [RATE] * len(losses)
    assert state.payload["models"][0]["weight"] == pytest.approx(weight, rel=1e-9)
    last = load_state(path_of(str(folder)), "linear")  # which a resumed fit ends with
    assert np.array_equal(last.payload["models"][0]["weight"], state.payload["models"][0]["weight"])


def test_a_worker_that_is_lost_costs_no_callback_its_state(tmp_path: Path) -> None:
    options = {"epochs": EPOCHS, "batch_size": BATCH, "validation_data": (X, Y)}
    stopping = EarlyStopping(patience=3, restore_best_weights=True)
    whole, mark = estimator(), tmp_path / "mark"
    lines = whole.fit((X, Y), callbacks=[stopping], **options)
    mark.touch()
    est = estimator(model_dir=str(tmp_path / "models"))
    cut = Cut(len(lines) * STEPS - 8, str(mark), kill=True)
    assert est.fit((X, Y), callbacks=[stopping, cut], max_failures=1, **options) == lines and not mark.exists()
    assert np.array_equal(est.get_model(), whole.get_model())


def test_what_begins_an_epoch_is_not_done_twice_to_the_weights(tmp_path: Path) -> None:
    class Halves(Callback):
        def before_run(self, runner: Any) -> None:
            runner.model.weight = np.ones(4)

        def before_train_epoch(self, runner: Any) -> None:
            runner.model.weight, runner.model.velocity = runner.model.weight / 2, runner.model.velocity / 2

    whole, mark = estimator(), tmp_path / "mark"
    whole.fit((X, Y), epochs=3, batch_size=BATCH, callbacks=[Halves()])
    mark.touch()
    est = estimator(model_dir=str(tmp_path / "models"))
    options = {"max_failures": 1, "checkpoint_trigger": SeveralIteration(4)}
    est.fit((X, Y), epochs=3, batch_size=BATCH, callbacks=[Halves(), Cut(10, str(mark), kill=True)], **options)
    assert not mark.exists() and np.array_equal(est.get_model(), whole.get_model())


def test_one_rank_alone_stops_all_after_a_step() -> None:
    class Enough(Callback):
        def after_train_iter(self, runner: Any) -> None:
            runner.stop = runner.rank == 1 and runner.global_step == STEPS + 2

    lines = estimator().fit((X, Y), epochs=5, batch_size=BATCH, callbacks=[Enough()])
    assert [line["batch_count"] for line in lines] == [STEPS, 2]


def test_a_fit_that_goes_on_after_a_stop_in_an_epoch_trains_the_next_ones_to_their_end(tmp_path: Path) -> None:
    class Short(Callback):
        def after_train_iter(self, runner: Any) -> None:
            runner.stop = runner.epochs == 1 and runner.batch_idx == 1

        def after_train_epoch(self, runner: Any) -> None:
            runner.stop = False

    est = estimator(1, model_dir=str(tmp_path))
    options = {"callbacks": [Short()], "checkpoint_trigger": SeveralIteration(4)}
    lines = est.fit((X, Y), epochs=3, batch_size=BATCH, **options)
    assert [line["batch_count"] for line in lines] == [2, STEPS, STEPS]


def test_steps_are_counted_over_an_interruption(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    callbacks = [MaxstepsCallback(8), Cut(7, str(mark), kept=6)]
    options = {"checkpoint_trigger": SeveralIteration(3), "resume": True, "callbacks": callbacks}
    with pytest.raises(WorkerFailed, match="the power is gone"):
        estimator(model_dir=str(tmp_path)).fit((X, Y), epochs=5, batch_size=BATCH, **options)
    lines = estimator(model_dir=str(tmp_path)).fit((X, Y), epochs=5, batch_size=BATCH, **options)
    assert [line["batch_count"] for line in lines] == [6, 2]


def test_files_are_loaded_again_and_the_newest_is_known(tmp_path: Path) -> None:
    est = estimator()
    est.fit((X, Y), epochs=2, batch_size=BATCH, callbacks=[ModelCheckpoint(f"{tmp_path}/sum-{{epoch}}")])
    assert sorted(os.listdir(tmp_path)) == ["last.ckpt", "sum-epoch=1.ckpt", "sum-epoch=2.ckpt"]
    first = estimator().load(f"{tmp_path}/sum-epoch=1.ckpt")
    more = first.fit((X, Y), epochs=1, batch_size=BATCH)
    assert more[0]["epoch"] == 2 and np.array_equal(first.get_model(), est.get_model())
    last = Estimator.latest_checkpoint(str(tmp_path))
    assert last == f"{tmp_path}/last.ckpt" and np.array_equal(estimator().load(last).get_model(), est.get_model())
    est.fit((X, Y), epochs=2, batch_size=BATCH, callbacks=[ModelCheckpoint(f"{tmp_path}/sum-epoch=2", interval=1)])
    assert len(os.listdir(tmp_path)) == 3  # which were replaced
    for name in ("sum-epoch=2", "last"):
        again = estimator().load(f"{tmp_path}/{name}.ckpt")
        assert np.array_equal(again.get_model(), est.get_model()) and again.get_state_dict()["epoch"] == 4


def test_numbers_become_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoardCallback(tmp_path / "app" / "train", "batch")
    callbacks = [board, TqdmCallback()]
    lines = estimator().fit((X, Y), epochs=2, batch_size=BATCH, callbacks=callbacks, validation_data=(X, Y))
    curves = Summaries(tmp_path, "app")
    for tag in ("batch_loss", "lr"):
        assert [step for step, _, _ in curves.read("train", tag) or ()] == [*range(1, 2 * STEPS + 1)]
    assert [value for _, value, _ in curves.read("train", "lr") or ()] == pytest.approx([RATE] * 2 * STEPS)
    points = [(step, value) for step, value, _ in curves.read("train", "val_loss") or ()]
    assert points == [(STEPS * line["epoch"], pytest.approx(line["val_loss"], rel=1e-6)) for line in lines]


def test_hooks_are_called_in_the_order_of_every_model(tmp_path: Path) -> None:
    class Order(Callback):
        def __init__(self, file: str) -> None:
            self.file = file

        def __getattribute__(self, name: str) -> Any:
            if name.startswith(("before_", "after_", "on_", "release")):
                with open(object.__getattribute__(self, "file"), "a") as file:
                    file.write(json.dumps(name) + "\n")
            return object.__getattribute__(self, name)

    est, file = estimator(1), tmp_path / "fit"
    est.fit((X, Y), batch_size=27, callbacks=[Order(str(file))], validation_data=(X, Y))
    generations = {"before_epoch", "after_epoch", "before_iter", "after_iter"}  # called by the others
    names = [name for name in map(json.loads, file.read_text().split()) if name not in generations]
    step = ["before_train_iter", "on_batch_begin", "after_train_iter", "on_batch_end"]
    validation = ["before_val_epoch", *["before_val_iter", "after_val_iter"] * 2, "after_val_epoch"]
    assert names == [
        *("before_run", "on_train_begin", "before_train_epoch", "on_epoch_begin", *step, *step, *validation),
        *("after_train_epoch", "on_epoch_end", "after_train", "after_run", "on_train_end", "release"),
    ]
    file = tmp_path / "evaluation"
    est.evaluate((X, Y), batch_size=27, callbacks=[Order(str(file))])
    names = [name for name in map(json.loads, file.read_text().split()) if name not in generations]
    assert names == ["before_run", *validation, "after_run", "release"]


def test_a_learner_that_tells_no_rate_is_told() -> None:
    class Silent(LinearLearner):
        def learning_rates(self) -> list[float]:
            return []

    est = Estimator.from_learner(Silent(3), backend="local")
    with pytest.raises(WorkerFailed, match="failed in before_run: ArgumentError: Silent tells no learning rate. Give"):
        est.fit((X, Y), batch_size=BATCH, callbacks=[LearningRateMonitor()])


def test_a_callback_that_owns_the_step_is_for_torch_alone() -> None:
    with pytest.raises(ArgumentError, match="which models of torch alone have; got MainCallback. Leave it out"):
        estimator().fit((X, Y), callbacks=[MainCallback()])
