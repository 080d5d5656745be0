"""Schedules: the learning rate of each step. Owns BigDL's formulas.

A schedule is a picklable description. Its memory (steps, epochs, scores) is a dict that the optimizer keeps in its
parameter groups, so that it is saved and resumed with the optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orca.errors import ArgumentError, KnownArguments

Memory = dict[str, Any]
Numbers = Mapping[str, float | None]


class Scheduler(KnownArguments):
    """A learning rate as a function of steps and epochs done; some also watch a number of each epoch."""

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the rate of the step to come.

        Args:
            base: The rate that the method was made with.
            step: Steps done before.
            epoch: Epochs done before.
            memory: The memory of `watch`.
        """
        raise NotImplementedError

    def watch(self, base: float, step: int, epoch: int, memory: Memory, numbers: Numbers) -> None:
        """Take note of the end of an epoch, with its "Loss" and perhaps a "score".

        The score is None if the fit validates, but not in this epoch.
        """

    def get_scheduler(self) -> Scheduler:
        """Return this schedule, for older programs."""
        return self


@dataclass(frozen=True)
class Default(Scheduler):
    """The schedule of a method with `learningrate_decay`: rate / (1 + steps * decay)."""

    decay: float = 0.0

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return base / (1 + step * decay)."""
        return base / (1 + step * self.decay)


@dataclass(frozen=True)
class Poly(Scheduler):
    """A rate that falls to zero within `max_iteration` steps: base * (1 - step / max_iteration) ** power."""

    power: float
    max_iteration: int

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the polynomial; 0 after the last step."""
        return base * (1 - step / self.max_iteration) ** self.power if step < self.max_iteration else 0.0


