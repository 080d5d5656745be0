"""Options: how a torch model is trained beyond the plain step. Owns which of them go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch

from orca.errors import ArgumentError
from orca.frameworks.torch.sync import Clipping

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEP_FREQS = ("batch", "epoch", "manual", None)


@dataclass(frozen=True)
class Options:
    """The options of training, each off by default. They are arguments of `TorchEstimator.of`, which explains them."""

    scheduler: Callable[..., Any] | None = None  # scheduler_creator
    step_freq: str | None = "batch"  # scheduler_step_freq; None is "manual"
    operator: type | None = None  # training_operator_cls
    precision: str | None = None
    accumulate: int = 1
    clipping: Clipping = field(default_factory=Clipping)  # clip_norm and clip_value
    compiled: bool | dict[str, Any] = False  # compile
    ema: float | None = None
    deterministic: bool = False
    sync_batchnorm: bool = False
    unused: bool = False  # find_unused_parameters
    reduction: str | Callable[..., Any] | None = None  # loss_reduction
    squeeze: bool = False
    device_cache: bool = False

    def check(self, sync: str) -> None:
        """Check each option, and that they go together."""
        if self.scheduler is not None and not callable(self.scheduler):
            raise ArgumentError(
                "scheduler_creator must be a function (optimizer, config) that returns a scheduler; "
                f"got {type(self.scheduler).__name__}.",
                code="bad-scheduler",
            )
        if self.step_freq not in STEP_FREQS:
            raise ArgumentError(
                f"scheduler_step_freq must be 'batch', 'epoch' or 'manual'; got {self.step_freq!r}.",
                code="bad-scheduler-step",
            )
        if self.precision not in (None, *PRECISIONS):
            raise ArgumentError(
                f"precision must be 'bf16', 'fp16' or None; got {self.precision!r}.", code="bad-precision"
            )
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ArgumentError(
                f"accumulate must be a positive whole number of pieces; got {self.accumulate!r}.", code="bad-accumulate"
            )
        if self.ema is not None and not (isinstance(self.ema, float) and 0.0 < self.ema < 1.0):
            raise ArgumentError(
                f"ema must be a decay between 0 and 1, such as 0.999; got {self.ema!r}.", code="bad-ema"
            )
        if self.reduction not in (None, "mean", "sum") and not callable(self.reduction):
            raise ArgumentError(
                "loss_reduction must be 'mean', 'sum' or a function (target) that returns what each row counts in the "
                f"mean; got {self.reduction!r}.",
                code="bad-loss-reduction",
            )
        for first, second in self._conflicts(sync):
            raise ArgumentError(
                f"{first} and {second} do not go together yet. Leave one of them out.",
                code="options-exclude-each-other",
            )

    def _conflicts(self, sync: str) -> list[tuple[str, str]]:
        half, split = self.precision == "fp16", self.accumulate > 1
        pairs = [
            (half and sync == "sharded", "precision='fp16'", "backend='bigdl' (precision='bf16' does)"),
            (split and self.sync_batchnorm, "accumulate", "sync_batchnorm"),
            (self.ema and sync == "fully sharded", "ema", "shard_model"),
            (half and sync == "fully sharded", "precision='fp16'", "shard_model (precision='bf16' does)"),
            # Ranks that use other weights would gather others, and wait for each other.
            (self.unused and sync == "fully sharded", "find_unused_parameters", "shard_model"),
        ]
        return [(first, second) for conflict, first, second in pairs if conflict]

    def check_optimizers(self, optimizers: Sequence[Any]) -> None:
        """Check that optimizers, or their creators, support these options."""
        for one in optimizers:
            if self.scheduler is not None and getattr(one, "varies", False):
                raise ArgumentError(
                    f"the optim method {type(one).__name__} changes the learning rate by itself, and so would "
                    "scheduler_creator. Leave one of them out.",
                    code="two-schedules",
                )
        if self.precision == "fp16" and any(isinstance(one, torch.optim.LBFGS) for one in optimizers):
            raise ArgumentError(
                "LBFGS asks for loss and gradients several times a step, which the loss scaler of precision='fp16' "
                "cannot follow (nor can torch's own GradScaler). Pass precision='bf16', or another optimizer.",
                code="lbfgs-with-half-precision",
            )

    def check_schedulers(self, schedulers: Sequence[Any]) -> None:
        """Check that schedulers can step when they are to."""
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        if self.step_freq == "batch" and any(isinstance(each, plateau) for each in schedulers):
            raise ArgumentError(
                "ReduceLROnPlateau watches the loss of an epoch, but is to step after each batch. "
                "Pass scheduler_step_freq='epoch'.",
                code="scheduler-needs-epochs",
            )

    def check_hands_on(self, whose: str, sync: str) -> None:
        """Check that nothing is asked for that must happen within a backward pass and an update of the user's own."""
        for is_set, name in (
            (self.accumulate > 1, "accumulate"),
            (bool(self.clipping), "gradient clipping"),
            (self.precision == "fp16", "precision='fp16'"),
            (self.ema is not None, "ema"),
            (sync == "fully sharded", "shard_model"),
            (self.reduction not in (None, "mean"), "loss_reduction"),
            # Its backward pass adds up gradients of ranks, which are weighed only afterwards.
            (self.sync_batchnorm, "sync_batchnorm"),
        ):
            if is_set:
                raise ArgumentError(
                    f"{whose} does the backward pass and the update itself, where {name} cannot be brought in. "
                    f"Do it there, or leave {name} out.",
                    code="options-exclude-own-backward",
                )


def clipping_of(clip_norm: Any, clip_value: Any) -> Clipping:
    """Return how to clip: to a norm, or into (-value, value) or (low, high)."""
    bounds = None
    if clip_value is not None:
        bounds = (-clip_value, clip_value) if _is_number(clip_value) else _pair(clip_value)
        if bounds is None or not bounds[0] < bounds[1]:
            raise ArgumentError(
                f"clip_value must be a positive number or (low, high) with low < high; got {clip_value!r}.",
                code="bad-clipping",
            )
    if clip_norm is not None and not (_is_number(clip_norm) and 0 < clip_norm < math.inf):
        raise ArgumentError(f"clip_norm must be a positive number; got {clip_norm!r}.", code="bad-clipping")
    return Clipping(bounds, None if clip_norm is None else float(clip_norm))


def _pair(value: Any) -> tuple[float, float] | None:
    """Return two numbers, None where it is something else."""
    bounds = tuple(value) if isinstance(value, tuple | list | np.ndarray) else ()
    return bounds if len(bounds) == 2 and all(map(_is_number, bounds)) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
