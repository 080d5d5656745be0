"""ModelCheckpoint: the state of a fit in files. Owns their names, when they are written, and which is the newest.

A checkpoint is a file of torch, or a folder of any other framework's state, complete when its marker is in it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from orca.core.callbacks.callback import Callback
from orca.core.callbacks.numbers import Watch, numbers_in
from orca.core.state import State
from orca.core.units import positive
from orca.errors import ArgumentError
from orca.storage.checkpoints import CheckpointWriter
from orca.storage.files import MARKER, absolute, filesystem, remove

SUFFIX = ".ckpt"
LAST = f"last{SUFFIX}"
_FIELD = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
logger = logging.getLogger(__name__)


class ModelCheckpoint(Callback):
    """A callback that writes the state of a fit to files for `est.load`; the last is `last.ckpt`.

    The state of a torch model is a file, that of any other a folder; below, both are called files. They are complete
    or not there, and written beside the training, by rank 0, one after the other.

    Files that are there already stay, unless a new one has the same name: then it takes its place. A `last.ckpt` of an
    earlier fit goes when this one writes its first file, as it is no longer the last.

    Args:
        filepath: Folder and name, at any fsspec path. `{epoch}` becomes `epoch=1`, `{iter}` (training steps so far)
            `iter=100`; statistics of the epoch and formats are fine too: `{epoch:03d}-{val_loss:.2f}`. `.ckpt` is
            added. A path that ends with "/" is a folder.
        save_weights_only: Whether to leave out the state of optimizers and schedulers.
        by_epoch: Whether `interval` counts epochs; else training steps.
        interval: Write after every n-th. -1 writes after each epoch where the name has a `{...}` in it, and nothing but
            `last.ckpt` otherwise.
        monitor: Number that says which epoch is best; "val_loss" unless given. For save_best_only.
        mode: "min" or "max", or "auto": names such as val_accuracy are better when high.
        save_best_only: Whether to write after an epoch only when it is the best so far of this fit, over its
            interruptions.

    A file written after an epoch is resumed from exactly. One written mid-epoch has the weights of that
    step; the epoch begins anew (`checkpoint_trigger` of fit keeps the place in it too).

    Raises:
        ArgumentError: An argument is wrong.

    Example:
        >>> callback = ModelCheckpoint("checkpoints/digits-{epoch}")  # digits-epoch=1.ckpt, ..., last.ckpt
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str] = "",
        save_weights_only: bool = False,
        by_epoch: bool = True,
        interval: int = -1,
        *,
        monitor: str | None = None,
        mode: str = "auto",
        save_best_only: bool = False,
    ) -> None:
        if interval != -1:
            positive("interval", interval, ", or -1")
        if monitor is not None and not save_best_only:
            raise ArgumentError(
                f"monitor={monitor!r} has a meaning with save_best_only=True alone. Pass both.",
                code="monitor-without-best-only",
            )
        if save_best_only and not by_epoch:
            raise ArgumentError(
                "save_best_only looks at epochs. Leave out by_epoch=False.", code="best-only-needs-epochs"
            )
        self.filepath, self.save_weights_only = absolute("filepath", filepath or "./"), save_weights_only
        self.by_epoch, self.interval, self.save_best_only = by_epoch, interval, save_best_only
        self.monitor, self.mode = monitor or "val_loss", mode
        self.folder, _, name = self.filepath.rpartition("/")
        unit = "best" if save_best_only else "{epoch}" if by_epoch else "{iter}"
        self.name = name.removesuffix(SUFFIX) or (unit if interval > 0 or save_best_only else "")
        self._watch = Watch("ModelCheckpoint", self.monitor, mode)
        self._writer: CheckpointWriter | None = None
        self._outdated = False

    def before_run(self, runner: Any) -> None:
        """Look at the folder."""
        if not runner.training:
            return
        self._watch = Watch("ModelCheckpoint", self.monitor, self.mode)
        if runner.rank == 0:
            self._writer = CheckpointWriter(self.folder or "/", partial(self._write, runner.write_state))
            there = _checkpoints(self.folder)
            self._outdated = LAST in there
            if there:
                logger.info("ModelCheckpoint: %s holds %d checkpoints already; they stay.", self.folder, len(there))

    def after_train_epoch(self, runner: Any) -> None:
        """Write a file when one is due."""
        periodic = bool(self.save_best_only or _FIELD.search(self.name)) and self.by_epoch
        due = periodic if self.interval == -1 else self.by_epoch and self.every_n_epoch(runner, self.interval)
        if due and self.save_best_only:
            due = self._watch.counts(runner) and self._watch.improves(runner.epoch_stats)
        if due:
            self._save(runner, self._named(runner, numbers_in(runner.epoch_stats)), runner.epochs)

    def after_train_iter(self, runner: Any) -> None:
        """Write a file when one is due."""
        if not self.by_epoch and self.every_n_iter(runner, self.interval):
            ends = runner.batch_idx + 1 == runner.num_steps
            self._save(runner, self._named(runner, {}), runner.epochs if ends else runner.epochs - 1)

    def after_run(self, runner: Any) -> None:
        """Write the last one, and wait until all are written."""
        if runner.training:
            self._save(runner, LAST, runner.epochs)
            if self._writer is not None:
                self._writer.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the best number so far."""
        return {"best": self._watch.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the best number."""
        self._watch.best = state_dict["best"]

    def release(self) -> None:
        """Wait for the last write."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    @classmethod
    def get_latest_checkpoint(cls, dirname: str | os.PathLike[str]) -> str:
        """Return the path of the newest checkpoint in a folder: `last.ckpt`, or the one of the highest epoch or step.

        Args:
            dirname: A folder at any fsspec path.

        Raises:
            ArgumentError: There is none.
        """
        folder = os.fspath(dirname)
        there = _checkpoints(folder)
        if not there:
            raise ArgumentError(
                f"there is no checkpoint (*{SUFFIX}) in the folder {folder}. Pass the folder that ModelCheckpoint "
                "wrote to.",
                code="missing-checkpoint",
            )
        newest = LAST if LAST in there else max(there, key=_age)
        return f"{folder.rstrip('/')}/{newest}"

    @property
    def watch(self) -> Watch | None:
        """The number that decides which epoch is best; None if all are written."""
        return self._watch if self.save_best_only else None

    def _save(self, runner: Any, name: str, epoch: int) -> None:
        """Hand the state to the writer; all ranks call it, as they give the state together."""
        payload = runner.get_state_dict()
        if self._writer is not None:
            steps = payload.pop("steps")
            del payload["epoch"]
            state = State(epoch, steps, payload)
            self._writer.keep(state.for_answers() if self.save_weights_only else state, name)

    def _write(self, write: Callable[[State, str], None], state: State, path: str) -> None:
        write(state, path)
        if self._outdated and not path.endswith(f"/{LAST}"):
            remove(f"{self.folder}/{LAST}")
        self._outdated = False

    def _named(self, runner: Any, numbers: dict[str, float]) -> str:
        values = {**numbers, "epoch": runner.epochs, "iter": runner.global_step}

        def fill(field: re.Match[str]) -> str:
            word, form = field.groups()
            if word not in values:
                raise ArgumentError(
                    f"the name {self.name!r} has {{{word}}} in it, but there is only {', '.join(sorted(values))}.",
                    code="unknown-field-in-name",
                )
            return f"{word}={format(values[word], form or '')}"

        return _FIELD.sub(fill, self.name) + SUFFIX


def _checkpoints(folder: str) -> list[str]:
    """Return the names of the checkpoints in a folder; drafts have other names."""
    fs, place = filesystem(folder or "/")
    fs.invalidate_cache(place)  # others write to it
    if not fs.isdir(place):
        return []
    entries = [(entry["name"].rstrip("/"), entry["type"]) for entry in fs.ls(place, detail=True)]
    return sorted(
        name.rsplit("/", 1)[-1]
        for name, kind in entries
        if name.endswith(SUFFIX) and (kind != "directory" or fs.exists(f"{name}/{MARKER}"))
    )


def _age(name: str) -> tuple[int, int]:
    """Return epoch and step that a name tells, -1 where it does not."""
    numbers = dict(re.findall(r"\b(epoch|iter)=(\d+)", name))
    return int(numbers.get("epoch", -1)), int(numbers.get("iter", -1))
