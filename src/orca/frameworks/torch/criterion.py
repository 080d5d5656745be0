"""Criterion: the loss of a batch as one number, and what it is a mean over. Owns how ranks' losses become one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from orca.core.source import Batch
from orca.core.tree import flatten
from orca.errors import ArgumentError, DataError
from orca.frameworks.torch.targets import align_all, mass_of, takes_classes, weighs


class Criterion:
    """Apply a loss to outputs and targets, rows weighed where they bring weights.

    Args:
        loss: A loss module or function; None where there is none.
    """

    def __init__(self, loss: Any) -> None:
        self.loss = loss
        self.classes = takes_classes(loss)
        self.sums = getattr(loss, "reduction", "mean") == "sum"

    def __bool__(self) -> bool:
        return self.loss is not None

    def pair(self, output: Any, target: Any) -> tuple[list[Any], list[Any]]:
        """Return outputs and targets side by side, each target in the form that the loss compares the output with.

        Raises:
            DataError: There is a loss and no target.
        """
        if target is None:
            if self.loss is None:
                return flatten(output)[0], []
            raise DataError("there are no labels to compare the outputs with. Pass label_cols, or data with labels.")
        return align_all(output, target, self.classes)

    def __call__(self, outputs: list[Any], targets: list[Any], weights: Any = None) -> torch.Tensor:
        """Return the loss as one number: the mean over rows, or their sum where that is the loss."""
        if weights is None:
            return scalar(self.loss(*outputs, *targets))
        each = self._each(outputs, targets)
        weight = torch.as_tensor(np.asarray(weights), device=each.device).to(each.dtype).reshape(-1)
        total = (each * weight).sum()
        return total if self.sums else total / weight.sum()

    def weighs(self, batch: Batch) -> bool:
        """Say whether the loss divides by the weights of its rows or targets instead of the rows."""
        return (batch.weights is not None and not self.sums) or weighs(self.loss, batch.y)

    def times(self, batch: Batch, targets: list[Any]) -> tuple[float, float]:
        """Return (the factor that makes the loss of this rank's rows a sum, what that sum is a mean over)."""
        if self.sums:
            return 1.0, batch.rows
        if batch.weights is not None:
            mass = float(np.sum(batch.weights, dtype=np.float64))
        elif self.weighs(batch):
            mass = float(mass_of(self.loss, targets[0]))
        else:
            mass = batch.rows
        return mass, mass

    def whole(self, batch: Batch, mass: float) -> float:
        """Return the factor that makes the loss of the whole step a sum; all ranks call it where it must be asked for.

        Args:
            batch: This rank's part of the step.
            mass: What the loss of this part is a mean over; 0 without rows.
        """
        if self.sums:
            return 1.0
        if not self.weighs(batch):
            return batch.step_rows
        total = torch.tensor(mass, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total) or 1.0

    def _each(self, outputs: list[Any], targets: list[Any]) -> torch.Tensor:
        """Return the loss of each row.

        Raises:
            ArgumentError: The loss cannot tell it.
        """
        reduction = getattr(self.loss, "reduction", None)
        told = isinstance(reduction, str) and isinstance(self.loss, nn.Module)
        if told:
            setattr(self.loss, "reduction", "none")  # noqa: B010  a module's attributes are tensors for the type checker
        try:
            each = self.loss(*outputs, *targets)
        finally:
            if told:
                setattr(self.loss, "reduction", reduction)  # noqa: B010
        rows = len(outputs[0])
        if not each.dim() or len(each) != rows:
            raise ArgumentError(
                f"sample weights need the loss of each row, but the loss gave a tensor of shape {tuple(each.shape)} "
                f"for {rows} rows. Use a torch loss, or a function that returns one number for each row."
            )
        each = each.reshape(rows, -1)
        return each.sum(1) if self.sums else each.mean(1)


def scalar(loss: torch.Tensor) -> torch.Tensor:
    """Return a loss as one number: the mean of several."""
    return loss.mean() if loss.dim() else loss
