"""EarlyStopping: the end of a fit that gets no better. Owns when that is, and which weights it ends with."""

from __future__ import annotations

import logging
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.numbers import Watch
from orca.core.units import natural

logger = logging.getLogger(__name__)


class EarlyStopping(Callback):
    """A callback that stops a fit when a number of its epochs no longer gets better.

    The number is one over all ranks, so all of them stop after the same epoch. A resumed fit remembers the best epoch.

    Args:
        monitor: The number's name in the statistics: val_loss, train_loss, val_accuracy, ...
        patience: Epochs in a row without a better number after which to stop; 0 stops at the first, as 1 does. Epochs
            that are not validated, where others are, do not count for a number of the validation.
        min_delta: By how much the number must be better to count.
        mode: "min" or "max", or "auto": names such as val_accuracy are better when high.
        restore_best_weights: Whether to end with the weights of the best epoch. The optimizer's state stays that of
            the last one.

    Raises:
        ArgumentError: An argument is wrong.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best_weights: bool = False,
    ) -> None:
        self.monitor, self.patience, self.min_delta, self.mode = monitor, natural("patience", patience), min_delta, mode
        self.restore_best_weights = restore_best_weights
        self._watch = self._new_watch()
        self._stale_epochs = 0
        self._best: Any = None
        self._best_epoch = 0

    def before_run(self, runner: Any) -> None:
        """Start over."""
        self._watch, self._stale_epochs, self._best, self._best_epoch = self._new_watch(), 0, None, 0

    def after_train_epoch(self, runner: Any) -> None:
        """Look at the number, and stop when it has not been better for long enough."""
        if not self._watch.counts(runner):
            return
        if self._watch.improves(runner.epoch_stats):
            self._stale_epochs, self._best_epoch = 0, runner.epochs
            if self.restore_best_weights:
                self._best = runner.copy_weights()
            return
        self._stale_epochs += 1
        if self._stale_epochs >= self.patience:
            runner.stop = True
            if runner.rank == 0:
                logger.info(
                    "EarlyStopping: %s was best in epoch %d; stopping after epoch %d.",
                    *(self.monitor, self._best_epoch, runner.epochs),
                )

    def after_train(self, runner: Any) -> None:
        """Put the best weights back, where a later epoch changed them."""
        if self._best is not None and self._best_epoch != runner.epochs:
            runner.put_back_weights(self._best)

    def release(self) -> None:
        """Let go of the weights; a fit that is resumed for more epochs has them from the last checkpoint."""
        self._best = None

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its epoch and weights, and the epochs since."""
        weights = None if self._best is None else self.trainer.gather_weights(self._best)
        epochs = {"best_epoch": self._best_epoch, "waited": self._stale_epochs}
        return {"best": self._watch.best, **epochs, "weights": weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the best epoch so far."""
        self._watch.best, self._best = state_dict["best"], state_dict["weights"]
        self._best_epoch, self._stale_epochs = state_dict["best_epoch"], state_dict["waited"]

    @property
    def watch(self) -> Watch:
        """The number that decides."""
        return self._watch

    def _new_watch(self) -> Watch:
        return Watch("EarlyStopping", self.monitor, self.mode, self.min_delta)
