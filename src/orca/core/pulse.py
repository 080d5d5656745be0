"""Pulse: where a rank is. Owns the phases of a step, and the marks that stall detection, progress and profiles read."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

# What a rank is doing. Higher is further in the step: among stuck ranks the lowest holds up the others.
PHASES = ("start", "data", "forward", "backward", "optimizer", "evaluate", "checkpoint", "wait")
START, DATA, FORWARD, BACKWARD, OPTIMIZER, EVALUATE, CHECKPOINT, WAIT = range(len(PHASES))


@dataclass(frozen=True)
class Beat:
    """Tell where a rank is."""

    rank: int
    epoch: int = 0
    step: int = 0
    steps: int = 0
    phase: int = START
    progress: int = -1
    loss: float | None = None

    @property
    def doing(self) -> str:
        """Return the name of its phase."""
        return PHASES[self.phase] if 0 <= self.phase < len(PHASES) else f"phase {self.phase}"


class Pulse:
    """Mark where the training loop is: written by its thread, read by the link's, without locks.

    `profile` holds the seconds spent in each phase while `profiling` is on.
    """

    __slots__ = ("_since", "epoch", "loss", "phase", "profile", "progress", "stepped", "steps")

    def __init__(self) -> None:
        self.epoch = self.stepped = self.steps = self.progress = 0
        self.phase = START
        self.loss: float | None = None
        self.profile = dict.fromkeys(PHASES, 0.0)
        self._since = 0.0

    def at(self, phase: int) -> None:
        """Enter a phase, also the same one again: each call counts as progress."""
        if self._since:
            now = time.perf_counter()
            self.profile[PHASES[self.phase]] += now - self._since
            self._since = now
        self.phase = phase
        self.progress += 1

    def step(self, epoch: int, step: int, steps: int, loss: float | None = None) -> None:
        """Begin training step `step` of `steps`; the loss is read with float() only when a beat is sent."""
        self.epoch, self.stepped, self.steps = epoch, step, steps
        if loss is not None:
            self.loss = loss
        self.progress += 1

    @property
    def profiling(self) -> bool:
        """Tell whether the time in each phase is added up in `profile`."""
        return self._since > 0.0

    @profiling.setter
    def profiling(self, on: bool) -> None:
        self._since = time.perf_counter() if on else 0.0

    def beat(self, rank: int) -> Beat:
        """Return what to tell the driver now."""
        loss = None
        with suppress(TypeError, ValueError, RuntimeError):  # a loss that is no number must not end telemetry
            loss = None if self.loss is None else float(self.loss)
        place = (int(self.epoch), int(self.stepped), int(self.steps), int(self.phase))
        return Beat(rank, *place, progress=self.progress, loss=loss)
