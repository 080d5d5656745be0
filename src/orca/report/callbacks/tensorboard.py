"""TensorBoardCallback: the numbers of a fit as curves of TensorBoard. Owns tags, steps and when they are written."""

from __future__ import annotations

import logging
import os
import socket
import time
from importlib.util import find_spec
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.numbers import mean_of, numbers_in
from orca.errors import ArgumentError, MissingDependency
from orca.report.tensorboard import EventFiles
from orca.storage.files import absolute

_KNOWN = {"comment", "purge_step", "max_queue", "flush_secs", "filename_suffix"}
logger = logging.getLogger(__name__)


class TensorBoardCallback(Callback):
    """A callback that writes losses, metrics and the learning rate for TensorBoard, on rank 0.

    After each epoch every number of its statistics goes under its own name (train_loss, val_loss, val_accuracy, ...),
    and the learning rate, where the learner tells one, under `lr`. With freq="batch" or a number there is also
    `batch_loss`: for a torch model, that of rank 0's rows.

    Args:
        log_dir: A folder at any fsspec path; `runs/<time>_<host>` of the driver unless given. On this machine's disk
            numbers appear during training, elsewhere after each epoch.
        freq: "epoch" writes after each epoch, at the epoch's number. "batch", or n for every n-th step, writes after
            steps too; all is then at the number of the training step.
        kwargs: Accepted, as torch's SummaryWriter has them: comment (ends the default folder's name), filename_suffix,
            purge_step; max_queue and flush_secs have no meaning here.

    Raises:
        ArgumentError: An argument is wrong.
        MissingDependency: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, freq: str | int = "epoch", **kwargs: Any) -> None:
        counts = isinstance(freq, int) and not isinstance(freq, bool) and freq > 0
        if freq not in ("epoch", "batch") and not counts:
            raise ArgumentError(
                f"freq must be 'epoch', 'batch' or a positive number of steps; got {freq!r}.", code="bad-log-interval"
            )
        if unknown := sorted(set(kwargs) - _KNOWN):
            raise ArgumentError(
                f"TensorBoardCallback does not know {', '.join(unknown)}. It takes log_dir, freq, "
                f"{', '.join(sorted(_KNOWN))}.",
                code="unknown-option",
            )
        if find_spec("tensorboard") is None:
            raise MissingDependency.of("tensorboard", "tensorboard", "TensorBoardCallback")
        default = f"runs/{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{kwargs.get('comment', '')}"
        self.log_dir, self.freq, self.options = absolute("log_dir", log_dir or default), freq, kwargs
        self._events: EventFiles | None = None
        self._rate: dict[str, float] = {}

    def before_run(self, runner: Any) -> None:
        """Begin the file."""
        if runner.training and runner.rank == 0:
            first = runner.global_step + 1 if self._steps else None
            first = self.options.get("purge_step", first)
            self._events = EventFiles(self.log_dir, first, self.options.get("filename_suffix", ""))
            logger.info("TensorBoardCallback writes to %s", self.log_dir)

    def before_train_iter(self, runner: Any) -> None:
        """Read the rate this step is done with."""
        if self._events is not None:
            self._rate = _rate_of(runner)

    def after_train_iter(self, runner: Any) -> None:
        """Write the loss of the batch and the learning rate, when it is time."""
        if self._events is not None and self._steps and self.every_n_iter(runner, self._steps):
            loss = {} if runner.loss is None else {"batch_loss": mean_of(runner.loss)}
            self._events.add(runner.global_step, loss | self._rate)

    def after_train_epoch(self, runner: Any) -> None:
        """Write the numbers of the epoch."""
        if self._events is None:
            return
        rate = self._rate or _rate_of(runner)  # an operator that reads its own data calls no hooks of steps
        numbers = rate | numbers_in(runner.epoch_stats)
        if self._steps:
            numbers.pop("lr", None)  # it is there, step by step
        self._events.add(runner.global_step if self._steps else runner.epochs, numbers)
        self._events.flush()

    def after_run(self, runner: Any) -> None:
        """End the file."""
        self.release()

    def release(self) -> None:
        """Close the file."""
        events, self._events = self._events, None
        if events is not None:
            events.close()

    @property
    def _steps(self) -> int:
        """Return every how many steps to write, 0 for none."""
        return 0 if self.freq == "epoch" else 1 if self.freq == "batch" else int(self.freq)


def _rate_of(runner: Any) -> dict[str, float]:
    rates = runner.learning_rates
    return {"lr": rates[0]} if rates else {}
