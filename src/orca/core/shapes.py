"""Shapes: outputs of a model beside their targets. Owns what counts as one shape, and where classes lie."""

from __future__ import annotations

from typing import Any

from orca.errors import DataError

Tensor = Any  # a torch tensor; torch is loaded with the first batch


def unfit(name: str, output: Tensor, target: Tensor, need: str) -> DataError:
    """Return the error that an output and its target lack what a metric needs."""
    return DataError(
        f"{name} needs {need}; got output {tuple(output.shape)} and target {tuple(target.shape)}.",
        code="metric-shapes-differ",
    )


def core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of length 1, but with its rows."""
    return (*shape[:1], *(length for length in shape[1:] if length != 1))


def shaped(name: str, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in double precision and the output's shape: (n,) and (n, 1) are the same, nothing is broadcast."""
    if core(output.shape) != core(target.shape):
        raise unfit(name, output, target, "targets in the shape of the outputs")
    return double(output), double(target.reshape(output.shape))


def classes_last(name: str, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output with its classes on the last axis, and the labels in its shape without that axis."""
    shape = tuple(output.shape)
    for axis in (1, len(shape) - 1):  # torch's place for classes, then Keras'
        rest = shape[:axis] + shape[axis + 1 :]
        if len(shape) > 1 and core(rest) == core(target.shape):
            return output.movedim(axis, -1), double(target.reshape(rest))
    raise unfit(name, output, target, "outputs (n, classes) and a class number per row (n,)")


def double(value: Any) -> Tensor:
    """Return numbers as a tensor in double precision."""
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()  # Apple's GPUs have no float64


def largest(scores: Tensor) -> Tensor:
    """Return the number of the largest class, on the last axis."""
    return (scores if scores.is_floating_point() else double(scores)).argmax(-1)
