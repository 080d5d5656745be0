"""TqdmCallback: a progress bar of rank 0's own."""

from __future__ import annotations

import time
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.numbers import mean_of

_BETWEEN = 0.2  # seconds between two looks at the loss, which waits for a GPU


class TqdmCallback(Callback):
    """A callback that shows a bar an epoch, for training, validation and predictions, on rank 0.

    Its lines come to the driver with all that workers print. The bar of the driver (use_tqdm of the Estimator) shows
    the loss and the rows of all ranks instead.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._last_look = 0.0

    def before_train_epoch(self, runner: Any) -> None:
        """Begin a bar for the epoch."""
        self._begin(runner, f"epoch {runner.epochs}", runner.num_steps)

    def after_train_iter(self, runner: Any) -> None:
        """Move the bar; after a validation mid-epoch, one of the rest."""
        if self._bar is None:
            self._begin(runner, f"epoch {runner.epochs}", runner.num_steps, runner.batch_idx)
        self._move(runner, runner.loss)

    def after_train_epoch(self, runner: Any) -> None:
        """End the bar."""
        self.release()

    def before_val_epoch(self, runner: Any) -> None:
        """Begin a bar for the validation."""
        self._begin(runner, "validation", None)

    def after_val_iter(self, runner: Any) -> None:
        """Move the bar."""
        self._move(runner, runner.loss)

    def after_val_epoch(self, runner: Any) -> None:
        """End the bar."""
        self.release()

    def after_pred_iter(self, runner: Any) -> None:
        """Move the bar of the predictions, which begins with their first batch."""
        if self._bar is None:
            self._begin(runner, "prediction", None)
        self._move(runner, None)

    def release(self) -> None:
        """End the bar."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _begin(self, runner: Any, title: str, steps: int | None, first: int = 0) -> None:
        self.release()
        if runner.rank == 0:
            from tqdm import tqdm

            self._bar = tqdm(total=steps, desc=title, unit="step", leave=True, initial=first)

    def _move(self, runner: Any, loss: Any) -> None:
        if self._bar is None:
            return
        now = time.monotonic()
        if loss is not None and now - self._last_look > _BETWEEN:
            self._last_look = now
            self._bar.set_postfix({"loss": f"{mean_of(loss):.4f}"}, refresh=False)
        self._bar.update()
