"""Initial: how weights begin, and penalties on them. Owns BigDL's initialisation methods and regularizers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from orca.errors import KnownArguments

# Torch is loaded by whoever has weights to fill.

Tensor = Any


class InitializationMethod(KnownArguments):
    """A way to draw weights."""

    def fill(self, tensor: Tensor, groups: int = 1) -> None:
        """Draw the numbers of a weight in place."""
        self._draw(tensor.data, groups)

    def _draw(self, tensor: Tensor, groups: int) -> None:
        raise NotImplementedError


def _fans(tensor: Tensor, groups: int) -> tuple[int, int]:
    """Return how many numbers enter and leave a unit, of one group."""
    if tensor.dim() < 2:
        return max(tensor.numel(), 1), max(tensor.numel(), 1)
    window = tensor[0][0].numel()
    return tensor.shape[1] * window, tensor.shape[0] // groups * window


@dataclass(frozen=True)
class Zeros(InitializationMethod):
    """All 0."""

    def _draw(self, tensor: Tensor, groups: int) -> None:
        tensor.zero_()


@dataclass(frozen=True)
class Ones(InitializationMethod):
    """All 1."""

    def _draw(self, tensor: Tensor, groups: int) -> None:
        tensor.fill_(1)


@dataclass(frozen=True)
class ConstInitMethod(InitializationMethod):
    """All one value."""

    value: float

    def _draw(self, tensor: Tensor, groups: int) -> None:
        tensor.fill_(self.value)


@dataclass(frozen=True)
class RandomUniform(InitializationMethod):
    """Uniform between two bounds in any order, or between +-1 / sqrt(inputs of a unit)."""

    upper: float | None = None
    lower: float | None = None

    def _draw(self, tensor: Tensor, groups: int) -> None:
        bound = 1 / math.sqrt(_fans(tensor, groups)[0])
        ends = (-bound, bound) if self.upper is None or self.lower is None else (self.upper, self.lower)
        tensor.uniform_(min(ends), max(ends))


@dataclass(frozen=True)
class RandomNormal(InitializationMethod):
    """Normal, of a mean and a deviation."""

    mean: float
    stdv: float

    def _draw(self, tensor: Tensor, groups: int) -> None:
        tensor.normal_(self.mean, self.stdv)


@dataclass(frozen=True)
class Xavier(InitializationMethod):
    """Uniform between +-sqrt(6 / (inputs + outputs of a unit))."""

    def _draw(self, tensor: Tensor, groups: int) -> None:
        bound = math.sqrt(6 / sum(_fans(tensor, groups)))
        tensor.uniform_(-bound, bound)


@dataclass(frozen=True)
class MsraFiller(InitializationMethod):
    """Normal around 0, of a variance 2 / n: n is the mean of a unit's inputs and outputs, or its outputs."""

    varianceNormAverage: bool = True

    def _draw(self, tensor: Tensor, groups: int) -> None:
        inputs, outputs = _fans(tensor, groups)
        count = (inputs + outputs) / 2 if self.varianceNormAverage else outputs
        tensor.normal_(0, math.sqrt(2 / count))


@dataclass(frozen=True)
class HeNormal(InitializationMethod):
    """Normal around 0, of a variance 2 / inputs of a unit, as Keras's he_normal."""

    def _draw(self, tensor: Tensor, groups: int) -> None:
        tensor.normal_(0, math.sqrt(2 / _fans(tensor, groups)[0]))


@dataclass(frozen=True)
class BilinearFiller(InitializationMethod):
    """The kernel with which a transposed convolution makes images larger, between their pixels."""

    def _draw(self, tensor: Tensor, groups: int) -> None:
        import torch

        height, width = tensor.shape[-2:]
        rows, columns = (_tent(size, torch) for size in (height, width))
        tensor.copy_((rows[:, None] * columns[None, :]).expand_as(tensor))


def _tent(size: int, torch: Any) -> Tensor:
    factor = math.ceil(size / 2)
    middle = (2 * factor - 1 - factor % 2) / (2 * factor)
    return 1 - (torch.arange(size) / factor - middle).abs()


@dataclass(frozen=True)
class L1L2Regularizer(KnownArguments):
    """A penalty on weights: its gradient is l1 sign(w) + l2 w."""

    l1: float
    l2: float


@dataclass(frozen=True)
class L1Regularizer(L1L2Regularizer):
    """A penalty on the size of weights: its gradient is l1 sign(w)."""

    def __init__(self, l1: float) -> None:
        super().__init__(l1, 0.0)


@dataclass(frozen=True)
class L2Regularizer(L1L2Regularizer):
    """A penalty on the square of weights: its gradient is l2 w."""

    def __init__(self, l2: float) -> None:
        super().__init__(0.0, l2)


METHODS = {kind.__name__: kind for kind in (Zeros, Ones, ConstInitMethod, RandomUniform, RandomNormal, Xavier,
                                            MsraFiller, BilinearFiller)}  # fmt: skip
REGULARIZERS = {kind.__name__: kind for kind in (L1L2Regularizer, L1Regularizer, L2Regularizer)}
