"""Losses of torch models. Owns how the losses of an epoch are kept without waiting for the device at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from orca.core.losses import LossAccumulator, StepLoss, StepResult, report_loss
from orca.core.state import Losses

_WINDOW = 64  # steps whose losses are looked at together: one look costs as much as a step of a tiny model
# The first windows of an epoch are of 1, 2, 4, ... steps: the progress bar soon has a loss.


@dataclass(frozen=True, slots=True)
class DeviceStepLoss(StepLoss):
    """One rank's loss of a step, on the device.

    Attributes:
        weight: The factor of the loss, so that the mean over ranks is the loss of the whole step.
    """

    weight: float


def merged(losses: list[DeviceStepLoss]) -> DeviceStepLoss | None:
    """Return the losses of a step's micro-batches as one."""
    if len(losses) < 2:
        return losses[0] if losses else None
    scale = sum(loss.scale for loss in losses)
    weight_sum = sum(loss.weight_sum for loss in losses)
    weight = sum(loss.weight for loss in losses)
    total = torch.stack([loss.value * loss.scale for loss in losses]).sum()
    if losses[0].scale == 1.0 and weight_sum != scale:  # a loss that is a sum: so is that of all micro-batches
        return DeviceStepLoss(total, 1.0, weight_sum, weight / len(losses))
    return DeviceStepLoss(total / scale, scale, weight_sum, weight)


class DeviceLosses(LossAccumulator):
    """The losses of an epoch, kept without waiting for each: they are looked at a window at a time.

    On a GPU a window is on its way to the CPU while the next one is trained, so that nothing waits for it.
    """

    def __init__(self, epoch: int, on_nan: str) -> None:
        super().__init__(epoch, on_nan)
        self._rows = self._steps = 0
        self._last_step = -1  # its number in the epoch
        self._last_weight_sum: float = 0
        self._last_loss: float | None = None
        self._window: list[StepLoss | None] = []
        self._window_size = 1
        self._sent: tuple[list[StepLoss | None], torch.Tensor, Any] | None = None

    def add(self, step: int, result: StepResult, rows: int) -> float | None:
        """Write down a step's loss; return the newest loss that is known."""
        loss = result.loss
        self._steps += 1
        self._rows += rows
        self._last_step = step
        self._last_weight_sum = loss.weight_sum if loss else 0
        self._add_rate(result)
        self._window.append(loss)
        if len(self._window) >= self._window_size:
            self._send()
            self._window_size = min(2 * self._window_size, _WINDOW)
        if loss is not None and loss.value.is_cpu:
            return loss.value.item() * loss.scale / loss.weight_sum if loss.weight_sum else None
        return self._last_loss

    def totals(self) -> Losses:
        """Return the sums of the steps so far; waits for the device."""
        self._send()
        self._look()
        last_sum = (self._last_loss or 0.0) * self._last_weight_sum if self._last_weight_sum else 0.0
        sums = self.losses
        return Losses(
            loss_sum=sums.loss_sum,
            mass=sums.mass,
            rows=self._rows,
            last_loss_sum=last_sum,
            last_mass=self._last_weight_sum,
            steps=self._steps,
            trace=sums.trace,
            rates=sums.rates,
        )

    def _send(self) -> None:
        """Look at the window sent before, and send this one on its way."""
        self._look()
        window, self._window = self._window, []
        losses = [loss.value.float() if loss.value.dtype == torch.bfloat16 else loss.value for loss in window if loss]
        values, ready = torch.stack(losses).double() if losses else torch.zeros(0), None
        if values.is_cuda:
            ready = torch.cuda.Event()
            values = values.to("cpu", non_blocking=True)
            ready.record()
        self._sent = window, values, ready
        if ready is None:
            self._look()

    def _look(self) -> None:
        if self._sent is None:
            return
        (window, losses, ready), self._sent = self._sent, None
        if ready is not None:
            ready.synchronize()
        values = np.zeros(len(window))
        values[[loss is not None for loss in window]] = losses.numpy()
        self._check(values)
        for value, loss in zip(values.tolist(), window, strict=True):
            if loss is None:
                self.losses.add(0.0, 0.0, 0)
                continue
            self.losses.add(value * loss.scale, loss.weight_sum, 0)
            self._last_loss = value * loss.scale / loss.weight_sum

    def _check(self, values: np.ndarray) -> None:
        """Report the first loss of a window that is not finite."""
        bad = np.flatnonzero(~np.isfinite(values))
        if not len(bad) or self.on_nan == "ignore" or self._has_warned:
            return
        unseen = self._steps - len(self.losses.trace)  # steps since the window began
        step = self._last_step - unseen + int(bad[0]) + 2
        report_loss(values[bad[0]], f"at step {step} of epoch {self.epoch}", self.on_nan)
        self._has_warned = True
