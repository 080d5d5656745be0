"""Layers: BigDL's layers as rows, but the recurrent ones. Owns what each computes; a row is a function or a small module.

A function of `x` has no weights; another function returns a torch module; a class is one. `layer.py` makes Layer classes
of them. Dimensions, places and indices count from 1, from the end where negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orca.bigdl.layer import LAYERS, Identity, Node, Parts, layer
from orca.errors import ArgumentError, DataError

INTMIN, INTMAX, DOUBLEMAX = -(2**31), 2**31 - 1, 1.7976931348623157e308


def axis(dim: int, x: Tensor, n_input_dims: int = 0) -> int:
    """Return a dimension as torch counts; with n_input_dims, dimension 1 comes behind that of the rows of a batch."""
    place = dim - 1 if dim > 0 else dim + x.dim()
    return place + (dim > 0 and n_input_dims > 0 and x.dim() > n_input_dims)


def place(index: int, size: int) -> int:
    """Return an index as torch counts.

    Raises:
        DataError: There is no such index.
    """
    at = index - 1 if index > 0 else index + size
    if not 0 <= at < size or index == 0:
        raise DataError(f"the index must be 1 to {size}, or -1 to {-size} from the end; got {index}.")
    return at


def nchw(x: Tensor, form: str, back: bool = False) -> Tensor:
    """Return images with channels before rows and columns, or bring them back."""
    if form.upper() in ("NCHW", "CHANNEL_FIRST", "TH"):
        return x
    return x.movedim(-3, -1) if back else x.movedim(-1, -3)


def same_padding(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Return the padding of the last dimensions with which the output has ceil(size / stride), as F.pad takes it."""
    sizes, padding = x.shape[-len(kernel) :], list[int]()
    for size, k, s in zip(sizes, kernel, stride, strict=True):
        total = max((math.ceil(size / s) - 1) * s + k - size, 0)
        padding = [total // 2, total - total // 2, *padding]
    return padding


class Input(Node):
    """A node that a graph begins with."""

    def __init__(self, name: str | None = None, bigdl_type: str = "float") -> None:
        super().__init__(Identity(), [])
        if name is not None:
            self.layer.set_name(name)


# Containers.


@layer
class Sequential(Parts):
    """Layers one behind the other."""

    def __init__(self, jvalue: Any = None) -> None:
        super().__init__()


@layer
class Concat(Parts):
    """Layers side by side on the same input, their outputs joined along a dimension."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension

    def forward(self, x: Any) -> Any:
        """Return the outputs joined."""
        outputs = self.each([x] * len(self.parts))
        return torch.cat(outputs, axis(self.dimension, outputs[0]))


@layer
class ConcatTable(Parts):
    """Layers side by side on the same input; the outputs are a table."""

    def forward(self, x: Any) -> Any:
        """Return all outputs."""
        return self.each([x] * len(self.parts))


@layer
class ParallelTable(Parts):
    """Layers each on its own tensor of a table."""

    def forward(self, x: Any) -> Any:
        """Return all outputs."""
        return self.each(x)


@layer
class MapTable(nn.Module):
    """One layer on every tensor of a table."""

    def __init__(self, module: Any = None) -> None:
        super().__init__()
        self.part = module

    def forward(self, x: Any) -> Any:
        """Return all outputs."""
        return [self.part(each) for each in x]


@layer
class Bottle(nn.Module):
    """A layer on inputs with more dimensions than it takes: the first ones are laid into one."""

    def __init__(self, module: Any, n_input_dim: int = 2, n_output_dim1: int = INTMAX) -> None:
        super().__init__()
        self.part, self.kept = module, n_input_dim - 1

    def forward(self, x: Tensor) -> Tensor:
        """Return the output with the first dimensions back."""
        lead = x.dim() - self.kept
        output = self.part(x.flatten(0, lead - 1))
        return output.unflatten(0, x.shape[:lead])


@layer
class TimeDistributed(nn.Module):
    """A layer on every step of (batch, time, ...)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.part = model

    def forward(self, x: Tensor) -> Any:
        """Return (batch, time, ...) of the outputs."""
        if x.dim() < 3:
            raise DataError("the input needs the dimensions batch, time and features")
        return self.part(x.flatten(0, 1)).unflatten(0, x.shape[:2])


# Activations and arithmetic on each number: name -> (what it says, the function). Their arguments are the function's.


def _channel(x: Tensor) -> int:
    """Return the dimension of classes: the first of one row, the second of a batch."""
    return 0 if x.dim() in (1, 3) else 1


@layer
def ReLU(x, ip=False):
    """max(x, 0)."""
    return F.relu(x)


@layer
def ReLU6(x, inplace=False):
    """min(max(x, 0), 6)."""
    return F.relu6(x)


@layer
def Tanh(x):
    """tanh(x)."""
    return torch.tanh(x)


@layer
def Sigmoid(x):
    """1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


@layer
def HardSigmoid(x):
    """0.2 x + 0.5 between 0 and 1."""
    return torch.clamp(0.2 * x + 0.5, 0, 1)


@layer
def SoftMax(x):
    """Softmax over the classes: the first dimension of one row, the second of a batch."""
    return F.softmax(x, _channel(x))


@layer
def LogSoftMax(x):
    """The logarithm of SoftMax."""
    return F.log_softmax(x, _channel(x))


@layer
def SoftMin(x):
    """Softmax of -x."""
    return F.softmin(x, _channel(x))


@layer
def SoftPlus(x, beta=1.0):
    """log(1 + exp(beta x)) / beta."""
    return F.softplus(x, beta)


@layer
def SoftShrink(x, the_lambda=0.5):
    """x moved towards 0 by lambda, 0 where it is nearer."""
    return F.softshrink(x, the_lambda)


@layer
def SoftSign(x):
    """x / (1 + |x|)."""
    return F.softsign(x)


@layer
def HardShrink(x, the_lambda=0.5):
    """x, or 0 between -lambda and lambda."""
    return F.hardshrink(x, the_lambda)


@layer
def HardTanh(x, min_value=-1.0, max_value=1.0, inplace=False):
    """x between two bounds."""
    return torch.clamp(x, min_value, max_value)


@layer
def Clamp(x, min, max):
    """x between two bounds."""
    return torch.clamp(x, min, max)


@layer
def TanhShrink(x):
    """x - tanh(x)."""
    return F.tanhshrink(x)


@layer
def Threshold(x, th=1e-6, v=0.0, ip=False):
    """x where it is over a threshold, else a value."""
    return F.threshold(x, th, v)


@layer
def BinaryThreshold(x, th=1e-6, ip=False):
    """1 where x is over a threshold, else 0."""
    return (x > th).to(x.dtype)


@layer
def ELU(x, alpha=1.0, inplace=False):
    """x, or alpha (exp(x) - 1) below 0."""
    return F.elu(x, alpha)


@layer
def LeakyReLU(x, negval=0.01, inplace=False):
    """x, or x times a small number below 0."""
    return F.leaky_relu(x, negval)


@layer
def LogSigmoid(x):
    """log(1 / (1 + exp(-x)))."""
    return F.logsigmoid(x)


@layer
def Abs(x):
    """|x|."""
    return x.abs()


@layer
def Exp(x):
    """exp(x)."""
    return x.exp()


@layer
def Log(x):
    """log(x)."""
    return x.log()


@layer
def Sqrt(x):
    """The square root."""
    return x.sqrt()


@layer
def Square(x):
    """x squared."""
    return x.square()


@layer
def Negative(x, inplace=False):
    """-x."""
    return -x


@layer
def Power(x, power, scale=1.0, shift=0.0):
    """(shift + scale x) ** power."""
    return (shift + scale * x) ** power


@layer
def AddConstant(x, constant_scalar, inplace=False):
    """x plus a number."""
    return x + constant_scalar


@layer
def MulConstant(x, scalar, inplace=False):
    """x times a number."""
    return x * scalar


@layer
def Contiguous(x):
    """x, laid out anew."""
    return x.contiguous()


@layer
def Echo(x):
    """x as it is."""
    return x


@layer
def GradientReversal(x, the_lambda=1.0):
    """x, whose gradient comes back times -lambda."""
    return (1 + the_lambda) * x.detach() - the_lambda * x


# Shapes.


@layer
def Select(x, dim, index):
    """The part of one index along a dimension, which goes."""
    at = axis(dim, x)
    return x.select(at, place(index, x.shape[at]))


@layer
def Narrow(x, dimension, offset, length=1):
    """Some indices along a dimension; a length of -1 is up to the last, -2 up to the last but one."""
    at = axis(dimension, x)
    first = place(offset, x.shape[at])
    return x.narrow(at, first, length if length > 0 else x.shape[at] - first + length + 1)


@layer
def View(x, sizes, num_input_dims=0):
    """The same numbers in another shape, row by row where there are more of them than the shape holds."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    if -1 in sizes:
        batch = x.shape[: x.dim() - num_input_dims] if num_input_dims else []
        return x.reshape(*batch, *sizes)
    rows, rest = divmod(x.numel(), math.prod(sizes))
    if rest:
        raise DataError(f"{x.numel()} numbers do not fill rows of {sizes}")
    single = rows == 1 and (
        x.dim() == num_input_dims if num_input_dims else x.dim() == 0 or x.shape[0] != 1 or x.dim() == 1
    )
    return x.reshape(sizes if single else [rows, *sizes])


@layer
def Reshape(x, size, batch_mode=None):
    """The same numbers in another shape, row by row unless batch_mode is False or the whole input fills the shape."""
    size = [size] if isinstance(size, int) else list(size)
    whole = batch_mode is None and x.numel() == math.prod(size) and x.shape[0] != 1
    return x.reshape(size if whole or batch_mode is False else [x.shape[0], *size])


@layer
def InferReshape(x, size, batch_mode=False):
    """Another shape: -1 is found out, 0 is the input's own dimension."""
    lead = [x.shape[0]] if batch_mode else []
    own = x.shape[len(lead) :]
    return x.reshape(lead + [own[at] if length == 0 else length for at, length in enumerate(size)])


@layer
def Squeeze(x, dim=None, num_input_dims=INTMIN):
    """The input without a dimension of 1, several of them, or all."""
    if dim is None:
        return x.squeeze()
    dims = [dim] if isinstance(dim, int) else dim
    return x.squeeze(tuple(axis(each, x, num_input_dims) for each in dims))


@layer
def Unsqueeze(x, pos, num_input_dims=INTMIN):
    """The input with one more dimension of 1 at a place."""
    return x.unsqueeze(pos - 1 + (0 < num_input_dims < x.dim()))


@layer
def Transpose(x, permutations):
    """The input with pairs of dimensions exchanged, one pair after the other."""
    return reduce(lambda y, pair: y.transpose(axis(pair[0], y), axis(pair[1], y)), permutations, x)


@layer
def Replicate(x, n_features, dim=1, n_dim=INTMAX):
    """The input several times, along a new dimension."""
    at = dim - 1 + (n_dim < x.dim())
    return x.unsqueeze(at).expand(*x.shape[:at], n_features, *x.shape[at:])


@layer
def Tile(x, dim=1, copies=2):
    """The input several times along a dimension."""
    return torch.cat([x] * copies, axis(dim, x))


@layer
def ExpandSize(x, sizes):
    """The input repeated to these sizes; -1 leaves a dimension alone."""
    return x.expand(*sizes)


@layer
def Reverse(x, dimension=1, is_inplace=False):
    """The input backwards along a dimension."""
    return x.flip(axis(dimension, x))


@layer
def Padding(x, dim, pad, n_input_dim, value=0.0, n_index=1):
    """The input with values before (pad below 0) or behind a place of a dimension."""
    at = axis(dim, x, n_input_dim)
    filler = x.new_full([*x.shape[:at], abs(pad), *x.shape[at + 1 :]], value)
    cut = n_index - 1 if pad < 0 else x.shape[at] - n_index + 1
    before, after = x.narrow(at, 0, cut), x.narrow(at, cut, x.shape[at] - cut)
    return torch.cat([before, filler, after], at)


@layer
def SpatialZeroPadding(x, pad_left, pad_right, pad_top, pad_bottom):
    """Images with zeros around them, or cut where a number is below 0."""
    return F.pad(x, [pad_left, pad_right, pad_top, pad_bottom])


@layer
def Cropping2D(x, heightCrop, widthCrop, data_format="NCHW"):
    """Images without some rows and columns at their ends."""
    y = F.pad(nchw(x, data_format), [-widthCrop[0], -widthCrop[1], -heightCrop[0], -heightCrop[1]])
    return nchw(y, data_format, back=True)


@layer
def Cropping3D(x, dim1Crop, dim2Crop, dim3Crop, data_format="channel_first"):
    """Volumes without some planes at their ends."""
    last = data_format.lower() != "channel_first"
    y = x.movedim(-1, -4) if last else x
    y = F.pad(y, [-size for crop in (dim3Crop, dim2Crop, dim1Crop) for size in crop])
    return y.movedim(-4, -1) if last else y


def _over(x: Tensor, dim: int, n_input_dims: int) -> int:
    return axis(dim, x, n_input_dims)


@layer
def Max(x, dim=1, num_input_dims=INTMIN):
    """The largest along a dimension."""
    return x.amax(_over(x, dim, num_input_dims))


@layer
def Min(x, dim=1, num_input_dims=INTMIN):
    """The smallest along a dimension."""
    return x.amin(_over(x, dim, num_input_dims))


@layer
def Mean(x, dimension=1, n_input_dims=-1, squeeze=True):
    """The mean along a dimension."""
    return x.mean(_over(x, dimension, n_input_dims), keepdim=not squeeze)


@layer
def Sum(x, dimension=1, n_input_dims=-1, size_average=False, squeeze=True):
    """The sum (or mean) along a dimension."""
    at = _over(x, dimension, n_input_dims)
    return x.mean(at, keepdim=not squeeze) if size_average else x.sum(at, keepdim=not squeeze)


@layer
def Masking(x, mask_value=0.0):
    """Steps of time whose features all have a value, as zeros."""
    return x * (x != mask_value).any(-1, keepdim=True).to(x.dtype)


# Tables.


@layer
def CAddTable(x, inplace=False):
    """The sum of all tensors."""
    return reduce(torch.add, x)


@layer
def CSubTable(x):
    """The first tensor minus the second."""
    return x[0] - x[1]


@layer
def CMulTable(x):
    """The product of all tensors."""
    return reduce(torch.mul, x)


@layer
def CDivTable(x):
    """The first tensor divided by the second."""
    return x[0] / x[1]


@layer
def CMaxTable(x):
    """The largest of all tensors, number by number."""
    return reduce(torch.maximum, x)


@layer
def CMinTable(x):
    """The smallest of all tensors, number by number."""
    return reduce(torch.minimum, x)


@layer
def CAveTable(x, inplace=False):
    """The mean of all tensors."""
    return reduce(torch.add, x) / len(x)


@layer
def JoinTable(x, dimension, n_input_dims=-1):
    """The tensors joined along a dimension."""
    return torch.cat(list(x), axis(dimension, x[0], n_input_dims))


@layer
def Pack(x, dimension):
    """The tensors stacked along a new dimension."""
    tensors = list(x) if isinstance(x, list | tuple) else [x]
    return torch.stack(tensors, dimension - 1)


@layer
def SelectTable(x, index):
    """One tensor of the table."""
    return x[place(index, len(x))]


@layer
def NarrowTable(x, offset, length=1):
    """Some tensors of the table; a length of -1 is up to the last."""
    first = place(offset, len(x))
    last = first + length if length > 0 else len(x) + length + 1
    return list(x[first:last])


@layer
def FlattenTable(x):
    """The tensors of tables in tables, in one table."""
    flat = [part for each in x for part in (FlattenTable.made_by.function(each) if isinstance(each, list) else [each])]
    return flat


@layer
def SplitTable(x, dimension, n_input_dims=-1):
    """The parts of every index along a dimension."""
    return list(x.unbind(axis(dimension, x, n_input_dims)))


@layer
def BifurcateSplitTable(x, dimension):
    """The two halves along a dimension."""
    at = axis(dimension, x)
    half = x.shape[at] // 2
    return [x.narrow(at, 0, half), x.narrow(at, half, x.shape[at] - half)]


@layer
def MM(x, trans_a=False, trans_b=False):
    """The matrix product of two tensors."""
    a, b = (each.transpose(-2, -1) if turned else each for each, turned in zip(x, (trans_a, trans_b), strict=True))
    return a @ b


@layer
def MV(x, trans=False):
    """The product of a matrix and a vector."""
    return ((x[0].transpose(-2, -1) if trans else x[0]) @ x[1].unsqueeze(-1)).squeeze(-1)


@layer
def Gemm(x, alpha=1.0, beta=1.0, trans_a=False, trans_b=False):
    """alpha A B + beta C of a table of three matrices."""
    a, b = (each.transpose(-2, -1) if turned else each for each, turned in zip(x[:2], (trans_a, trans_b), strict=True))
    return alpha * (a @ b) + beta * x[2]


@layer
def DotProduct(x):
    """The dot product of two tensors, row by row."""
    return (x[0] * x[1]).sum(-1)


@layer
def CosineDistance(x):
    """The cosine between two tensors, row by row."""
    return F.cosine_similarity(x[0], x[1], dim=-1)


@layer
def PairwiseDistance(x, norm=2):
    """The distance between two tensors, row by row."""
    return torch.linalg.vector_norm(x[0] - x[1], ord=norm, dim=-1)


@layer
def CrossProduct(x, numTensor=0, embeddingSize=0):
    """The dot products of all pairs of tensors, row by row."""
    pairs = [(x[i] * x[j]).sum(-1) for i in range(len(x)) for j in range(i + 1, len(x))]
    return torch.stack(pairs, -1)


@layer
def MixtureTable(x, dim=INTMAX):
    """Experts (a table, or a tensor with a dimension of them) weighed by a gater (batch, experts)."""
    gater, experts = x
    tensor = (
        torch.stack(list(experts), 1)
        if isinstance(experts, list | tuple)
        else experts.movedim(_expert(dim, experts), 1)
    )
    weights = gater.reshape(*gater.shape, *[1] * (tensor.dim() - gater.dim()))
    return (weights * tensor).sum(1)


def _expert(dim: int, experts: Tensor) -> int:
    return 1 if dim == INTMAX else axis(dim, experts)


@layer
def Index(x, dimension):
    """The entries of the first tensor along a dimension that the second names."""
    return x[0].index_select(axis(dimension, x[0]), x[1].long().reshape(-1) - 1)


@layer
def MaskedSelect(x):
    """The numbers of the first tensor where the second is not 0."""
    return x[0].masked_select(x[1] != 0)


@layer
class TableOperation(nn.Module):
    """An operation on two tensors, the smaller one expanded to the other's shape."""

    def __init__(self, operation_layer: Any) -> None:
        super().__init__()
        self.part = operation_layer

    def forward(self, x: Any) -> Any:
        """Return the operation's output."""
        return self.part(list(torch.broadcast_tensors(*x)))


# Randomness.


@layer
class Dropout(nn.Module):
    """Zeros in place of some numbers in training; the others are scaled up unless scale is False."""

    def __init__(self, init_p: float = 0.5, inplace: bool = False, scale: bool = True) -> None:
        super().__init__()
        self.p, self.scale = init_p, scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with some numbers dropped."""
        y = F.dropout(x, self.p, self.training)
        return y if self.scale or not self.training else y * (1 - self.p)


class _ChannelDropout(nn.Module):
    """Whole channels dropped: the dimensions that a mask has one number for."""

    def __init__(self, p: float, spread: Sequence[int]) -> None:
        super().__init__()
        self.p, self.spread = p, tuple(spread)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with some channels dropped."""
        if not self.training:
            return x
        shape = [1 if at - x.dim() in self.spread else size for at, size in enumerate(x.shape)]
        return x * F.dropout(x.new_ones(shape), self.p)


@layer
def SpatialDropout1D(init_p=0.5):
    """Whole features of (batch, time, features) dropped in training."""
    return _ChannelDropout(init_p, [-2])


@layer
def SpatialDropout2D(init_p=0.5, data_format="NCHW"):
    """Whole channels of images dropped in training."""
    return _ChannelDropout(init_p, [-2, -1] if data_format.upper() == "NCHW" else [-3, -2])


@layer
def SpatialDropout3D(init_p=0.5, data_format="NCHW"):
    """Whole channels of volumes dropped in training."""
    return _ChannelDropout(init_p, [-3, -2, -1] if data_format.upper() == "NCHW" else [-4, -3, -2])


@layer
class GaussianDropout(nn.Module):
    """The input times random numbers around 1, in training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.deviation = math.sqrt(rate / (1 - rate))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with noise."""
        return x * (1 + self.deviation * torch.randn_like(x)) if self.training else x


@layer
class GaussianNoise(nn.Module):
    """The input plus random numbers around 0, in training."""

    def __init__(self, stddev: float) -> None:
        super().__init__()
        self.deviation = stddev

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with noise."""
        return x + self.deviation * torch.randn_like(x) if self.training else x


@layer
def GaussianSampler(x):
    """A draw from the normal distribution of a table (mean, logarithm of the variance)."""
    return x[0] + torch.exp(0.5 * x[1]) * torch.randn_like(x[0])


@layer
def RReLU(lower=1.0 / 8, upper=1.0 / 3, inplace=False):
    """x, or below 0 x times a random number in training, the middle one otherwise."""
    return nn.RReLU(lower, upper)


# Weights, without images.


class Weights(nn.Module):
    """A module that draws its weights uniformly between +-1 / sqrt(fan_in), unless it says otherwise."""

    weight: Any
    bias: Any

    def __init__(self, fan_in: int, **shapes: Sequence[int] | None) -> None:
        super().__init__()
        self.fan_in = fan_in
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(*shape)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights."""
        bound = 1 / math.sqrt(max(self.fan_in, 1))
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)


