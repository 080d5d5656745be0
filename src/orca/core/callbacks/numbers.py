"""Numbers: an epoch's statistics as callbacks read them. Owns which of them matter, and which value is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

from orca.errors import ArgumentError, near

MODES = ("auto", "min", "max")
_COUNTS = {"epoch", "num_samples", "batch_count", "val_num_samples"}
_BETTER_WHEN_HIGH = ("acc", "auc", "f1", "precision", "recall", "score", "r2")


def numbers_in(stats: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an epoch that are worth a curve: losses, metrics, rates; no counts."""
    numbers = {}
    for name, value in stats.items():
        single = getattr(value, "ndim", 0) == 0 and hasattr(value, "item")  # of numpy or torch
        if name not in _COUNTS and not isinstance(value, bool) and (single or isinstance(value, Real)):
            numbers[name] = float(value)
    return numbers


def names_of_epoch(metrics: Iterable[str], validates: bool) -> set[str]:
    """Return the names of an epoch's numbers, given those of the metrics, before callbacks add theirs."""
    validation = ["loss", *metrics] if validates else []
    return {"train_loss", "last_train_loss", *(f"val_{name.lower()}" for name in validation)}


def check_monitors(callbacks: Sequence[Any], names: set[str]) -> None:
    """Check that epochs will have the numbers that callbacks watch.

    Args:
        callbacks: Those of a fit, in the order they are called: the user's own may add numbers for those behind them.
        names: The names of an epoch's numbers, before callbacks add theirs.

    Raises:
        ArgumentError: They will not.
    """
    has_rates = False
    for callback in callbacks:
        if not type(callback).__module__.startswith("orca."):
            return
        has_rates = has_rates or type(callback).__name__ == "LearningRateMonitor"
        watch = getattr(callback, "watch", None)
        if watch is None or watch.monitor in names or (has_rates and watch.monitor.partition("_")[0] == "lr"):
            continue
        raise missing_number(watch.whose, watch.monitor, "an epoch of this fit will give", names)


def missing_number(whose: str, monitor: str, words: str, names: Iterable[str]) -> ArgumentError:
    """Return the error that a callback watches one number, and an epoch has those of other names."""
    there = sorted(names)
    unvalidated = monitor.startswith("val_") and not any(name.startswith("val_") for name in there)
    remedy = "Pass validation_data to fit, or another monitor." if unvalidated else "Pass one of them as monitor."
    return ArgumentError(
        f"{whose} watches {monitor!r}, but {words} {', '.join(there)}."
        f"{'' if unvalidated else near(monitor, there)} {remedy}",
        code="unknown-monitor",
    )


def mean_of(loss: Any) -> float:
    """Return the loss of a batch as a number, also where a loss of torch has one for each row."""
    return float(loss.detach().mean() if hasattr(loss, "detach") else loss)


class Watch:
    """A number of the epochs, and whether it got better.

    Args:
        whose: The watcher's name, for messages.
        monitor: The number's name: val_loss, train_loss, val_accuracy, ...
        mode: "min", "max", or "auto", which takes names such as val_accuracy for better when high.
        min_delta: By how much it must be better to count.

    Raises:
        ArgumentError: One of them is wrong.
    """

    def __init__(self, whose: str, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in MODES:
            raise ArgumentError(
                f"mode of {whose} must be 'auto', 'min' or 'max'; got {mode!r}.", code="bad-monitor-mode"
            )
        if isinstance(min_delta, bool) or not isinstance(min_delta, int | float) or not 0 <= min_delta < math.inf:
            raise ArgumentError(
                f"min_delta of {whose} must be a number, 0 or more; got {min_delta!r}.", code="bad-min-delta"
            )
        self.whose, self.monitor, self.min_delta = whose, monitor, float(min_delta)
        high = any(word in monitor.lower() for word in _BETTER_WHEN_HIGH)
        self.sign = -1.0 if mode == "max" or (mode == "auto" and high) else 1.0
        self.best = math.inf

    def counts(self, runner: Any) -> bool:
        """Say whether this epoch counts: one that is not validated, where others are, has no number of that kind."""
        return not (self.monitor.startswith("val_") and runner.skips_validations and not runner.metrics_stats)

    def improves(self, stats: dict[str, Any]) -> bool:
        """Say whether this epoch is the best so far; a number that is not finite never is.

        Raises:
            ArgumentError: The epoch has no such number.
        """
        numbers = numbers_in(stats)
        if self.monitor not in numbers:
            raise missing_number(self.whose, self.monitor, "the epoch gave", numbers)
        value = self.sign * numbers[self.monitor]
        better = value < self.best - (self.min_delta if math.isfinite(self.best) else 0.0)
        if better:
            self.best = value
        return better
