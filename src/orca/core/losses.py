"""Losses of an epoch on one rank. Owns what a step returns, how steps are summed, and on_nan."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from orca.core.state import Losses
from orca.errors import LossNotFinite

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepLoss:
    """A rank's loss of a step: `value * scale` is its sum, and that divided by `weight_sum` its mean.

    Attributes:
        value: A float, or a scalar on the device that has not been read yet.
        scale: Makes it a sum: rows for a mean, 1 for a sum.
        weight_sum: The divisor of that sum for the mean: rows, or the weights of the targets.
    """

    value: Any
    scale: float
    weight_sum: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a training step on one rank.

    Attributes:
        loss: The loss of this rank's rows; None if none of them counted.
        global_loss: The mean loss over the rows of all ranks, if the step's collective carried it.
        learning_rate: The learning rate of the step, if the framework reports one.
    """

    loss: StepLoss | None
    global_loss: float | None = None
    learning_rate: float | None = None


class LossAccumulator:
    """The losses of an epoch on one rank.

    Args:
        epoch: The number of the epoch, for messages.
        on_nan: "raise", "warn" or "ignore" if a loss is not finite; it warns once an epoch.
    """

    def __init__(self, epoch: int, on_nan: str) -> None:
        self.epoch, self.on_nan = epoch, on_nan
        self.losses = Losses()
        self._has_warned = False

    def add(self, step: int, result: StepResult, rows: int) -> float | None:
        """Add the result of a step; return the newest loss known, for the progress report."""
        loss = result.loss
        total, weight_sum = (0.0, 0.0) if loss is None else (loss.value * loss.scale, loss.weight_sum)
        self.losses.add(total, weight_sum, rows)
        self._add_rate(result)
        if result.global_loss is not None:
            self._check_finite(result.global_loss, step)
        return result.global_loss

    def totals(self) -> Losses:
        """Return the sums of the steps so far; more may follow."""
        return self.losses

    def result(self) -> Losses:
        """Return the losses of the epoch; all ranks call it together."""
        return self.totals()

    def _add_rate(self, result: StepResult) -> None:
        if result.learning_rate is not None:
            self.losses.rates.append(result.learning_rate)

    def _check_finite(self, loss: float, step: int) -> None:
        if not math.isfinite(loss) and not self._has_warned:
            report_loss(loss, f"at step {step + 1} of epoch {self.epoch}", self.on_nan)
            self._has_warned = True


def without_steps(losses: Losses) -> Losses:
    """Return the sums of an epoch without the records of its steps."""
    return replace(losses, trace=[], rates=[])


def report_loss(loss: float, where: str, on_nan: str) -> None:
    """Raise, or warn, that a loss is not finite.

    Raises:
        LossNotFinite: `on_nan` is "raise".
    """
    text = (
        f"the loss became {loss} {where}. Lower the learning rate, look at the data for NaN or infinite values, "
        "or clip gradients. A fit that takes on_nan= goes on with on_nan='warn'."
    )
    if on_nan == "raise":
        raise LossNotFinite(text)
    if on_nan == "warn":
        logger.warning(text)
