"""Schedule: what is due after a step or an epoch. Owns when the triggers of a fit are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orca.core.metrics import Metric
from orca.core.triggers import Moment, Trigger


@dataclass(frozen=True)
class Due:
    """What has to happen after a step or an epoch; `|` joins two."""

    validate: bool = False
    checkpoint: bool = False
    stop: bool = False

    def __or__(self, other: Due) -> Due:
        return Due(self.validate or other.validate, self.checkpoint or other.checkpoint, self.stop or other.stop)


class Schedule:
    """The triggers of a fit. Each is evaluated once for a moment, even if it serves several purposes.

    Args:
        validation: When to validate; None if only epochs decide.
        checkpoint: When to save a checkpoint; None for never.
        end: When to end the fit early; None for never.
    """

    def __init__(self, validation: Trigger | None, checkpoint: Trigger | None, end: Trigger | None) -> None:
        self.validation, self.checkpoint, self.end = validation, checkpoint, end
        self._moment: Moment | None = None
        self._answers: dict[int, bool] = {}  # of this moment, by trigger

    def due(self, moment: Moment) -> Due:
        """Return what is due after a step within an epoch."""
        return Due(self._fires(self.validation, moment), *self._checkpoint_and_stop(moment))

    def validates_epoch(self, moment: Moment) -> bool:
        """Return whether a validation is due at the end of an epoch: the moment has no loss of it yet."""
        return self._fires(self.validation, moment)

    def due_at_epoch_end(self, moment: Moment) -> Due:
        """Return what is due after an epoch and its validation: a checkpoint, or to stop."""
        return Due(False, *self._checkpoint_and_stop(moment))

    def _checkpoint_and_stop(self, moment: Moment) -> tuple[bool, bool]:
        return self._fires(self.checkpoint, moment), self._fires(self.end, moment)

    def _fires(self, trigger: Trigger | None, moment: Moment) -> bool:
        if trigger is None:
            return False
        if moment != self._moment:
            self._moment, self._answers = moment, {}
        if id(trigger) not in self._answers:
            self._answers[id(trigger)] = bool(trigger(moment))
        return self._answers[id(trigger)]


def epoch_ended(epoch: int, step: int, line: dict[str, Any], metrics: Sequence[Metric]) -> Moment:
    """Return the moment in which an epoch ended with these statistics, after so many steps of all fits."""
    names = [f"val_{metric.name.lower()}" for metric in metrics]
    if not names:  # a framework that has metrics of its own
        names = [name for name in line if name.startswith("val_") and name not in ("val_loss", "val_num_samples")]
    values = [line.get(name) for name in names]
    curves = tuple | list  # a list if the line was read from a checkpoint
    score = next((value for value in values if value is not None and not isinstance(value, curves)), None)
    return Moment(epoch, step, True, line.get("val_loss", line["train_loss"]), score)
