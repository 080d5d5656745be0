from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from core.callbacks.fitting import STEPS, Cut, X, Y, difference, estimator, fit, resumed, weights
from orca.callbacks import Callback
from orca.errors import ArgumentError, CallbackFailed, OrcaError, WorkerFailed
from orca.triggers import EveryEpoch

HOOKS = [name for name in dir(Callback) if name.startswith(("before_", "after_", "on_"))]


class Diary(Callback):
    """Write down each hook that is called, in a file for each rank."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rank = str(folder), 0

    def note(self, *words: Any) -> None:
        with open(f"{self.folder}/{self.rank}", "a") as file:
            file.write(json.dumps(words) + "\n")


def _noted(name: str) -> Any:
    def hook(self: Diary, *given: Any, **named: Any) -> None:
        if name.startswith("on_"):
            self.note(name, *given, *([sorted(named["logs"])] if named.get("logs") else []))
        else:
            self.rank = given[0].rank
            self.note(name)

    return hook


for name in HOOKS:
    setattr(Diary, name, _noted(name))


def read(folder: Path, rank: int = 0) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / str(rank)).read_text().splitlines()]


class Bad(Callback):
    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == runner.size - 1:
            raise KeyError("what is this")


def test_hooks_of_a_fit_are_called_in_order_in_both_generations(tmp_path: Path) -> None:
    fit(estimator(), Diary(tmp_path), valid=True)
    ranks = read(tmp_path)
    names = [line[0] for line in ranks]
    step = ["before_train_iter", "on_batch_begin", "after_train_iter", "on_batch_end"]
    begin = ["before_run", "on_train_begin", "before_train_epoch", "on_epoch_begin"]
    validation = ["before_val_epoch", *["before_val_iter", "after_val_iter"] * STEPS, "after_val_epoch"]
    end = ["after_train_epoch", "on_epoch_end", "after_train", "after_run", "on_train_end"]
    assert names == [*begin, *step * STEPS, *validation, *end]
    assert [line[1] for line in ranks if line[0] == "on_batch_end"] == list(range(STEPS))
    assert ["on_epoch_begin", 1] in ranks
    (ended,) = [line for line in ranks if line[0] == "on_epoch_end"]
    assert ended[1] == 1 and {"train_loss", "val_loss"} <= set(ended[2])


def test_hooks_without_a_kind_of_their_own_serve_all_kinds(tmp_path: Path) -> None:
    class Counts(Callback):
        def __init__(self, file: Path) -> None:
            self.file = str(file)

        def after_iter(self, runner: Any) -> None:
            with open(self.file, "a") as file:
                file.write("x")

    file = tmp_path / "iterations"
    fit(estimator(), Counts(file), valid=True)
    assert file.read_text() == "x" * 2 * STEPS


def test_evaluation_alone_is_a_run_and_no_training(tmp_path: Path) -> None:
    stats = estimator().evaluate((X, Y), batch_size=6, callbacks=[Diary(tmp_path)])
    assert stats["num_samples"] == len(X)
    names = [line[0] for line in read(tmp_path)]
    each = ["before_val_iter", "after_val_iter"] * STEPS
    assert names == ["before_run", "before_val_epoch", *each, "after_val_epoch", "after_run"]


def test_callbacks_of_both_generations_share_a_fit_on_two_ranks_and_the_pocket(tmp_path: Path) -> None:
    class Older:
        """A callback by its hooks alone."""

        def __init__(self, folder: str) -> None:
            self.folder = folder

        def set_model(self, model: Any) -> None:
            self.parameters = sum(p.numel() for p in model.parameters())

        def set_param(self, param: dict[str, Any]) -> None:
            self.param = param

        def set_trainer(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            facts = [epoch, logs["train_loss"], logs["val_loss"], self.parameters, self.param, self.trainer.get("seen")]
            Path(self.folder, f"older-{self.trainer.rank}-{epoch}").write_text(json.dumps(facts))

    class Newer(Callback):
        def after_train_iter(self, runner: Any) -> None:
            runner.put("seen", (runner.get("seen") or 0) + 1)

        def after_train_epoch(self, runner: Any) -> None:
            assert runner.metrics_stats["val_loss"] == runner.epoch_stats["val_loss"]
            assert (runner.epochs, runner.num_steps, runner.size) == (runner.get("seen") // STEPS, STEPS, 2)
            assert runner.global_step == runner.get("seen")
            runner.put("gone", 1)
            runner.update("gone", 2)
            assert runner.get("gone") == 2
            runner.remove("gone")
            assert runner.get("gone") is None

    est = estimator(2, config={"lr": 0.01})
    stats = fit(est, Newer(), Older(str(tmp_path)), epochs=2, valid=True)
    for rank in range(2):
        for line in stats:
            epoch, train, val, parameters, param, seen = json.loads(
                (tmp_path / f"older-{rank}-{line['epoch']}").read_text()
            )
            assert (train, val) == (line["train_loss"], line["val_loss"])
            assert (parameters, seen) == (21, STEPS * epoch)
            assert param == {"epochs": 2, "steps": STEPS, "config": {"lr": 0.01}}


def test_callback_that_raises_is_named_with_its_hook() -> None:
    with pytest.raises(CallbackFailed, match="callback Bad failed in after_train_iter: KeyError: 'what is this'"):
        fit(estimator(), Bad())


def test_callback_that_raises_on_a_worker_is_named_on_the_driver() -> None:
    with pytest.raises(WorkerFailed) as caught:
        fit(estimator(2), Bad())
    assert caught.value.rank == 1
    assert "the callback Bad failed in after_train_iter: KeyError: 'what is this'" in caught.value.reason


def test_what_a_callback_holds_is_released_after_a_failure(tmp_path: Path) -> None:
    class Holder(Callback):
        def __init__(self, file: Path) -> None:
            self.file = str(file)

        def release(self) -> None:
            Path(self.file).write_text("released")
            raise OSError("is logged")

    with pytest.raises(CallbackFailed, match="callback Bad"):
        fit(estimator(), Holder(tmp_path / "file"), Bad())
    assert (tmp_path / "file").read_text() == "released"


class Fails(Callback):
    def after_run(self, runner: Any) -> None:
        raise OSError("no network")


def test_work_is_kept_where_a_callback_fails_after_the_last_epoch(tmp_path: Path) -> None:
    given: dict[str, Any] = {"epochs": 2, "checkpoint_trigger": EveryEpoch(), "resume": True}
    with pytest.raises(CallbackFailed, match="no network"):
        fit(estimator(model_dir=str(tmp_path)), Fails(), **given)
    est, whole = estimator(model_dir=str(tmp_path)), estimator()
    assert fit(est, Cut(STEPS + 1), **given) == fit(whole, epochs=2)  # nothing is trained again
    assert difference(weights(est), weights(whole)) == 0


def test_a_folder_that_cannot_keep_checkpoints_is_told_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    est = estimator(model_dir=str(tmp_path / "file"))
    with pytest.raises(OrcaError, match=r"checkpoints cannot be written to .*/file/run-000001-\w+: NotADirectoryError"):
        fit(est, Bad(), checkpoint_trigger=EveryEpoch())


@pytest.mark.parametrize("wrong", [Callback, "EarlyStopping", 3])
def test_what_is_no_callback_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="callbacks must be instances of Callback; got"):
        fit(estimator(), wrong)


def test_one_rank_alone_stops_all() -> None:
    class Enough(Callback):
        def after_train_iter(self, runner: Any) -> None:
            runner.stop = runner.rank == 1 and runner.global_step == STEPS + 2

    stats = fit(estimator(2), Enough(), epochs=5)
    assert [line["batch_count"] for line in stats] == [STEPS, 2]


class Tally(Callback):
    """Note each step, in place, and put the notes into the statistics."""

    def __init__(self, times: int) -> None:
        self.times, self.steps, self.total = times, list[int](), torch.zeros(1)

    def after_train_iter(self, runner: Any) -> None:
        self.steps.append(self.times * runner.global_step)
        self.total += self.times

    def after_train_epoch(self, runner: Any) -> None:
        runner.epoch_stats[f"steps_{self.times}"] = list(self.steps)
        runner.epoch_stats[f"total_{self.times}"] = float(self.total)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.total = state_dict["steps"], state_dict["total"]


@pytest.mark.parametrize("step", [2, 5, 8])
def test_resumed_fit_gives_each_callback_its_state_back(tmp_path: Path, step: int) -> None:
    _, stats = resumed(tmp_path, step, Tally(1), Tally(10), epochs=2)
    assert [line["steps_1"] for line in stats] == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert stats[1]["steps_10"] == [10 * number for number in range(1, 9)]
    assert (stats[1]["total_1"], stats[1]["total_10"]) == (8, 80)


class Prepares(Callback):
    """Change weights, rates and what is trained when a fit begins, and when an epoch does."""

    def before_run(self, runner: Any) -> None:
        first, *_ = runner.given_models[0]
        with torch.no_grad():
            first.weight.fill_(0.1)
        first.bias.requires_grad_(False)

    def before_train_epoch(self, runner: Any) -> None:
        first, *_ = runner.given_models[0]
        first.bias.requires_grad_(first.bias.requires_grad or runner.epochs == 2)
        for group in runner.optimizer.param_groups:
            group["lr"] *= 0.5


@pytest.mark.parametrize("step", [2, 4, 5, 9, 11])  # before any checkpoint, after steps 3, 3, 6 and 9 of 12
def test_what_begins_a_fit_or_an_epoch_is_not_done_twice_in_a_resumed_fit(tmp_path: Path, step: int) -> None:
    whole = estimator()
    stats = fit(whole, Prepares(), epochs=3)
    est, again = resumed(tmp_path, step, Prepares(), epochs=3)
    assert difference(weights(est), weights(whole)) == 0
    assert [line["train_loss"] for line in again] == [line["train_loss"] for line in stats]


def test_a_group_that_a_callback_added_is_told_when_the_fit_is_resumed(tmp_path: Path) -> None:
    class Adds(Callback):
        def before_run(self, runner: Any) -> None:
            runner.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})

    with pytest.raises(ArgumentError, match="has 2 parameter groups of Adam, and its creator makes 1. Make all groups"):
        resumed(tmp_path, 5, Adds(), epochs=2)


@pytest.mark.parametrize("options", [{}, {"shard_model": True}])
def test_new_fit_begins_with_callbacks_as_they_are(tmp_path: Path, options: dict[str, Any]) -> None:
    est = estimator(model_dir=str(tmp_path), **options)
    for _ in range(2):
        (line,) = fit(est, Tally(1), checkpoint_trigger=EveryEpoch())
        assert line["total_1"] == STEPS
    est.load_orca_checkpoint(str(tmp_path))
    assert "callbacks" not in est.get_state_dict()
    assert fit(est, Tally(1))[0]["total_1"] == STEPS


def halved(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@pytest.mark.parametrize(("before", "after"), [(None, halved), (halved, None)])
def test_a_fit_with_callbacks_is_resumed_with_another_schedule(tmp_path: Path, before: Any, after: Any) -> None:
    first = estimator(model_dir=str(tmp_path), scheduler_creator=before)
    fit(first, Callback(), checkpoint_trigger=EveryEpoch())
    second = estimator(model_dir=str(tmp_path), scheduler_creator=after)
    assert len(fit(second, Callback(), epochs=2, resume=True)) == 2