@dataclass(frozen=True)
class PolyEpochDecay(Scheduler):
    """A rate that falls to zero within `max_epochs` epochs: base * (1 - epoch / max_epochs) ** power."""

    power: float
    max_epochs: int

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the polynomial; 0 after the last epoch."""
        return base * (1 - epoch / self.max_epochs) ** self.power if epoch < self.max_epochs else 0.0


@dataclass(frozen=True)
class Exponential(Scheduler):
    """A rate that decays exponentially, in stairs with stair_case: base * decay_rate ** (step / decay_step)."""

    decay_step: int
    decay_rate: float
    stair_case: bool = False

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the exponential."""
        return base * self.decay_rate ** (step // self.decay_step if self.stair_case else step / self.decay_step)


@dataclass(frozen=True)
class Step(Scheduler):
    """A rate that is multiplied by gamma every `step_size` steps."""

    step_size: int
    gamma: float

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return base * gamma ** (step // step_size)."""
        return base * self.gamma ** (step // self.step_size)


@dataclass(frozen=True)
class MultiStep(Scheduler):
    """A rate that is multiplied by gamma at each of the steps listed."""

    step_sizes: Sequence[int]
    gamma: float

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return base * gamma ** (how many of the listed steps are reached)."""
        return base * self.gamma ** sum(step >= size for size in self.step_sizes)


@dataclass(frozen=True)
class Warmup(Scheduler):
    """A rate that grows by delta with every step: base + delta * step. The first part of a SequentialSchedule."""

    delta: float

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return base + delta * step."""
        return base + self.delta * step


@dataclass(frozen=True)
class Ramp(Scheduler):
    """A rate that grows over the first portion of all steps, and falls to zero by the last; see AdamWeightDecay."""

    warmup_portion: float
    total: int

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the ramp; the base without a total."""
        if self.total <= 0:
            return base
        share = step / self.total
        return base * (share / self.warmup_portion if share < self.warmup_portion else max(1 - share, 0.0))


@dataclass(frozen=True)
class Plateau(Scheduler):
    """A rate that is reduced when a number of the epochs improves no more.

    Args:
        monitor: "Loss" (the training loss of the epoch) or "score" (the first metric of the validation, else its loss).
            Epochs that are not validated, where others are, have no score and do not count.
        factor: The factor of the rate; below 1.
        patience: Epochs without improvement that are borne: the next one without reduces the rate.
        mode: "min" where less is better, "max" where more is.
        epsilon: The least change that is an improvement.
        cooldown: Epochs after a reduction in which nothing is counted.
        min_lr: The least rate.
    """

    monitor: str
    factor: float = 0.1
    patience: int = 10
    mode: str = "min"
    epsilon: float = 1e-4
    cooldown: int = 0
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        if self.factor >= 1:
            raise ArgumentError(f"the factor of a Plateau reduces the rate: it must be below 1; got {self.factor!r}.")
        if self.mode not in ("min", "max"):
            raise ArgumentError(f"the mode of a Plateau must be 'min' or 'max'; got {self.mode!r}.")
        if str(self.monitor).lower() not in ("loss", "score"):
            raise ArgumentError(f"a Plateau monitors 'Loss' or 'score'; got {self.monitor!r}.")

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the base rate after its reductions."""
        return float(memory.get("rate", base))

    def watch(self, base: float, step: int, epoch: int, memory: Memory, numbers: Numbers) -> None:
        """Reduce the rate if the number has not improved for longer than the patience."""
        name = "Loss" if self.monitor.lower() == "loss" else "score"
        if name not in numbers:
            raise ArgumentError(
                f"Plateau(monitor={self.monitor!r}) needs that number of every epoch, and this one has none. Pass "
                "validation data, or monitor='Loss'."
            )
        if (number := numbers[name]) is None:
            return
        best, wait, rest = memory.get("best"), memory.get("wait", 0), memory.get("rest", 0)
        if rest > 0:
            rest, wait = rest - 1, 0
        sign = 1 if self.mode == "min" else -1
        if best is None or sign * number < sign * best - self.epsilon:
            best, wait = number, 0
        elif rest <= 0:
            current = self.rate(base, step, epoch, memory)
            if wait >= self.patience and current > self.min_lr * (1 + 1e-4):
                memory["rate"] = max(current * self.factor, self.min_lr)
                rest, wait = self.cooldown, 0
            wait += 1
        memory.update(best=best, wait=wait, rest=rest)


@dataclass
class SequentialSchedule(Scheduler):
    """Schedules one after the other, each for its number of steps; the last one stays.

    A schedule begins with the rate that the one before reaches at its end, and counts its steps from 0.

    Args:
        iteration_per_epoch: Steps of an epoch, by which epoch-based schedules count theirs.

    Example:
        >>> ramp = SequentialSchedule(100).add(Warmup(0.3), 3).add(Poly(2, 10), 10)
        >>> [round(ramp.rate(0.1, step, 0, {}), 3) for step in (0, 1, 2, 3, 8)]
        [0.1, 0.4, 0.7, 1.0, 0.25]
    """

    iteration_per_epoch: int
    parts: list[tuple[Scheduler, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = [(part, steps) for part, steps in self.parts]

    def add(self, scheduler: Scheduler, max_iteration: int) -> SequentialSchedule:
        """Add a schedule for max_iteration steps; returns this one."""
        self.parts.append((scheduler.get_scheduler(), max_iteration))
        return self

    def rate(self, base: float, step: int, epoch: int, memory: Memory) -> float:
        """Return the rate of the part that this step belongs to."""
        part, first, at, epochs, own = self._part(base, step, epoch, memory)
        return part.rate(first, at, epochs, own)

    def watch(self, base: float, step: int, epoch: int, memory: Memory, numbers: Numbers) -> None:
        """Pass the end of an epoch on to the part of its last step."""
        part, first, at, epochs, own = self._part(base, max(step - 1, 0), epoch, memory)
        part.watch(first, at, epochs, own, numbers)

    def _part(self, base: float, step: int, epoch: int, memory: Memory) -> tuple[Scheduler, float, int, int, Memory]:
        """Return the schedule of a step, with its base, its own counts of steps and epochs, and its memory."""
        if not self.parts:
            raise ArgumentError("a SequentialSchedule has no schedules. Add some: .add(Warmup(0.1), 100).")
        start = 0
        for number, (part, steps) in enumerate(self.parts):
            own = memory.setdefault(str(number), {})
            epochs = math.floor(start / self.iteration_per_epoch)
            if step < start + steps or number == len(self.parts) - 1:
                break
            base = part.rate(base, steps, steps // self.iteration_per_epoch, own)
            start += steps
        return part, base, step - start, max(epoch - epochs, 0), own
