"""Batchnorm: batch normalization over the rows of all ranks. Owns how their statistics and gradients are shared.

torch's own SyncBatchNorm takes no CPU tensors (as of 2.15) and cannot leave out the rows of an idle rank. Here a layer
keeps its class and its state; only its forward pass is another one while it is shared.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from orca.errors import ArgumentError


class Statistics:
    """The statistics of a module's batch normalization, taken over the rows of all ranks.

    All ranks must run the same forward and backward passes while they are shared, idle ones too. Evaluation is as
    before: with the running statistics, or with those of its own rows where a layer keeps no running ones.

    Args:
        net: The module; it may be inside of a DistributedDataParallel, or be put there later.
        always: Whether they are shared in every step. Else in those where a rank has one row, of which it has no
            statistics of its own; layers that see several values of a row have them, and stay alone.

    Attributes:
        counts: Whether this rank's rows count. False before the forward pass of an idle rank: its rows stand for
            nothing, but it takes part in the collectives of the ranks.
        shared: Whether ranks meet in the passes of this step.
        needs_two: Whether a row by itself may have no statistics; images have many values.
    """

    def __init__(self, net: nn.Module, always: bool = True) -> None:
        norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        self.norms = [norm for norm in norms if not isinstance(norm, nn.SyncBatchNorm)]
        self.needs_two = any(not isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d) for norm in self.norms)
        self.net, self.always, self.counts, self.shared = net, always, True, False
        self.weight, self.rows, self.first = 1.0, 0, False
        self.compiled_call: Any = None
        if always:
            self._share()

    def open(self, shares: tuple[int, ...], weight: float = 1.0, first: bool = False) -> None:
        """Prepare for a step.

        Args:
            shares: The rows of each rank.
            weight: The factor of this rank's gradients after the backward pass, where the user's own code
                calls it; 1 where the loss is multiplied before.
            first: Whether it is the first step of an epoch: no later one has more rows.
        """
        self.weight, self.rows, self.first = weight, sum(shares), first
        if self.norms and not self.always and 1 in shares:
            self._share()
            # Compiled code has the layers' own forward pass in it.
            self.compiled_call, self.net._compiled_call_impl = self.net._compiled_call_impl, None

    def count(self, counts: bool) -> None:
        """Count the rows of the next forward pass, or not."""
        self.counts = counts

    def close(self) -> None:
        """End a step."""
        if self.shared and not self.always:
            self._part()
            self.net._compiled_call_impl, self.compiled_call = self.compiled_call, None

    def release(self) -> None:
        """Give the layers their own forward pass back for good."""
        self._part()
        self.norms = []

    def _share(self) -> None:
        self.shared = True
        # Compiled code may order collectives in its own way, and ranks may compile differently: these stay out of it.
        forward = torch.compiler.disable(_forward) if self.norms else _forward
        for norm in self.norms:
            # Not a closure: a deep copy of the layer must normalize with the weights of the copy.
            norm.__dict__["forward"] = partial(forward, norm, self)

    def _part(self) -> None:
        self.shared = False
        for norm in self.norms:
            norm.__dict__.pop("forward", None)


def _forward(norm: _BatchNorm, statistics: Statistics, rows: torch.Tensor) -> torch.Tensor:
    if not norm.training:
        return type(norm).forward(norm, rows)
    if not statistics.always and _values(rows) > len(rows):
        return type(norm).forward(norm, rows)
    if statistics.rows == 1 and _values(rows) == len(rows):
        return _with_known(norm, statistics.first, rows)
    norm._check_input_dim(rows)
    counts = statistics.counts
    with torch.no_grad():
        total, mean, squares = _gather(rows, counts)
        if (not counts or _values(rows) < 2) and float(total) == 1:  # others cannot be: they have two of their own
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {rows.size()}")
        if norm.track_running_stats:
            _remember(norm, total, mean, squares)
        scale = torch.rsqrt(squares / total.clamp(min=1) + norm.eps)
        mean, scale = mean.to(_precision(rows)), scale.to(_precision(rows))
    weight = statistics.weight if counts else 0.0
    result: torch.Tensor = _Normalize.apply(rows, norm.weight, norm.bias, total, mean, scale, weight)
    return result


def _with_known(norm: _BatchNorm, first: bool, rows: torch.Tensor) -> torch.Tensor:
    """Normalize a step of one row, which has no statistics, with those of the steps before."""
    if first or norm.running_mean is None:
        raise ArgumentError(
            "batch normalization learns nothing from a step of one row, and no step has more. Pass a batch_size of 2 "
            "or more (or data with more rows), use GroupNorm or LayerNorm, or keep the layer in eval() in your model's "
            "train()."
            if first
            else "a step of one row is left over, of which batch normalization that keeps no running statistics has "
            "none. Choose a batch_size that leaves no single row, or drop the row.",
            code="batchnorm-of-one-row",
        )
    return F.batch_norm(rows, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)


def _gather(rows: torch.Tensor, counts: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (values a channel, their mean, the sum of squared distances from it) over all ranks.

    Each rank tells its own three, and they are put together from distances: sums of squares would lose all digits
    where a mean is large. The numbers are few, so they are double.
    """
    values, channels = _values(rows), rows.shape[1]
    parts = torch.zeros(dist.get_world_size(), 2 * channels + 1, dtype=torch.float64, device=rows.device)
    if counts and values:
        mean, variance = _moments(rows)
        parts[dist.get_rank(), 0] = values
        parts[dist.get_rank(), 1 : channels + 1] = mean
        parts[dist.get_rank(), channels + 1 :] = variance * values
    dist.all_reduce(parts)  # a line of zeros for each other rank: an all-gather, under a name every torch has
    sizes, means, squares = parts.split([1, channels, channels], 1)
    total = sizes.sum()
    mean = (sizes * means).sum(0) / total.clamp(min=1)
    return total, mean, (squares + sizes * (means - mean).square()).sum(0)


