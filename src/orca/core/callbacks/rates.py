"""LearningRateMonitor: the learning rates in the history. Owns under which names."""

from __future__ import annotations

from typing import Any

from orca.core.callbacks.callback import Callback
from orca.errors import ArgumentError


class LearningRateMonitor(Callback):
    """A callback that adds the learning rate to each epoch: `lr`; `lr_1`, `lr_2`, ... of further parameter groups.

    Args:
        log: "epoch" (or None) adds the rate of the epoch's last step, "step" a list of the rates of all its steps.

    Raises:
        ArgumentError: It is another word.
    """

    def __init__(self, log: str | None = None) -> None:
        if log not in (None, "epoch", "step"):
            raise ArgumentError(f"log must be 'epoch' or 'step'; got {log!r}.", code="bad-log-interval")
        self.log = log
        self._epoch, self._rates = 0, list[list[float]]()

    def before_run(self, runner: Any) -> None:
        """Check that there is a rate.

        Raises:
            ArgumentError: The learner tells none.
        """
        if runner.training and not runner.learning_rates:
            raise ArgumentError(
                f"{type(runner.given_models[0]).__name__} tells no learning rate. Give it a method learning_rates() "
                "that returns a list, or leave LearningRateMonitor out.",
                code="no-learning-rates",
            )

    def before_train_epoch(self, runner: Any) -> None:
        """Start over, unless a resumed fit continues mid-epoch."""
        if runner.epochs != self._epoch:
            self._epoch, self._rates = runner.epochs, []

    def before_train_iter(self, runner: Any) -> None:
        """Read the rates this step is done with: after it, a scheduler may have set those of the next."""
        rates = runner.learning_rates
        if self.log == "step" or not self._rates:
            self._rates.append(rates)
        else:
            self._rates[-1] = rates

    def after_train_epoch(self, runner: Any) -> None:
        """Add them to the statistics."""
        steps = self._rates or [runner.learning_rates]  # an operator that has its own loop calls no hooks of steps
        for group in range(len(steps[0])):
            name = f"lr_{group}" if group else "lr"
            each = [rates[group] for rates in steps]
            runner.epoch_stats[name] = each if self.log == "step" else each[-1]

    def state_dict(self) -> dict[str, Any]:
        """Return the rates of the epoch so far."""
        return {"epoch": self._epoch, "rates": self._rates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue mid-epoch."""
        self._epoch, self._rates = state_dict["epoch"], [list(rates) for rates in state_dict["rates"]]
