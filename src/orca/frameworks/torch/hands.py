"""Hands: batches for a loop of the user's own. Owns what happens around each step that she does herself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from orca.core.pulse import DATA, EVALUATE, FORWARD, Pulse
from orca.core.source import Batch
from orca.frameworks.torch.tensors import first_row


class Handed:
    """Hand a rank's batches to a loop of the user's: `rows` are the true rows of the one that was handed out last."""

    def __init__(
        self,
        learner: Any,
        batches: Iterable[Batch],
        pulse: Pulse,
        epoch: int,
        first_step: int,
        training: bool = True,
    ) -> None:
        self.rows = self.rows_seen = self.steps = 0
        self._batches: Any = self._hand_out(learner, batches, pulse, epoch, first_step, training)

    def __iter__(self) -> Handed:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        """End the step that was handed out last, where the loop left early."""
        self._batches.close()

    def _hand_out(
        self, learner: Any, batches: Iterable[Batch], pulse: Pulse, epoch: int, first: int, training: bool
    ) -> Iterator[Any]:
        pulse.at(DATA)
        numbered = learner.steps(batches, epoch, first) if training else enumerate(batches)
        for step, batch in numbered:
            self.rows = batch.rows
            kept = learner.open_step(batch) if training else []
            if learner.sample is None:
                learner.sample = first_row(batch.x)
            pulse.at(FORWARD if training else EVALUATE)
            try:
                yield learner.place.loaded(batch)
            finally:
                if training:
                    learner.close_step(batch, kept)
                self.steps += 1
                self.rows_seen += batch.rows
            if training:
                pulse.step(epoch, step + 1, pulse.steps, None, pulse.rows + batch.step_rows)
            pulse.at(DATA)
