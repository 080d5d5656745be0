"""Targets: how labels meet outputs. Owns dtype and shape of a target, so that nothing broadcasts by accident."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from orca.core.tree import flatten

_CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_CLASS_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)


def takes_classes(loss: Any) -> bool:
    """Say whether a loss compares outputs with class numbers."""
    return isinstance(loss, _CLASS_LOSSES) or loss in _CLASS_FUNCTIONS


def weighs(loss: Any, target: Any) -> bool:
    """Say whether a loss divides by its targets' weights: then ranks must add these up, not their rows.

    Class numbers of more than one dimension (a class for each token or pixel) may hold torch's default ignore_index.
    """
    if not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) or loss.reduction != "mean":
        return False
    leaf = flatten(target)[0][0]
    wide = max([1, *leaf.shape[1:]]) > 1
    if wide and "float" in str(leaf.dtype):
        return False  # probabilities: torch divides by the rows
    return loss.weight is not None or loss.ignore_index != -100 or wide


def mass_of(loss: Any, target: torch.Tensor) -> torch.Tensor:
    """Return what such a loss divides by: the sum of the weights of the targets that count."""
    kept = target[target != loss.ignore_index]
    return torch.tensor(kept.numel()) if loss.weight is None else loss.weight[kept].sum()


def align(output: torch.Tensor, target: torch.Tensor, classes: bool) -> torch.Tensor:
    """Give a target the dtype and shape that the loss compares the output with.

    >>> align(torch.zeros(2, 1), torch.tensor([1, 2]), classes=False)
    tensor([[1.],
            [2.]])
    >>> align(torch.zeros(2, 3), torch.tensor([[1.0], [2.0]]), classes=True)
    tensor([1, 2])
    """
    if classes:
        if target.is_floating_point() and target.shape == output.shape:
            return target.to(output.dtype)  # probabilities of every class
        shape = (output.shape[0], *output.shape[2:])
        return (target.reshape(shape) if _same_rows(target.shape, shape) else target).long()
    if _same_rows(target.shape, output.shape):
        target = target.reshape(output.shape)
    if output.is_floating_point() and (target.is_floating_point() or target.shape == output.shape):
        target = target.to(output.dtype)
    return target


def align_all(output: Any, target: Any, classes: bool) -> tuple[list[Any], list[Any]]:
    """Flatten outputs and targets and align each target with the output at its place."""
    outputs, targets = flatten(output)[0], flatten(target)[0]
    if len(outputs) == len(targets):
        targets = [
            align(o, t, classes) if isinstance(o, torch.Tensor) and isinstance(t, torch.Tensor) else t
            for o, t in zip(outputs, targets, strict=True)
        ]
    return outputs, targets


def _same_rows(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Say whether shapes differ by dimensions of 1 alone: any other reshape would mix the values of a row."""
    return [size for size in one if size != 1] == [size for size in other if size != 1]