def _remember(norm: _BatchNorm, total: torch.Tensor, mean: torch.Tensor, squares: torch.Tensor) -> None:
    """Move the running statistics; a step in which no rank had rows moves nothing."""
    share: Any = (total > 0).double()
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(total > 0)
        if norm.momentum is None:  # the average over all steps
            share = share / norm.num_batches_tracked.clamp(min=1)
    if norm.momentum is not None:
        share = share * norm.momentum
    for running, new in ((norm.running_mean, mean), (norm.running_var, squares / (total - 1).clamp(min=1))):
        if running is not None:
            running.add_(((new - running.double()) * share).to(running.dtype))


class _Normalize(torch.autograd.Function):
    """Normalized rows, whose gradient knows that the rows of all ranks have made the statistics.

    Gradients of the ranks are summed here: the loss of each is scaled so that the mean over ranks is the step's, and
    the weights' gradients, which are this rank's alone, are averaged like those of any other weight. Where gradients
    are scaled afterwards instead, by `share`, they are scaled here for the sum; it is 0 on a rank without rows.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        total: torch.Tensor,
        mean: torch.Tensor,
        scale: torch.Tensor,
        share: float,
    ) -> torch.Tensor:
        rows = rows.contiguous(memory_format=_layout(rows))
        ctx.save_for_backward(rows, weight, total, mean, scale)
        ctx.share, ctx.bias = share, None if bias is None else bias.dtype
        return _apply(rows, weight, bias, mean, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, total, mean, scale = ctx.saved_tensors
        grad = grad.contiguous(memory_format=_layout(rows))
        sums = _sums(grad, rows, mean, scale, weight)
        for_weight = None if weight is None else (sums[1] * scale).to(weight.dtype)
        for_bias = None if ctx.bias is None else sums[0].to(ctx.bias, copy=True)
        for_rows = None
        if ctx.needs_input_grad[0]:
            totals = sums.double() * ctx.share if ctx.share else torch.zeros_like(sums, dtype=torch.float64)
            dist.all_reduce(totals)
            # Rows that made no statistics have no share in their gradient.
            totals = totals / ctx.share if ctx.share else torch.zeros_like(totals)
            for_rows = _gradient(grad, rows, weight, mean, scale, totals.to(sums.dtype), total)
        return for_rows, for_weight, for_bias, None, None, None, None


# The arithmetic: torch's kernels for GPUs, which keep nothing but half precision in memory, and plain torch elsewhere.


def _moments(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance of each channel, over this rank's rows."""
    if rows.is_cuda:
        mean, inverse = torch.batch_norm_stats(rows, 0.0)
        inverse = inverse.double()  # of the deviation; 0 or infinite where all values are the same
        return mean, torch.where((inverse > 0) & inverse.isfinite(), inverse.square().reciprocal(), 0.0)
    variance, mean = torch.var_mean(rows.to(_precision(rows)), _over(rows), unbiased=False)
    return mean, variance.double()


