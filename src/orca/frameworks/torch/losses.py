"""Losses: the losses of an epoch. Owns how they are kept without waiting for the device at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from orca.core.state import Losses, report_loss

_WINDOW = 64  # steps whose losses are looked at together: one look costs as much as a step of a tiny model
# The first windows of an epoch are of 1, 2, 4, ... steps: the progress bar soon has a loss.


@dataclass(frozen=True)
class LossPart:
    """One rank's part of a step's loss.

    Attributes:
        loss: The loss of this rank's rows.
        times: The factor that makes it a sum: rows for a mean, 1 for a sum.
        mass: The divisor of that sum for the mean: rows, or the targets' weights.
        weight: The factor of the loss, so that the mean over ranks is the loss of the whole step.
    """

    loss: torch.Tensor
    times: float
    mass: float
    weight: float


def together(parts: list[LossPart]) -> LossPart | None:
    """Return the parts of a step's loss as one."""
    if len(parts) < 2:
        return parts[0] if parts else None
    times, mass, weight = (sum(getattr(part, name) for part in parts) for name in ("times", "mass", "weight"))
    total = torch.stack([part.loss * part.times for part in parts]).sum()
    sums = parts[0].times == 1.0 and mass != times  # a loss that is a sum: so is that of all pieces
    return LossPart(
        total if sums else total / times, 1.0 if sums else times, mass, weight / len(parts) if sums else weight
    )


class LossRecord:
    """The losses of an epoch, kept without waiting for each: they are looked at a window at a time.

    On a GPU a window is on its way to the CPU while the next one is trained, so that nothing waits for it.

    Args:
        epoch: The number of the epoch, for messages.
        on_nan: "raise", "warn" or "ignore" when a loss is not finite.
        first_step: Steps of the epoch that were done before.
    """

    def __init__(self, epoch: int, on_nan: str, first_step: int = 0) -> None:
        self.epoch, self.on_nan, self.first_step = epoch, on_nan, first_step
        self.losses = Losses()
        self.window: list[LossPart | None] = []
        self.on_the_way: tuple[list[LossPart | None], torch.Tensor, Any] | None = None
        self.last_loss: float | None = None
        self.window_size = 1

    def add(self, part: LossPart | None, rows: int) -> float | None:
        """Write down a step's loss (None for a step without rows); return the newest loss that is known."""
        self.losses.steps += 1
        self.losses.rows += rows
        self.losses.last_mass = part.mass if part else 0
        self.window.append(part)
        if len(self.window) >= self.window_size:
            self._send()
            self.window_size = min(2 * self.window_size, _WINDOW)
        if part is not None and part.loss.is_cpu:
            return part.loss.item() * part.times / part.mass if part.mass else None
        return self.last_loss

    def close(self) -> Losses:
        """Return the sums of the epoch."""
        self._send()
        self._look()
        if self.losses.last_mass:
            self.losses.last_loss_sum = (self.last_loss or 0.0) * self.losses.last_mass
        return self.losses

    def _send(self) -> None:
        """Look at the window sent before, and send this one on its way."""
        self._look()
        parts, self.window = self.window, []
        losses = [part.loss.float() if part.loss.dtype == torch.bfloat16 else part.loss for part in parts if part]
        values, ready = torch.stack(losses).double() if losses else torch.zeros(0), None
        if values.is_cuda:
            ready = torch.cuda.Event()
            values = values.to("cpu", non_blocking=True)
            ready.record()
        self.on_the_way = parts, values, ready
        if ready is None:
            self._look()

    def _look(self) -> None:
        if self.on_the_way is None:
            return
        (parts, losses, ready), self.on_the_way = self.on_the_way, None
        if ready is not None:
            ready.synchronize()
        values = np.zeros(len(parts))
        values[[part is not None for part in parts]] = losses.numpy()
        self._check(values)
        for value, part in zip(values.tolist(), parts, strict=True):
            self.losses.trace.append((value * part.times, part.mass) if part else (0.0, 0.0))
            if part is not None:
                self.losses.loss_sum += value * part.times
                self.losses.mass += part.mass
                self.last_loss = value * part.times / part.mass

    def _check(self, values: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(values))
        if not len(bad) or self.on_nan == "ignore":
            return
        step = self.first_step + len(self.losses.trace) + int(bad[0]) + 1
        report_loss(values[bad[0]], f"at step {step} of epoch {self.epoch}", self.on_nan)
        self.on_nan = "ignore"
