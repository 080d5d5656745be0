"""Initial: how weights begin, and penalties on them. Owns BigDL's initialisation methods and regularizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from orca.errors import KnownArguments
from orca_classic.bigdl.feature.values import computed, value_class

Tensor = Any  # torch is loaded by the caller, who has weights to fill


class InitializationMethod(KnownArguments):
    """A way to draw weights."""

    function: ClassVar[Callable[..., Any]]  # of the tensor, its fans and the arguments

    def fill(self, tensor: Tensor, groups: int = 1) -> None:
        """Draw the numbers of a weight in place."""
        computed(self, tensor.data, _fans(tensor, groups))


def _fans(tensor: Tensor, groups: int) -> tuple[int, int]:
    """Return how many numbers enter and leave a unit, of one group."""
    if tensor.dim() < 2:
        return max(tensor.numel(), 1), max(tensor.numel(), 1)
    window = tensor[0][0].numel()
    return tensor.shape[1] * window, tensor.shape[0] // groups * window


def _uniform(tensor: Tensor, fans: tuple[int, int], upper: float | None = None, lower: float | None = None) -> None:
    bound = 1 / math.sqrt(fans[0])
    ends = (-bound, bound) if upper is None or lower is None else (upper, lower)
    tensor.uniform_(min(ends), max(ends))


def _xavier(tensor: Tensor, fans: tuple[int, int]) -> None:
    bound = math.sqrt(6 / sum(fans))
    tensor.uniform_(-bound, bound)


def _msra(tensor: Tensor, fans: tuple[int, int], varianceNormAverage: bool = True) -> None:
    tensor.normal_(0, math.sqrt(2 / (sum(fans) / 2 if varianceNormAverage else fans[1])))


def _bilinear(tensor: Tensor, fans: tuple[int, int]) -> None:
    rows, columns = (_tent(size, tensor) for size in tensor.shape[-2:])
    tensor.copy_((rows[:, None] * columns[None, :]).expand_as(tensor))


def _tent(size: int, like: Tensor) -> Tensor:
    factor = math.ceil(size / 2)
    middle = (2 * factor - 1 - factor % 2) / (2 * factor)
    return 1 - (like.new_ones(size).cumsum(0).sub(1) / factor - middle).abs()


_method = partial(value_class, InitializationMethod)
Zeros = _method("Zeros", lambda tensor, fans: tensor.zero_(), "All 0.")
Ones = _method("Ones", lambda tensor, fans: tensor.fill_(1), "All 1.")
ConstInitMethod = _method("ConstInitMethod", lambda tensor, fans, value: tensor.fill_(value), "All one value.")
RandomUniform = _method("RandomUniform", _uniform,
    "Uniform between two bounds in any order, or between +-1 / sqrt(inputs of a unit).")  # fmt: skip
RandomNormal = _method("RandomNormal", lambda tensor, fans, mean, stdv: tensor.normal_(mean, stdv),
    "Normal, of a mean and a deviation.")  # fmt: skip
Xavier = _method("Xavier", _xavier, "Uniform between +-sqrt(6 / (inputs + outputs of a unit)).")
MsraFiller = _method("MsraFiller", _msra,
    "Normal around 0, of a variance 2 / n: n is the mean of a unit's inputs and outputs, or its outputs.")  # fmt: skip
BilinearFiller = _method("BilinearFiller", _bilinear,
    "The kernel with which a transposed convolution makes images larger, between their pixels.")  # fmt: skip
HeNormal = _method("HeNormal", lambda tensor, fans: tensor.normal_(0, math.sqrt(2 / fans[0])),
    "Normal around 0, of a variance 2 / inputs of a unit, as Keras's he_normal.")  # fmt: skip
METHODS = {kind.__name__: kind for kind in (Zeros, Ones, ConstInitMethod, RandomUniform, RandomNormal, Xavier,
                                            MsraFiller, BilinearFiller)}  # fmt: skip


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


REGULARIZERS = {kind.__name__: kind for kind in (L1L2Regularizer, L1Regularizer, L2Regularizer)}