def _apply(
    rows: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    if rows.is_cuda:
        result: torch.Tensor = torch.batch_norm_elemt(rows, weight, bias, mean, scale, 0.0)
        return result
    output = (rows.to(mean.dtype) - _spread(mean, rows)) * _spread(scale, rows)
    if weight is not None:
        output = output * _spread(weight.to(mean.dtype), rows)
    if bias is not None:
        output = output + _spread(bias.to(mean.dtype), rows)
    return output.to(rows.dtype)


def _sums(
    grad: torch.Tensor, rows: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    """Return two sums over this rank's rows: of gradients, and of gradients times distances from the mean."""
    if rows.is_cuda:
        sums = torch.batch_norm_backward_reduce(grad, rows, mean, scale, weight, True, False, False)
        return torch.stack(sums[:2])
    grad, distance = grad.to(mean.dtype), rows.to(mean.dtype) - _spread(mean, rows)
    return torch.stack([grad.sum(_over(rows)), (grad * distance).sum(_over(rows))])


def _gradient(
    grad: torch.Tensor,
    rows: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
    sums: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of rows, given the sums over all ranks."""
    if rows.is_cuda:
        size = total.clamp(min=1).to(torch.int32).view(1)
        back: torch.Tensor = torch.batch_norm_backward_elemt(grad, rows, mean, scale, weight, sums[0], sums[1], size)
        return back
    shift, tilt = sums / total.clamp(min=1).to(sums.dtype)
    distance = rows.to(mean.dtype) - _spread(mean, rows)
    factor = scale if weight is None else scale * weight.to(scale.dtype)
    distance_grad = grad.to(mean.dtype) - _spread(shift, rows) - distance * _spread(tilt * scale.square(), rows)
    return (distance_grad * _spread(factor, rows)).to(rows.dtype)


def _layout(rows: torch.Tensor) -> torch.memory_format:
    """Return how rows lie in memory: a gradient must lie as they do."""
    for layout in (torch.channels_last, torch.channels_last_3d):
        if rows.is_contiguous(memory_format=layout):
            return layout
    return torch.contiguous_format


def _spread(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return one number a channel, so that it goes with rows."""
    return values.view(-1, *[1] * (rows.dim() - 2))


def _over(rows: torch.Tensor) -> list[int]:
    """Return the dimensions statistics are taken over: all but the channels."""
    return [0, *range(2, rows.dim())]


def _values(rows: torch.Tensor) -> int:
    """Return how many values a channel has."""
    return rows.numel() // rows.shape[1] if rows.shape[1] else 0


def _precision(rows: torch.Tensor) -> torch.dtype:
    """Return the precision to count in: half precision has too little."""
    return torch.float32 if rows.dtype in (torch.float16, torch.bfloat16) else rows.dtype
