"""Triggers: when to validate, keep a checkpoint, end a fit. Owns the Moment that a trigger sees, and the triggers.

A trigger is asked after every step, and once more when the epoch has ended, validation included. It must answer alike
on all ranks: it looks at nothing but the Moment. Steps are counted from 1, over all fits of an Estimator.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from orca.errors import ArgumentError, KnownArguments

__all__ = [
    "And", "EveryEpoch", "MaxEpoch", "MaxIteration", "MaxScore", "MinLoss", "Moment", "Or", "SeveralIteration",
    "Trigger", "TriggerAnd", "TriggerOr", "trigger_of",
]  # fmt: skip


@dataclass(frozen=True)
class Moment:
    """The place where a run is: the same on every rank.

    Attributes:
        epoch: Epochs finished, over all fits.
        step: Steps trained, over all fits.
        epoch_ended: Whether an epoch ended just now; then loss and score are known.
        loss: The loss of the validation, or of the training where there is none; None between the ends of epochs, when
            each rank knows only its own.
        score: The first metric of the validation; None where there is none, and between the ends of epochs.
    """

    epoch: int
    step: int
    epoch_ended: bool = False
    loss: float | None = None
    score: float | None = None


def trigger_of(value: Any) -> Trigger:
    """Return the trigger that a user gave: one of ours, or a function of a Moment.

    Raises:
        ArgumentError: It is neither.

    Example:
        >>> trigger_of(lambda moment: moment.step == 7)(Moment(epoch=0, step=7))
        True
    """
    if isinstance(value, Trigger):
        return value
    if isinstance(value, type) and issubclass(value, Trigger):
        raise ArgumentError(
            f"a trigger must be an object; got the class {value.__name__}. Write {value.__name__}(...), with brackets.",
            code="trigger-is-class",
        )
    if callable(value) and not isinstance(value, type) and _takes_a_moment(value):
        return AskedTrigger(value)
    raise ArgumentError(
        f"a trigger must come from orca.triggers or be a function of one Moment; got {value!r}. "
        "Pass EveryEpoch() or SeveralIteration(100), say.",
        code="not-a-trigger",
    )


class Trigger(KnownArguments):
    """A condition that fires at some moments. Call it with a Moment."""

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        raise NotImplementedError(f"{type(self).__name__} does not say when it fires. Give it a __call__(moment).")

    def get_trigger(self) -> Trigger:
        """Return the trigger itself, as programs for the older systems ask for it."""
        return self

    @staticmethod
    def convert_trigger(trigger: Any) -> Trigger:
        """Call trigger_of, under the name that older systems gave it."""
        return trigger_of(trigger)


@dataclass(frozen=True)
class EveryEpoch(Trigger):
    """A trigger that fires when an epoch has ended."""

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return moment.epoch_ended


@dataclass(frozen=True)
class SeveralIteration(Trigger):
    """A trigger that fires after every `interval` steps, counted over all epochs and fits.

    Args:
        interval: How many steps.

    Raises:
        ArgumentError: It is no positive whole number.
    """

    interval: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "interval", _count("SeveralIteration", "interval", self.interval))

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return moment.step > 0 and moment.step % self.interval == 0


@dataclass(frozen=True, init=False)
class MaxEpoch(Trigger):
    """A trigger that fires once so many epochs are finished, over all fits.

    Args:
        max_epoch: How many epochs.
        max: The same, under its other name.

    Raises:
        ArgumentError: It is no positive whole number.
    """

    max_epoch: int

    def __init__(self, max_epoch: int | None = None, *, max: int | None = None) -> None:
        object.__setattr__(self, "max_epoch", _count("MaxEpoch", "max_epoch", max_epoch, "max", max))

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return moment.epoch >= self.max_epoch


@dataclass(frozen=True, init=False)
class MaxIteration(Trigger):
    """A trigger that fires once so many steps are trained, over all fits.

    Args:
        max_iteration: How many steps.
        max: The same, under its other name.

    Raises:
        ArgumentError: It is no positive whole number.
    """

    max_iteration: int

    def __init__(self, max_iteration: int | None = None, *, max: int | None = None) -> None:
        object.__setattr__(self, "max_iteration", _count("MaxIteration", "max_iteration", max_iteration, "max", max))

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return moment.step >= self.max_iteration


@dataclass(frozen=True, init=False)
class MaxScore(Trigger):
    """A trigger that fires when an epoch has ended and the validation's first metric is above a limit.

    The score is known only at the end of an epoch with a validation, where all ranks know the same one; at any other
    moment this does not fire.

    Args:
        max_score: The limit.
        max: The same, under its other name.

    Raises:
        ArgumentError: It is no number.
    """

    max_score: float

    def __init__(self, max_score: float | None = None, *, max: float | None = None) -> None:
        object.__setattr__(self, "max_score", _limit("MaxScore", "max_score", max_score, "max", max))

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return moment.epoch_ended and moment.score is not None and bool(moment.score > self.max_score)


@dataclass(frozen=True, init=False)
class MinLoss(Trigger):
    """A trigger that fires when an epoch has ended with a loss below a limit.

    The loss is known only at the end of an epoch, where all ranks know the same one; at any other moment this does not
    fire. It is the loss of the validation, or of the training where there is none.

    Args:
        min_loss: The limit.
        min: The same, under its other name.

    Raises:
        ArgumentError: It is no number.
    """

    min_loss: float

    def __init__(self, min_loss: float | None = None, *, min: float | None = None) -> None:
        object.__setattr__(self, "min_loss", _limit("MinLoss", "min_loss", min_loss, "min", min))

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return moment.epoch_ended and moment.loss is not None and bool(moment.loss < self.min_loss)


@dataclass(frozen=True, init=False)
class Combination(Trigger):
    """A trigger made of others."""

    triggers: tuple[Trigger, ...]

    def __init__(self, first: Any, *other: Any) -> None:
        object.__setattr__(self, "triggers", tuple(map(trigger_of, (first, *other))))


class TriggerAnd(Combination):
    """A trigger that fires when all of its triggers do.

    Where MinLoss or MaxScore is one of them, this can only be at the end of an epoch.

    Args:
        first: A trigger, or a function of a Moment.
        other: More of them.

    Example:
        >>> both = TriggerAnd(EveryEpoch(), MinLoss(0.1))
        >>> both(Moment(epoch=1, step=50, epoch_ended=True, loss=0.05)), both(Moment(epoch=1, step=51))
        (True, False)
    """

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return all(trigger(moment) for trigger in self.triggers)


class TriggerOr(Combination):
    """A trigger that fires when one of its triggers does.

    Args:
        first: A trigger, or a function of a Moment.
        other: More of them.

    Example:
        >>> either = TriggerOr(EveryEpoch(), SeveralIteration(20))
        >>> [step for step in range(1, 51) if either(Moment(epoch=0, step=step, epoch_ended=step == 50))]
        [20, 40, 50]
    """

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return any(trigger(moment) for trigger in self.triggers)


And, Or = TriggerAnd, TriggerOr


def watches_score(trigger: Any) -> bool:
    """Return whether a trigger, or a part of it, is a MaxScore."""
    return isinstance(trigger, MaxScore) or (
        isinstance(trigger, Combination) and any(map(watches_score, trigger.triggers))
    )


@dataclass(frozen=True)
class AskedTrigger(Trigger):
    """A trigger that fires when a function of the user's returns true."""

    function: Callable[[Moment], Any]

    def __call__(self, moment: Moment) -> bool:
        """Say whether it fires at this moment."""
        return bool(self.function(moment))


def _takes_a_moment(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # written in C: it does not tell
        pass
    return True


def _count(owner: str, name: str, value: Any, other: str = "", alias: Any = None) -> int:
    value = _one_of(owner, name, value, other, alias)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ArgumentError(
            f"{owner}: {name} must be a positive whole number; got {value!r}. Pass 1 or more, as in {owner}(10).",
            code="bad-trigger-count",
        )
    return int(value)


def _limit(owner: str, name: str, value: Any, other: str, alias: Any) -> float:
    value = _one_of(owner, name, value, other, alias)
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise ArgumentError(
            f"{owner}: {name} must be a number; got {value!r}. Pass one, as in {owner}(0.5).", code="bad-trigger-limit"
        )
    return float(value)


def _one_of(owner: str, name: str, value: Any, other: str, alias: Any) -> Any:
    if value is not None and alias is not None:
        raise ArgumentError(
            f"{owner}: {name} and {other} are the same; got {value!r} and {alias!r}. Pass one of them.",
            code="argument-given-twice",
        )
    return alias if value is None else value
