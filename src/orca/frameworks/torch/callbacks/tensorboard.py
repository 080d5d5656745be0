"""TensorBoardCallback: the numbers of a fit as event files of TensorBoard. Owns tags, steps and when they are written.

The record format is written as it is: tensorboard's own file writer would load TensorFlow where that is installed.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from orca.errors import ArgumentError, MissingDependency
from orca.frameworks.torch.callbacks.callback import Callback
from orca.frameworks.torch.callbacks.numbers import numbers_in
from orca.frameworks.torch.callbacks.places import absolute
from orca.storage.files import filesystem, is_local

_KNOWN = {"comment", "purge_step", "max_queue", "flush_secs", "filename_suffix"}
logger = logging.getLogger(__name__)


class TensorBoardCallback(Callback):
    """A callback that writes losses, metrics and the learning rate for TensorBoard, on rank 0.

    After each epoch every number of its statistics goes under its own name (train_loss, val_loss, val_accuracy, ...),
    and the learning rate under `lr`. With freq="batch" or a number there is also `batch_loss`: that of rank 0's rows.

    Args:
        log_dir: A folder at any fsspec path; `runs/<time>_<host>` of the driver unless given. On this machine's disk
            numbers appear while training goes on, elsewhere after each epoch.
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
            raise ArgumentError(f"freq must be 'epoch', 'batch' or a positive number of steps; got {freq!r}.")
        if unknown := sorted(set(kwargs) - _KNOWN):
            raise ArgumentError(
                f"TensorBoardCallback does not know {', '.join(unknown)}. It takes log_dir, freq, "
                f"{', '.join(sorted(_KNOWN))}."
            )
        if find_spec("tensorboard") is None:
            raise MissingDependency.of("tensorboard", "tensorboard", "TensorBoardCallback")
        default = f"runs/{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{kwargs.get('comment', '')}"
        self.log_dir, self.freq, self.options = absolute("log_dir", log_dir or default), freq, kwargs
        self._events: EventFiles | None = None
        self._rate: float | None = None

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
            self._rate = runner.learning_rates[0]

    def after_train_iter(self, runner: Any) -> None:
        """Write the loss of the batch and the learning rate, when it is time."""
        if self._events is not None and self._steps and self.every_n_iter(runner, self._steps):
            loss = {} if runner.loss is None else {"batch_loss": float(runner.loss.detach().mean())}
            self._events.add(runner.global_step, loss | {"lr": self._rate or 0.0})

    def after_train_epoch(self, runner: Any) -> None:
        """Write the numbers of the epoch."""
        if self._events is None:
            return
        numbers = numbers_in(runner.epoch_stats)
        numbers.setdefault("lr", runner.learning_rates[0] if self._rate is None else self._rate)
        if self._steps:
            del numbers["lr"]  # it is there, step by step
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


class EventFiles:
    """The event files of a folder: one that grows on this machine, one a flush elsewhere.

    Args:
        folder: Any fsspec path.
        first_step: Readers drop what earlier files have for this step and later ones; None drops nothing.
        suffix: The end of the files' names.
    """

    def __init__(self, folder: str, first_step: int | None, suffix: str = "") -> None:
        self.fs, self.place = filesystem(folder)
        self.first_step, self.suffix = first_step, suffix
        self.grows = is_local(self.fs)
        self._sink: Any = None
        self._path, self._number = "", 0

    def add(self, step: int, values: dict[str, float]) -> None:
        """Write the values of a step, each under its tag."""
        if self._sink is None:
            self._begin()
        summary = {"value": [{"tag": tag, "simple_value": value} for tag, value in values.items()]}
        self._write(step=step, summary=summary)
        if self.grows:
            self._sink.flush()

    def flush(self) -> None:
        """Bring what was written to the folder."""
        if self._sink is not None and not self.grows:
            self.fs.pipe_file(self._path, self._sink.getvalue())
            self._sink = None

    def close(self) -> None:
        """End."""
        self.flush()
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _begin(self) -> None:
        self.fs.makedirs(self.place, exist_ok=True)
        # TensorBoard knows event files by these words and reads them in the order of their names.
        at, maker = time.time_ns() // 1000, f"{socket.gethostname()}.{os.getpid()}.{self._number}"
        name = f"events.out.tfevents.{at // 10**6:010d}.{at % 10**6:06d}.{maker}{self.suffix}"
        self._path = f"{self.place.rstrip('/')}/{name}"
        self._sink = self.fs.open(self._path, "wb") if self.grows else BytesIO()
        self._write(file_version="brain.Event:2")
        if self.first_step is not None and not self._number:
            self._write(step=self.first_step, session_log={"status": "START"})
        self._number += 1

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(self._sink).write(Event(wall_time=time.time(), **event).SerializeToString())
