"""Shapes: outputs of a model beside their targets. Owns what counts as one shape, where classes lie, and which outputs
are probabilities.

A link is what makes probabilities of outputs: "sigmoid", "softmax", or "" if it is not known.
"""

from __future__ import annotations

from typing import Any

from orca.errors import DataError

Tensor = Any  # a torch tensor; torch is loaded with the first batch

SLACK = 1e-6  # how far rounding may carry a probability out of [0, 1]


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
        if len(shape) > 1 and shape[axis] > 1 and core(rest) == core(target.shape):
            return output.movedim(axis, -1), double(target.reshape(rest))
    raise unfit(name, output, target, "outputs (n, classes) of at least two classes and a class number per row (n,)")


def double(value: Any) -> Tensor:
    """Return numbers as a tensor in double precision."""
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()  # Apple's GPUs have no float64


def largest(scores: Tensor) -> Tensor:
    """Return the number of the largest class, on the last axis."""
    return (scores if scores.is_floating_point() else double(scores)).argmax(-1)


def one_hot(name: str, link: str, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with their classes on the last axis. torch's losses have them on axis 1."""
    axis = 1 if link == "softmax" else -1
    if output.ndim < 2 or output.shape != target.shape or output.shape[axis] < 2:
        need = "outputs (n, classes) of at least two classes, and one-hot targets in the same shape"
        raise unfit(name, output, target, f"{need} (the metrics named Sparse... take class numbers)")
    return output.movedim(axis, -1), target.movedim(axis, -1)


def count_ambiguous(name: str, link: str, output: Tensor, target: Tensor) -> Any:
    """Return how many one-hot targets name several classes, or none; 0 for targets that are none."""
    if output.shape != target.shape or is_binary(link, output, target):
        return 0
    target = double(one_hot(name, link, output, target)[1])
    return ((target == target.amax(-1, keepdim=True)).sum(-1) > 1).sum()


def refuse_ambiguous(name: str, count: Any) -> None:
    """Raise a clear error if one-hot targets name several classes, or none."""
    if count > 0:
        raise DataError(
            f"{name} compares the largest class of a row, and {int(count)} targets name several classes, or none. "
            "Pass BinaryAccuracy() for several labels a row: it compares each of them.",
            code="several-classes-per-row",
        )


def of_labels(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which labels are classes, their numbers (of a class in any case), and their scores: all (..., 1)."""
    labels, classes = double(labels).unsqueeze(-1), scores.shape[-1]
    numbers = labels.clip(0, classes - 1).nan_to_num().long()
    return (labels >= 0) & (labels < classes), numbers, double(scores.gather(-1, numbers))


def is_binary(link: str, output: Tensor, target: Tensor) -> bool:
    """Return whether each output says 1 or 0: there is no axis of classes."""
    is_single = output.ndim == 1 or output.shape[1] == 1 or (output.shape[-1] == 1 and link != "softmax")
    return is_single and core(output.shape) == core(target.shape)


def has_class_logits(output: Tensor, link: str) -> bool:
    """Return whether outputs are logits of classes, which lie on axis 1."""
    return link == "softmax" and output.ndim > 1 and output.shape[1] > 1


def probabilities(output: Tensor, link: str) -> Tensor:
    """Return outputs as probabilities if the loss says what makes them of these, else as they are."""
    if link == "sigmoid":
        return double(output).sigmoid()
    return double(output).softmax(1) if has_class_logits(output, link) else double(output)


def is_two_class(output: Tensor, target: Tensor) -> bool:
    """Return whether outputs are (n, 2) beside n targets: two classes, of which 1 is the positive one."""
    return output.ndim == 2 and output.shape[1] == 2 and len(core(target.shape)) == 1


def count_outside(chance: Tensor) -> Tensor:
    """Return how many numbers are no probabilities."""
    chance = double(chance)
    return ((chance < -SLACK) | (chance > 1 + SLACK)).sum()


def refuse_outside(name: str, outside: Any, advice: str) -> None:
    """Raise a clear error if there are such: in the end, as to look at each batch would wait for the device."""
    if outside:
        raise DataError(
            f"{name} needs probabilities as outputs; {int(outside)} lie outside [0, 1]. {advice}",
            code="outputs-not-probabilities",
        )
