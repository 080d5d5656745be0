"""UserLoop: a loop of the user's own, in their operator. Owns the calls around it, and around each of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from orca.core.learner import FitPlan
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses, report_loss
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.tensors import first_row
from orca.monitor.heartbeat import DATA, EVALUATE, FORWARD, Heartbeat

if TYPE_CHECKING:
    from orca.frameworks.torch.learner import TorchLearner

_COUNTS = ("num_samples", "batch_count", "epoch")


def conduct(learner: TorchLearner, batches: Iterable[Batch], heartbeat: Heartbeat, epoch: int, plan: FitPlan) -> Losses:
    """Let the user's operator train an epoch; its numbers are means over rows."""
    operator, loader = learner.operator, BatchLoader(learner, batches, heartbeat, epoch)
    assert operator is not None
    info = {"epoch_idx": epoch - 1, "num_steps": heartbeat.steps, "scheduler_step_freq": learner.options.step_freq}
    operator.global_step = learner.runner.global_step
    with learner.autocast():
        answer = operator.train_epoch(loader, info | plan.info)
    loader.close()
    numbers, rows = _numbers("train_epoch", answer), loader.rows_seen
    mean = numbers.pop("train_loss", math.nan)
    last = numbers.pop("last_train_loss", mean)
    if rows and not math.isfinite(mean) and plan.on_nan != "ignore" and "train_loss" in answer:
        report_loss(mean, f"in epoch {epoch}", plan.on_nan)
    own = {name.removeprefix("train_"): value for name, value in numbers.items() if not name.startswith("last_")}
    own = {name: value for name, value in own.items() if name not in _COUNTS}
    mean, last = (mean, last) if rows else (0.0, 0.0)
    logs = _mean_over_ranks(learner.world, own, rows)
    return Losses(mean * rows, rows, rows, last * loader.rows, loader.rows, loader.steps, logs, own)


def conduct_evaluation(
    learner: TorchLearner, batches: Iterable[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat
) -> Losses:
    """Let the user's operator evaluate; its numbers are means over rows."""
    operator, loader = learner.operator, BatchLoader(learner, batches, heartbeat, epoch=0)
    assert operator is not None
    learner.hooks("before_val_epoch")
    with torch.no_grad(), learner.autocast():
        answer = operator.validate(loader, {}, list(metrics))
    loader.close()
    learner.hooks("after_val_epoch")
    numbers, rows = _numbers("validate", answer), loader.rows_seen
    mean = numbers.pop("val_loss", math.nan) if rows else 0.0
    own = {
        name: value
        for name, value in numbers.items()
        if name not in ("num_samples", "val_loss") and not name.startswith("last_")
    }
    logs = _mean_over_ranks(learner.world, own, rows)
    return Losses(mean * rows, rows, rows, steps=loader.steps, logs=logs, own=own, conducted=True)


class BatchLoader:
    """A rank's batches for a loop of the user's: `rows` are the true rows of the one that was handed out last.

    Args:
        learner: The learner, which opens and closes each step of training.
        batches: The batches.
        heartbeat: Told where the loop is.
        epoch: The epoch of training; 0 for an evaluation.
    """

    def __init__(self, learner: TorchLearner, batches: Iterable[Batch], heartbeat: Heartbeat, epoch: int) -> None:
        self.rows = self.rows_seen = self.steps = 0
        self._learner, self._heartbeat, self._epoch = learner, heartbeat, epoch
        self._open: tuple[int, Batch] | None = None
        self._batches = iter(learner.steps(batches, epoch, 0)) if epoch else enumerate(batches)

    def __iter__(self) -> BatchLoader:
        return self

    def __next__(self) -> Any:
        """Close the step before, which the user has done, and hand out the next batch."""
        learner, heartbeat = self._learner, self._heartbeat
        if self.close() and learner.agree_to_stop():
            raise StopIteration
        heartbeat.at(DATA)
        step, batch = next(self._batches)
        self._open, self.rows, learner.runner.batch_idx = (step, batch), batch.rows, step
        if learner.sample is None:
            learner.sample = first_row(batch.x)
        tensors = learner.place.loaded(batch)
        if self._epoch and learner.hooked:
            learner.runner.batch = tensors
            learner.hooks("before_train_iter", step)
        if self._epoch:
            learner.open_step(batch)
        heartbeat.at(FORWARD if self._epoch else EVALUATE)
        return tensors

    def close(self) -> bool:
        """Close the step that was handed out last, also where the loop left early; say whether one of training was."""
        if self._open is None:
            return False
        (step, batch), self._open = self._open, None
        self.steps += 1
        self.rows_seen += batch.rows
        if not self._epoch:
            return False
        learner, heartbeat = self._learner, self._heartbeat
        learner.close_step(batch)
        heartbeat.step(self._epoch, step + 1, heartbeat.steps, None, heartbeat.rows + batch.step_rows)
        if learner.hooked:
            learner.hooks("after_train_iter", step)
        return True


def _numbers(name: str, answer: Any) -> dict[str, float]:
    """Return an operator's numbers as floats; anything else is left out."""
    if not isinstance(answer, dict):
        raise ArgumentError(
            f"{name} of a TrainingOperator must return a dict of numbers, such as {{'train_loss': ...}}; "
            f"got {type(answer).__name__}.",
            code="bad-operator-result",
        )
    numbers = {}
    for key, value in answer.items():
        try:
            numbers[str(key)] = float(value)
        except (TypeError, ValueError):
            continue
    return numbers


def _mean_over_ranks(world: World, numbers: dict[str, float], rows: int) -> dict[str, float]:
    ranks = world.all_gather((numbers if rows else {}, rows))
    names = {name: None for own, _ in ranks for name in own}
    sums = {name: sum(own[name] * n for own, n in ranks if name in own) for name in names}
    return {name: total / sum(n for own, n in ranks if name in own) for name, total in sums.items()}