@layer
def Linear(input_size, output_size, with_bias=True, wRegularizer=None, bRegularizer=None,
           init_weight=None, init_bias=None, init_grad_weight=None, init_grad_bias=None):  # fmt: skip
    """x W' + b."""
    return nn.Linear(input_size, output_size, with_bias)


@layer
class Add(Weights):
    """A bias that is learned."""

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, bias=[input_size])

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.bias.reshape(x.shape[1:] if x.numel() != self.bias.numel() else x.shape)


def _fitting(weight: Tensor, x: Tensor) -> Tensor:
    """Return a weight as it stands against an input: with a dimension for the rows of a batch where it has none."""
    return weight.unsqueeze(0) if weight.dim() < x.dim() else weight


@layer
class CAdd(Weights):
    """A bias of any shape that is learned."""

    def __init__(self, size: Sequence[int], bRegularizer: Any = None) -> None:
        super().__init__(math.prod(size), bias=size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + _fitting(self.bias, x)


@layer
class CMul(Weights):
    """A factor of any shape that is learned."""

    def __init__(self, size: Sequence[int], wRegularizer: Any = None) -> None:
        super().__init__(math.prod(size), weight=size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return x * _fitting(self.weight, x)


@layer
class Mul(Weights):
    """One factor that is learned."""

    def __init__(self) -> None:
        super().__init__(1, weight=[1])

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return x * self.weight


@layer
class Scale(Weights):
    """A factor and a bias of any shape that are learned."""

    def __init__(self, size: Sequence[int]) -> None:
        super().__init__(math.prod(size), weight=size, bias=size)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product and sum."""
        return x * _fitting(self.weight, x) + _fitting(self.bias, x)


@layer
class Bilinear(Weights):
    """x1' W x2 + b of a table of two."""

    def __init__(self, input_size1: int, input_size2: int, output_size: int, bias_res: bool = True,
                 wRegularizer: Any = None, bRegularizer: Any = None) -> None:  # fmt: skip
        super().__init__(
            input_size1, weight=[output_size, input_size1, input_size2], bias=[output_size] if bias_res else None
        )

    def forward(self, x: Any) -> Tensor:
        """Return the output."""
        return F.bilinear(x[0], x[1], self.weight, self.bias)


@layer
class Cosine(Weights):
    """The cosine between the input and each row of the weight."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__(input_size, weight=[output_size, input_size])

    def forward(self, x: Tensor) -> Tensor:
        """Return the cosines."""
        return F.normalize(x, dim=-1, eps=1e-12) @ F.normalize(self.weight, dim=-1, eps=1e-12).t()


@layer
class Euclidean(Weights):
    """The distance between the input and each column of the weight."""

    def __init__(self, input_size: int, output_size: int, fast_backward: bool = True) -> None:
        super().__init__(input_size, weight=[input_size, output_size])

    def forward(self, x: Tensor) -> Tensor:
        """Return the distances."""
        return torch.linalg.vector_norm(x.unsqueeze(-1) - self.weight, dim=-2)


@layer
def PReLU(n_output_plane=0):
    """x, or below 0 x times a number that is learned, one of each plane or one for all."""
    return nn.PReLU(max(n_output_plane, 1))


@layer
class SReLU(nn.Module):
    """x between two bounds, straight lines outside; bounds and slopes are learned."""

    def __init__(self, input_shape: Sequence[int], share_axes: Sequence[int] | None = None) -> None:
        super().__init__()
        shape = [1 if share_axes and at + 1 in share_axes else size for at, size in enumerate(input_shape)]
        self.left, self.left_slope, self.right, self.right_slope = (nn.Parameter(torch.zeros(shape)) for _ in range(4))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.zeros_(self.left)
        nn.init.ones_(self.right_slope)
        for parameter in (self.left_slope, self.right):
            nn.init.uniform_(parameter, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        over, under = self.right + self.right_slope * (x - self.right), self.left + self.left_slope * (x - self.left)
        return torch.where(x >= self.right, over, torch.where(x <= self.left, under, x))


@layer
class Maxout(nn.Module):
    """The largest of several linear layers."""

    def __init__(self, input_size: int, output_size: int, maxout_number: int, with_bias: bool = True,
                 w_regularizer: Any = None, b_regularizer: Any = None, init_weight: Any = None, init_bias:
                 Any = None) -> None:  # fmt: skip
        super().__init__()
        self.number, self.linear = maxout_number, nn.Linear(input_size, output_size * maxout_number, with_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest."""
        return self.linear(x).unflatten(-1, (self.number, -1)).amax(-2)


@layer
class Highway(nn.Module):
    """A gate between the input and a layer on it."""

    def __init__(self, size: int, with_bias: bool = True, activation: Any = None, wRegularizer: Any = None,
                 bRegularizer: Any = None) -> None:  # fmt: skip
        super().__init__()
        self.gate, self.linear, self.activation = (
            nn.Linear(size, size, with_bias),
            nn.Linear(size, size, with_bias),
            activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture."""
        share, made = torch.sigmoid(self.gate(x)), self.linear(x)
        return share * (made if self.activation is None else self.activation(made)) + (1 - share) * x


@layer
class LookupTable(nn.Module):
    """The row of the weight for each index, which counts from 1."""

    def __init__(self, n_index: int, n_output: int, padding_value: float = 0.0, max_norm: float =
                 DOUBLEMAX, norm_type: float = 2.0, should_scale_grad_by_freq: bool = False, wRegularizer:
                 Any = None) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_index, n_output))
        self.padding = int(padding_value) - 1 if padding_value else None
        self.limit, self.norm, self.by_frequency = max_norm, norm_type, should_scale_grad_by_freq

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows."""
        indices = x.long() - 1
        if indices.numel() and not (int(indices.min()) >= 0 and int(indices.max()) < len(self.weight)):
            raise DataError(f"an index counts from 1 to {len(self.weight)}; got {int(x.min())} to {int(x.max())}")
        limit = self.limit if self.limit < 1e30 else None
        return F.embedding(indices, self.weight, self.padding, limit, self.norm, self.by_frequency)


@layer
def Normalize(x, p=2.0, eps=1e-10):
    """The input divided by its norm over the features: the first dimension of one row, the second of a batch."""
    at = 0 if x.dim() == 1 else 1
    if p == math.inf:
        return x / (x.abs().amax(at, keepdim=True) + eps)
    return x / ((x.abs() ** p).sum(at, keepdim=True) + eps) ** (1 / p)


@layer
class NormalizeScale(nn.Module):
    """Normalize, times a factor that is learned."""

    def __init__(
        self, p: float, scale: float, size: Sequence[int], w_regularizer: Any = None, eps: float = 1e-10
    ) -> None:
        super().__init__()
        self.p, self.scale, self.eps, self.weight = p, scale, eps, nn.Parameter(torch.full(tuple(size), float(scale)))

    def reset_parameters(self) -> None:
        """Set the factor."""
        nn.init.constant_(self.weight, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output."""
        return Normalize.made_by.function(x, self.p, self.eps) * _fitting(self.weight, x)


@layer
def LayerNormalization(hidden_size):
    """The input with mean 0 and deviation 1 over its last dimension, scaled."""
    return nn.LayerNorm(hidden_size, eps=1e-6)


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization over dimension 1 behind the rows; its factors begin between 0 and 1, as BigDL's do."""

    def __init__(self, size: int, eps: float, momentum: float, affine: bool, form: str = "NCHW") -> None:
        self.form = form
        super().__init__(size, eps, momentum, affine)

    def reset_parameters(self) -> None:
        """Draw the factors."""
        self.reset_running_stats()
        if self.affine:
            nn.init.uniform_(self.weight)
            nn.init.zeros_(self.bias)

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input; a row alone is a batch of one."""
        alone = x.dim() in (1, 3)
        y = nchw(x.unsqueeze(0) if alone else x, self.form) if x.dim() > 2 else x.unsqueeze(0) if alone else x
        y = super().forward(y)
        y = nchw(y, self.form, back=True) if x.dim() > 2 else y
        return y.squeeze(0) if alone else y


@layer
def BatchNormalization(n_output, eps=1e-5, momentum=0.1, affine=True, init_weight=None, init_bias=None,
                       init_grad_weight=None, init_grad_bias=None):  # fmt: skip
    """(batch, features) with mean 0 and deviation 1 over the batch, scaled."""
    return _BatchNorm(n_output, eps, momentum, affine)


@layer
def SpatialBatchNormalization(n_output, eps=1e-5, momentum=0.1, affine=True, init_weight=None, init_bias=None,
                              init_grad_weight=None, init_grad_bias=None, data_format="NCHW"):  # fmt: skip
    """Images with mean 0 and deviation 1 of each channel over the batch, scaled."""
    return _BatchNorm(n_output, eps, momentum, affine, data_format)


@layer
class Attention(nn.Module):
    """Attention with several heads of a table (queries, keys and values, bias)."""

    def __init__(self, hidden_size: int, num_heads: int, attention_dropout: float) -> None:
        super().__init__()
        self.heads, self.p = num_heads, attention_dropout
        self.query, self.key, self.value, self.joined = (nn.Linear(hidden_size, hidden_size, False) for _ in range(4))

    def forward(self, x: Any) -> Tensor:
        """Return (batch, length, hidden)."""
        asked, known, bias = x
        q, k, v = (
            linear(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, given in ((self.query, asked), (self.key, known), (self.value, known))
        )
        mask = bias.expand(len(q), self.heads, q.shape[2], k.shape[2])
        output = F.scaled_dot_product_attention(q, k, v, mask, self.p if self.training else 0.0)
        return self.joined(output.transpose(1, 2).flatten(2))


@layer
def FeedForwardNetwork(hidden_size, filter_size, relu_dropout):
    """Two linear layers with ReLU and Dropout between them."""
    inner, outer = nn.Linear(hidden_size, filter_size), nn.Linear(filter_size, hidden_size)
    return nn.Sequential(inner, nn.ReLU(), nn.Dropout(relu_dropout), outer)


# Sequences and images.


@layer
class TemporalConvolution(Weights):
    """A convolution over time of (batch, time, features)."""

    def __init__(self, input_frame_size: int, output_frame_size: int, kernel_w: int, stride_w: int = 1,
                 propagate_back: bool = True, weight_regularizer: Any = None, bias_regularizer: Any =
                 None, init_weight: Any = None, init_bias: Any = None, init_grad_weight: Any = None,
                 init_grad_bias: Any = None) -> None:  # fmt: skip
        fan_in = input_frame_size * kernel_w
        super().__init__(fan_in, weight=[output_frame_size, fan_in], bias=[output_frame_size])
        self.kernel, self.stride, self.propagates = kernel_w, stride_w, propagate_back

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, features)."""
        weight = self.weight.unflatten(1, (self.kernel, -1)).transpose(1, 2)
        given = x if self.propagates else x.detach()
        return F.conv1d(given.transpose(-2, -1), weight, self.bias, self.stride).transpose(-2, -1)


@layer
def TemporalMaxPooling(x, k_w, d_w=-1):
    """The largest of some steps of (batch, time, features)."""
    steps = x.shape[-2] if k_w == -1 else k_w
    return F.max_pool1d(x.transpose(-2, -1), steps, steps if d_w == -1 else d_w).transpose(-2, -1)


class _Convolution(nn.Conv2d):
    """A convolution of images; padding -1 gives outputs of size / stride."""

    def __init__(self, planes: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], padding:
                 tuple[int, int], dilation: tuple[int, int] = (1, 1), groups: int = 1, bias: bool = True,
                 form: str = "NCHW", propagates: bool = True) -> None:  # fmt: skip
        self.same, self.form, self.propagates = -1 in padding, form, propagates
        super().__init__(*planes, kernel, stride, (0, 0) if self.same else padding, dilation, groups, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the images."""
        y = nchw(x if self.propagates else x.detach(), self.form)
        if self.same:
            spans = [(k - 1) * d + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
            y = F.pad(y, same_padding(y, spans, self.stride))
        return nchw(super().forward(y), self.form, back=True)


@layer
def SpatialConvolution(n_input_plane, n_output_plane, kernel_w, kernel_h, stride_w=1, stride_h=1, pad_w=0,
                       pad_h=0, n_group=1, propagate_back=True, wRegularizer=None, bRegularizer=None,
                       init_weight=None, init_bias=None, init_grad_weight=None, init_grad_bias=None,
                       with_bias=True, data_format="NCHW"):  # fmt: skip
    """A convolution of images; padding -1 gives outputs of size / stride."""
    return _Convolution((n_input_plane, n_output_plane), (kernel_h, kernel_w), (stride_h, stride_w), (pad_h, pad_w),
                        groups=n_group, bias=with_bias, form=data_format, propagates=propagate_back)  # fmt: skip


@layer
def SpatialShareConvolution(n_input_plane, n_output_plane, kernel_w, kernel_h, stride_w=1, stride_h=1, pad_w=0, pad_h=0,
                            n_group=1, propagate_back=True, wRegularizer=None, bRegularizer=None, init_weight=None,
                            init_bias=None, init_grad_weight=None, init_grad_bias=None, with_bias=True):  # fmt: skip
    """A convolution of images, as SpatialConvolution."""
    return _Convolution((n_input_plane, n_output_plane), (kernel_h, kernel_w), (stride_h, stride_w), (pad_h, pad_w),
                        groups=n_group, bias=with_bias, propagates=propagate_back)  # fmt: skip


@layer
def SpatialDilatedConvolution(n_input_plane, n_output_plane, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0,
                              dilation_w=1, dilation_h=1, wRegularizer=None, bRegularizer=None):  # fmt: skip
    """A convolution of images with holes in its kernel."""
    return _Convolution((n_input_plane, n_output_plane), (kh, kw), (dh, dw), (pad_h, pad_w), (dilation_h, dilation_w))


@layer
def SpatialFullConvolution(n_input_plane, n_output_plane, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0, adj_w=0,
                           adj_h=0, n_group=1, no_bias=False, wRegularizer=None, bRegularizer=None):  # fmt: skip
    """The transpose of a convolution: larger images."""
    return nn.ConvTranspose2d(n_input_plane, n_output_plane, (kh, kw), (dh, dw), (pad_h, pad_w), (adj_h, adj_w), n_group,
                              not no_bias)  # fmt: skip


@layer
class SpatialSeparableConvolution(nn.Module):
    """A convolution of each channel by itself, then one of 1 x 1."""

    weight_kinds: ClassVar[dict[str, str]] = {"point.weight": "point"}

    def __init__(self, n_input_channel: int, n_output_channel: int, depth_multiplier: int, kernel_w: int,
                 kernel_h: int, stride_w: int = 1, stride_h: int = 1, pad_w: int = 0, pad_h: int = 0,
                 with_bias: bool = True, data_format: str = "NCHW", w_regularizer: Any = None,
                 b_regularizer: Any = None, p_regularizer: Any = None) -> None:  # fmt: skip
        super().__init__()
        inner = n_input_channel * depth_multiplier
        self.deep = _Convolution((n_input_channel, inner), (kernel_h, kernel_w), (stride_h, stride_w), (pad_h, pad_w),
                                 groups=n_input_channel, bias=False, form=data_format)  # fmt: skip
        self.point = _Convolution((inner, n_output_channel), (1, 1), (1, 1), (0, 0), bias=with_bias, form=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Return the images."""
        return self.point(self.deep(x))


@layer
def VolumetricConvolution(n_input_plane, n_output_plane, k_t, k_w, k_h, d_t=1, d_w=1, d_h=1, pad_t=0, pad_w=0, pad_h=0,
                          with_bias=True, wRegularizer=None, bRegularizer=None):  # fmt: skip
    """A convolution of volumes."""
    same = -1 in (pad_t, pad_w, pad_h)
    if same and (d_t, d_w, d_h) != (1, 1, 1):
        raise ArgumentError(
            "VolumetricConvolution has a padding of -1 for strides of 1 alone. Give the padding in numbers."
        )
    padding: Any = "same" if same else (pad_t, pad_h, pad_w)
    return nn.Conv3d(n_input_plane, n_output_plane, (k_t, k_h, k_w), (d_t, d_h, d_w), padding, bias=with_bias)


@layer
def VolumetricFullConvolution(n_input_plane, n_output_plane, kt, kw, kh, dt=1, dw=1, dh=1, pad_t=0,
                              pad_w=0, pad_h=0, adj_t=0, adj_w=0, adj_h=0, n_group=1, no_bias=False,
                              wRegularizer=None, bRegularizer=None):  # fmt: skip
    """The transpose of a convolution of volumes."""
    return nn.ConvTranspose3d(n_input_plane, n_output_plane, (kt, kh, kw), (dt, dh, dw), (pad_t, pad_h, pad_w),
                              (adj_t, adj_h, adj_w), n_group, not no_bias)  # fmt: skip


class _Local(Weights):
    """A convolution with weights of its own at each place, over one or two dimensions behind the channels."""

    def __init__(self, planes: tuple[int, int], size: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
                 padding: Sequence[int], bias: bool = True) -> None:  # fmt: skip
        spans = zip(size, kernel, stride, padding, strict=True)
        self.out = [(n + 2 * p - k) // s + 1 for n, k, s, p in spans]
        places, fan_in = math.prod(self.out), planes[0] * math.prod(kernel)
        super().__init__(fan_in, weight=[places, planes[1], fan_in], bias=[places, planes[1]] if bias else None)
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.propagates = True

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, channels first."""
        alone = x.dim() == len(self.kernel) + 1
        y = x if self.propagates else x.detach()
        y = y.unsqueeze(0) if alone else y
        if len(self.kernel) == 1:
            y = y.unsqueeze(-2)
        one = [1] * (2 - len(self.kernel))
        zero = [0] * (2 - len(self.kernel))
        blocks = F.unfold(y, (*one, *self.kernel), padding=(*zero, *self.padding), stride=(*one, *self.stride))
        output = torch.einsum("bfp,pof->bpo", blocks, self.weight)
        output = output if self.bias is None else output + self.bias
        output = output.transpose(1, 2).unflatten(-1, self.out)
        return output.squeeze(0) if alone else output


@layer
class LocallyConnected1D(_Local):
    """A convolution over time with weights of its own at each step; (batch, time, features)."""

    def __init__(self, n_input_frame: int, input_frame_size: int, output_frame_size: int, kernel_w: int,
                 stride_w: int = 1, propagate_back: bool = True, weight_regularizer: Any = None,
                 bias_regularizer: Any = None, init_weight: Any = None, init_bias: Any = None,
                 init_grad_weight: Any = None, init_grad_bias: Any = None) -> None:  # fmt: skip
        super().__init__((input_frame_size, output_frame_size), [n_input_frame], [kernel_w], [stride_w], [0])
        self.propagates = propagate_back

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, time, features)."""
        return _Local.forward(self, x.transpose(-2, -1)).transpose(-2, -1)


@layer
class LocallyConnected2D(_Local):
    """A convolution of images with weights of its own at each place."""

    def __init__(self, n_input_plane: int, input_width: int, input_height: int, n_output_plane: int,
                 kernel_w: int, kernel_h: int, stride_w: int = 1, stride_h: int = 1, pad_w: int = 0,
                 pad_h: int = 0, propagate_back: bool = True, wRegularizer: Any = None, bRegularizer: Any
                 = None, init_weight: Any = None, init_bias: Any = None, init_grad_weight: Any = None,
                 init_grad_bias: Any = None, with_bias: bool = True, data_format: str = "NCHW") -> None:  # fmt: skip
        size, kernel, stride = [input_height, input_width], [kernel_h, kernel_w], [stride_h, stride_w]
        super().__init__((n_input_plane, n_output_plane), size, kernel, stride, [pad_h, pad_w], with_bias)
        self.form, self.propagates = data_format, propagate_back

    def forward(self, x: Tensor) -> Tensor:
        """Return the images."""
        return nchw(_Local.forward(self, nchw(x, self.form)), self.form, back=True)


@layer
def SpatialMaxPooling(x, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0, to_ceil=False, format="NCHW"):
    """The largest number of each window of images; padding -1 gives outputs of size / stride."""
    y, padding = nchw(x, format), (pad_h, pad_w)
    if -1 in padding:
        y, padding = F.pad(y, same_padding(y, (kh, kw), (dh, dw)), value=-math.inf), (0, 0)
    return nchw(F.max_pool2d(y, (kh, kw), (dh, dw), padding, ceil_mode=to_ceil), format, back=True)


@layer
def SpatialAveragePooling(x, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0, global_pooling=False, ceil_mode=False,
                          count_include_pad=True, divide=True, format="NCHW"):  # fmt: skip
    """The mean (or sum) of each window of images; padding -1 gives outputs of size / stride."""
    y, padding = nchw(x, format), (pad_h, pad_w)
    (kh, kw), (dh, dw) = (y.shape[-2:], (1, 1)) if global_pooling else ((kh, kw), (dh, dw))
    if -1 in padding:
        pad = same_padding(y, (kh, kw), (dh, dw))
        sums, counts = (
            F.avg_pool2d(F.pad(each, pad), (kh, kw), (dh, dw), divisor_override=1) for each in (y, torch.ones_like(y))
        )
        return nchw(sums / counts if divide else sums, format, back=True)
    output = F.avg_pool2d(y, (kh, kw), (dh, dw), padding, ceil_mode, count_include_pad, None if divide else 1)
    return nchw(output, format, back=True)


@layer
def VolumetricMaxPooling(x, k_t, k_w, k_h, d_t, d_w, d_h, pad_t=0, pad_w=0, pad_h=0):
    """The largest number of each window of volumes."""
    return F.max_pool3d(x, (k_t, k_h, k_w), (d_t, d_h, d_w), (pad_t, pad_h, pad_w))


@layer
def VolumetricAveragePooling(x, k_t, k_w, k_h, d_t, d_w, d_h, pad_t=0, pad_w=0, pad_h=0, count_include_pad=True,
                             ceil_mode=False):  # fmt: skip
    """The mean of each window of volumes."""
    return F.avg_pool3d(x, (k_t, k_h, k_w), (d_t, d_h, d_w), (pad_t, pad_h, pad_w), ceil_mode, count_include_pad)


@layer
def SpatialCrossMapLRN(x, size=5, alpha=1.0, beta=0.75, k=1.0, data_format="NCHW"):
    """Images divided by a power of what neighbouring channels have at the same place."""
    y = nchw(x, data_format)
    y = (
        F.local_response_norm(y.unsqueeze(0), size, alpha, beta, k).squeeze(0)
        if y.dim() == 3
        else F.local_response_norm(y, size, alpha, beta, k)
    )
    return nchw(y, data_format, back=True)


@layer
def SpatialWithinChannelLRN(x, size=5, alpha=1.0, beta=0.75):
    """Images divided by a power of what the channel has around the place."""
    return x / (1 + alpha * F.avg_pool2d(x.square(), size, 1, (size - 1) // 2)) ** beta


@layer
def UpSampling1D(x, length):
    """Each step of (batch, time, features) several times."""
    return x.repeat_interleave(length, -2)


@layer
def UpSampling2D(x, size, data_format="nchw"):
    """Each row and column of images several times."""
    y = nchw(x, data_format).repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
    return nchw(y, data_format, back=True)


@layer
def UpSampling3D(x, size):
    """Each plane, row and column of volumes several times."""
    return x.repeat_interleave(size[0], -3).repeat_interleave(size[1], -2).repeat_interleave(size[2], -1)


@layer
def ResizeBilinear(x, output_height, output_width, align_corner=False, data_format="NCHW"):
    """Images of another size; corners are where TensorFlow 1 puts them."""
    y = nchw(x, data_format)
    for at, size in ((-2, output_height), (-1, output_width)):
        old = y.shape[at]
        scale = (old - 1) / (size - 1) if align_corner and size > 1 else old / size
        where = torch.arange(size, device=y.device, dtype=y.dtype) * scale
        low = where.floor().clamp(max=old - 1)
        share = (where - low).reshape([-1, 1] if at == -2 else [-1])
        high = (low + 1).clamp(max=old - 1)
        y = y.index_select(at, low.long()) * (1 - share) + y.index_select(at, high.long()) * share
    return nchw(y, data_format, back=True)


def _around(x: Tensor, kernel: Tensor) -> Tensor:
    """Return the weighted mean over the neighbourhood and all channels, exact at the edges."""
    weight = (kernel / kernel.sum() / x.shape[1]).expand(1, x.shape[1], *kernel.shape)
    pads = [kernel.shape[1] // 2, (kernel.shape[1] - 1) // 2, kernel.shape[0] // 2, (kernel.shape[0] - 1) // 2]
    sums, shares = (F.conv2d(F.pad(each, pads), weight) for each in (x, torch.ones_like(x)))
    return sums / shares


class _Neighbourhood(nn.Module):
    """Images without the mean around each place, divided by the deviation there, or both."""

    def __init__(
        self, kernel: Any, subtracts: bool, divides: bool, threshold: float = 1e-4, value: float = 1e-4
    ) -> None:
        super().__init__()
        given = torch.ones(9, 9) if kernel is None else torch.as_tensor(kernel, dtype=torch.float32)
        self.register_buffer("kernel", given if given.dim() == 2 else given.reshape(-1, 1) @ given.reshape(1, -1))
        self.subtracts, self.divides, self.threshold, self.value = subtracts, divides, threshold, value

    def forward(self, x: Tensor) -> Tensor:
        """Return the images."""
        y = x.unsqueeze(0) if x.dim() == 3 else x
        y = y - _around(y, self.kernel) if self.subtracts else y  # type: ignore[arg-type]
        if self.divides:
            deviation = _around(y.square(), self.kernel).clamp(min=0).sqrt()  # type: ignore[arg-type]
            bound = torch.maximum(deviation, deviation.mean((1, 2, 3), keepdim=True))
            y = y / torch.where(bound > self.threshold, bound, torch.full_like(bound, self.value))
        return y.squeeze(0) if x.dim() == 3 else y


@layer
def SpatialSubtractiveNormalization(n_input_plane=1, kernel=None):
    """Images without the mean around each place."""
    return _Neighbourhood(kernel, subtracts=True, divides=False)


@layer
def SpatialDivisiveNormalization(n_input_plane=1, kernel=None, threshold=1e-4, thresval=1e-4):
    """Images divided by the deviation around each place."""
    return _Neighbourhood(kernel, False, True, threshold, thresval)


@layer
def SpatialContrastiveNormalization(n_input_plane=1, kernel=None, threshold=1e-4, thresval=1e-4):
    """Images without the mean around each place, divided by the deviation there."""
    return _Neighbourhood(kernel, True, True, threshold, thresval)


Model = LAYERS["Model"]
