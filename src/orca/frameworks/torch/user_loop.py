"""UserLoop: batches for a loop of the user's own. Owns what happens around each step that they do themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from orca.core.source import Batch
from orca.frameworks.torch.tensors import first_row
from orca.monitor.heartbeat import DATA, EVALUATE, FORWARD, Pulse


class Handed:
    """Hand a rank's batches to a loop of the user's: `rows` are the true rows of the one that was handed out last.

    Args:
        learner: The learner, which opens and closes each step of training.
        batches: The batches.
        pulse: Told where the loop is.
        epoch: The epoch of training; 0 for an evaluation.
    """

    def __init__(self, learner: Any, batches: Iterable[Batch], pulse: Pulse, epoch: int) -> None:
        self.rows = self.rows_seen = self.steps = 0
        self._learner, self._pulse, self._epoch = learner, pulse, epoch
        self._open: tuple[int, Batch] | None = None
        self._batches = self._numbered(batches)

    def __iter__(self) -> Handed:
        return self

    def __next__(self) -> Any:
        """Close the step before, which the user has done, and hand out the next batch."""
        learner, pulse = self._learner, self._pulse
        if self.close() and learner.agree_to_stop():
            raise StopIteration
        pulse.at(DATA)
        step, batch = next(self._batches)
        self._open, self.rows, learner.runner.batch_idx = (step, batch), batch.rows, step
        if learner.sample is None:
            learner.sample = first_row(batch.x)
        loaded = learner.place.loaded(batch)
        if self._epoch and learner.hooked:
            learner.runner.batch = loaded
            learner.hooks("before_train_iter", step)
        if self._epoch:
            learner.open_step(batch)
        pulse.at(FORWARD if self._epoch else EVALUATE)
        return loaded

    def close(self) -> bool:
        """Close the step that was handed out last, also where the loop left early; say whether one of training was."""
        if self._open is None:
            return False
        (step, batch), self._open = self._open, None
        self.steps += 1
        self.rows_seen += batch.rows
        if not self._epoch:
            return False
        learner, pulse = self._learner, self._pulse
        learner.close_step(batch)
        pulse.step(self._epoch, step + 1, pulse.steps, None, pulse.rows + batch.step_rows)
        if learner.hooked:
            learner.hooks("after_train_iter", step)
        return True

    def _numbered(self, batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
        return iter(self._learner.steps(batches, self._epoch, 0)) if self._epoch else enumerate(batches)
