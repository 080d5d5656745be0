"""UserLoop: a loop of the user's own, in their operator. Owns the calls around it, and around each of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from orca.core.learner import FitPlan
from orca.core.losses import report_loss
from orca.core.metrics import Metric
from orca.core.source import Batch
from orca.core.state import Losses
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.operator import TrainingOperator
from orca.monitor.heartbeat import DATA, EVALUATE, FORWARD, Heartbeat

if TYPE_CHECKING:
    from orca.frameworks.torch.session import TorchSession

_COUNTS = ("num_samples", "batch_count", "epoch")


class OperatorEpoch:
    """An epoch that the user's operator trains; its numbers are means over rows.

    Args:
        session: The session, which opens and closes each step.
        operator: The operator.
        fit: The plan of the fit.
    """

    def __init__(self, session: TorchSession, operator: TrainingOperator, fit: FitPlan) -> None:
        self.session, self.operator, self.info, self.on_nan = session, operator, fit.info, fit.on_nan

    def __call__(self, batches: Iterator[Batch], heartbeat: Heartbeat, epoch: int) -> Losses:
        """Train an epoch; return this rank's losses."""
        session, operator = self.session, self.operator
        loader = BatchLoader(session, session.prepare(batches, epoch, 0), heartbeat, epoch)
        freq = session.spec.options.step_freq
        info = {"epoch_idx": epoch - 1, "num_steps": heartbeat.steps, "scheduler_step_freq": freq}
        operator._begin_epoch(session.runner.global_step)
        with session.replica.autocast():
            stats = operator.train_epoch(loader, info | self.info)
        loader.close()
        numbers, rows = _numbers("train_epoch", stats), loader.rows_seen
        mean = numbers.pop("train_loss", math.nan)
        last = numbers.pop("last_train_loss", mean)
        if rows and not math.isfinite(mean) and self.on_nan != "ignore" and "train_loss" in stats:
            report_loss(mean, f"in epoch {epoch}", self.on_nan)
        own = {name.removeprefix("train_"): value for name, value in numbers.items() if not name.startswith("last_")}
        own = {name: value for name, value in own.items() if name not in _COUNTS}
        mean, last = (mean, last) if rows else (0.0, 0.0)
        logs = _mean_over_ranks(session.world, own, rows)
        return Losses(mean * rows, rows, rows, last * loader.rows, loader.rows, loader.steps, logs, own)


class OperatorValidation:
    """An evaluation that the user's operator does; its numbers are means over rows.

    Args:
        session: The session.
        operator: The operator.
    """

    def __init__(self, session: TorchSession, operator: TrainingOperator) -> None:
        self.session, self.operator = session, operator

    def __call__(self, batches: Iterator[Batch], metrics: Sequence[Metric], heartbeat: Heartbeat) -> Losses:
        """Evaluate; return this rank's losses."""
        session = self.session
        loader = BatchLoader(session, batches, heartbeat, epoch=0)
        with torch.no_grad(), session.replica.autocast():
            stats = self.operator.validate(loader, {}, list(metrics))
        loader.close()
        numbers, rows = _numbers("validate", stats), loader.rows_seen
        mean = numbers.pop("val_loss", math.nan) if rows else 0.0
        own = {
            name: value
            for name, value in numbers.items()
            if name not in ("num_samples", "val_loss") and not name.startswith("last_")
        }
        logs = _mean_over_ranks(session.world, own, rows)
        return Losses(mean * rows, rows, rows, steps=loader.steps, logs=logs, own=own, conducted=True)


class BatchLoader:
    """A rank's batches for a loop of the user's: `rows` are the true rows of the one that was handed out last.

    Args:
        session: The session, which opens and closes each step of training.
        batches: The batches.
        heartbeat: Told where the loop is.
        epoch: The epoch of training; 0 for an evaluation.
    """

    def __init__(self, session: TorchSession, batches: Iterator[Batch], heartbeat: Heartbeat, epoch: int) -> None:
        self.rows = self.rows_seen = self.steps = 0
        self._session, self._heartbeat, self._epoch = session, heartbeat, epoch
        self._open: tuple[int, Batch] | None = None
        self._batches = enumerate(batches)

    def __iter__(self) -> BatchLoader:
        return self

    def __next__(self) -> Any:
        """Close the step before, which the user has done, and hand out the next batch."""
        session, heartbeat, runner = self._session, self._heartbeat, self._session.runner
        if self.close() and session.agree_to_stop(runner.stop):
            runner.stop_run()
            raise StopIteration
        heartbeat.at(DATA)
        step, batch = next(self._batches)
        self._open, self.rows = (step, batch), batch.rows
        session.replica.remember(batch.x)
        tensors = session.replica.place.loaded(batch)
        runner.begin_step(step)
        if self._epoch:
            if session.callbacks.watches_steps:
                session.callbacks.before_train_iter(step, tensors)
            session.open_step(batch, step)
        heartbeat.at(FORWARD if self._epoch else EVALUATE)
        return tensors

    def close(self) -> bool:
        """Close the step that was handed out last, even if the loop left early; return whether one of training was."""
        if self._open is None:
            return False
        (step, batch), self._open = self._open, None
        self.steps += 1
        self.rows_seen += batch.rows
        if not self._epoch:
            return False
        session, heartbeat = self._session, self._heartbeat
        session.close_user_step(batch)
        heartbeat.step(self._epoch, step + 1, heartbeat.steps, None, heartbeat.rows + batch.step_rows)
        session.runner.end_step()
        if session.callbacks.watches_steps:
            session.callbacks.after_train_iter(step, None)
        return True


def _numbers(name: str, stats: Any) -> dict[str, float]:
    """Return an operator's numbers as floats; anything else is left out."""
    if not isinstance(stats, dict):
        raise ArgumentError(
            f"{name} of a TrainingOperator must return a dict of numbers, such as {{'train_loss': ...}}; "
            f"got {type(stats).__name__}.",
            code="bad-operator-result",
        )
    numbers = {}
    for key, value in stats.items():
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
