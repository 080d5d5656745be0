"""Layers: BigDL's layers as rows of a table, but the recurrent ones. Owns their formulas.

Dimensions, places and indices count from 1, from the end where negative. `rows` of `layer.py` documents the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orca.errors import ArgumentError, DataError, MissingDependency
from orca.rows.tree import map_tree
from orca_classic.bigdl.layer import (
    LAYERS,
    SHAPING,
    Container,
    Holder,
    Layer,
    Node,
    Parts,
    Weights,
    in_turn,
    lookup,
    rows,
    signed,
)

INTMIN, INTMAX, DOUBLEMAX = -(2**31), 2**31 - 1, 1.7976931348623157e308
WB: dict[str, Any] = {"wRegularizer": None, "bRegularizer": None}
START: dict[str, Any] = dict.fromkeys(("init_weight", "init_bias", "init_grad_weight", "init_grad_bias"))
PLANES = ("n_input_plane", "n_output_plane")
SPATIAL: dict[str, Any] = {"stride_w": 1, "stride_h": 1, "pad_w": 0, "pad_h": 0}


class Input(Node):
    """An input node of a graph."""

    def __init__(self, name: str | None = None, bigdl_type: str = "float") -> None:
        super().__init__(LAYERS["Identity"](), [])
        if name is not None:
            self.layer.set_name(name)


# Dimensions.


def axis(dim: int, x: Tensor, n_input_dims: int = 0) -> int:
    """Return a dimension as torch counts; with n_input_dims, dimension 1 is the one after the batch."""
    place = dim - 1 if dim > 0 else dim + x.dim()
    return place + (dim > 0 and n_input_dims > 0 and x.dim() > n_input_dims)


def place(index: int, size: int) -> int:
    """Return an index as torch counts; refuse one out of range."""
    at = index - 1 if index > 0 else index + size
    if not 0 <= at < size or index == 0:
        raise DataError(f"the index must be 1 to {size}, or -1 to {-size} from the end; got {index}.")
    return at


def is_channels_first(form: str) -> bool:
    """Say whether channels come first."""
    return form.upper() in ("NCHW", "CHANNEL_FIRST", "TH")


def ordered(x: Tensor, form: str, function: Callable[[Tensor], Tensor], dims: int = 2) -> Tensor:
    """Apply a function of channels-first images (or volumes) to images of either order."""
    if is_channels_first(form):
        return function(x)
    return function(x.movedim(-1, -1 - dims)).movedim(-1 - dims, -1)


def batched(x: Tensor, dims: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of batches; a tensor of `dims` dimensions is a single row, a batch of one."""
    return function(x.unsqueeze(0)).squeeze(0) if x.dim() == dims else function(x)


def _channel(x: Tensor) -> int:
    """Return the dimension of channels: the first of one row, the second of a batch."""
    return 0 if x.dim() in (1, 3) else 1


# Windows in one, two or three dimensions. A padding of -1 gives outputs of size / stride.


def same_padding(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Return the padding of the last dimensions for outputs of ceil(size / stride), as F.pad takes it."""
    sizes, padding = x.shape[-len(kernel) :], list[int]()
    for size, k, s in zip(map(int, sizes), kernel, stride, strict=True):
        total = max((math.ceil(size / s) - 1) * s + k - size, 0)
        padding = [total // 2, total - total // 2, *padding]
    return padding


def padded(x: Tensor, ends: Sequence[Sequence[int]], sign: int = 1) -> Tensor:
    """Pad the last dimensions with zeros, by a pair of numbers for each; crop if they are below 0."""
    return F.pad(x, [sign * size for both in reversed(ends) for size in both])


def repeated(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Repeat each place of the last dimensions."""
    return reduce(lambda y, at: y.repeat_interleave(sizes[at], at - len(sizes)), range(len(sizes)), x)


def pooled(kind: str, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int] = (0,),
           form: str = "NCHW", ceil: bool = False, counts: bool = True, divides: bool = True) -> Tensor:  # fmt: skip
    """Return the "max" or "avg" of windows; counts: whether padding is part of a mean; not divides: sums."""
    dims, kernel, stride = len(kernel), tuple(kernel), tuple(stride)
    pool: Any = getattr(F, f"{kind}_pool{dims}d")
    zero = (0,) * dims

    def compute(y: Tensor) -> Tensor:
        own = zero if padding == (0,) else tuple(padding)
        if -1 in padding:
            pad = same_padding(y, kernel, stride)
            if kind == "max":
                y, own = F.pad(y, pad, value=-math.inf), zero
            else:
                means, shares = (pool(F.pad(each, pad), kernel, stride) for each in (y, torch.ones_like(y)))
                return means / shares if divides else means * math.prod(kernel)
        if kind == "max":
            return pool(y, kernel, stride, own, ceil_mode=ceil)
        return pool(y, kernel, stride, own, ceil, counts, *([] if divides else [1]))

    return ordered(x, form, compute, dims)


class Convolution(Weights):
    """A convolution over one, two or three dimensions.

    Its layout is the shape in which BigDL shows the weight: with "groups" first, "joined" (without groups), with the
    "depth" of each channel first, or "plain": outputs and inputs first, in any form.
    """

    def __init__(self, planes: tuple[int, int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
                 dilation: Sequence[int] = (), groups: int = 1, bias: bool = True, form: str = "NCHW",
                 propagates: bool = True, layout: str = "groups") -> None:  # fmt: skip
        inputs, outputs = planes
        if inputs % groups or outputs % groups:
            raise ArgumentError(
                f"{groups} groups need as many parts of planes; got {inputs} input and {outputs} output planes."
            )
        shapes = {"weight": [outputs, inputs // groups, *kernel], "bias": [outputs] if bias else None}
        super().__init__(inputs // groups * math.prod(kernel), shapes, kernel=tuple(kernel), stride=tuple(stride),
              padding=tuple(padding), dilation=tuple(dilation) or (1,) * len(kernel), groups=groups, form=form,
              propagates=propagates, layout=layout)  # fmt: skip

    def shown(self, weight: Tensor) -> Tensor:
        """Return a view of the weight as BigDL lays it out: inputs and outputs come last where channels do."""
        if self.layout in ("groups", "depth"):
            weight = weight.unflatten(0, (self.groups, -1))
        if self.layout == "depth":
            weight = weight.squeeze(2).transpose(0, 1)
        if is_channels_first(self.form) or self.layout == "plain":
            return weight
        *lead, outputs, inputs = range(weight.dim() - len(self.kernel))
        view = weight.permute(*lead, *range(inputs + 1, weight.dim()), inputs, outputs)
        return view.unsqueeze(2) if len(self.kernel) == 1 else view  # steps of time are rows of images there

    def forward(self, x: Tensor) -> Tensor:
        """Return the images."""
        return ordered(x if self.propagates else x.detach(), self.form, self._convolved, len(self.kernel))

    def _convolved(self, x: Tensor) -> Tensor:
        padding: Any = self.padding
        if -1 in padding:
            spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
            x, padding = F.pad(x, same_padding(x, spans, self.stride)), 0
        convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(self.kernel) - 1]
        return convolve(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


# Containers.


class _Chain(Container):
    def to_graph(self) -> Any:
        start = Input()
        return LAYERS["Model"]([start], [reduce(lambda node, part: part(node), self.layers, start)])


class _OneForAll(Container):
    """A container of one layer, from the arguments or from `add`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.arguments["module"] is not None:
            self.add(self.arguments["module"])

    def add(self, model: Any) -> Any:
        self.layers, self.module.parts, self.module.names = [], nn.ModuleList(), []  # type: ignore[assignment]
        self.arguments["module"] = None  # `layers` has it
        return super().add(model)


def _joined(m: Any, x: Any) -> Tensor:
    outputs = m.each([x] * len(m.parts))
    return torch.cat(outputs, axis(m.dimension, outputs[0]))


def each_step(m: Any, x: Tensor) -> Any:
    """Return the output of a module's part at every step of (batch, time, ...)."""
    if x.dim() < 3:
        raise DataError("the input needs the dimensions batch, time and features")
    return map_tree(lambda part: part.unflatten(0, x.shape[:2]), m.part(x.flatten(0, 1)))


def _bottled(m: Any, x: Tensor) -> Tensor:
    lead = x.dim() - m.kept
    output: Tensor = m.part(x) if lead < 2 else m.part(x.flatten(0, lead - 1)).unflatten(0, x.shape[:lead])
    return output


rows({"Sequential": (lambda jvalue=None: Parts(), in_turn, "Layers in sequence.")}, _Chain)
rows({"MapTable": (lambda module=None: Parts(), lambda m, x: [m.part(0, each) for each in x],
    "One layer on every tensor of a table.")}, _OneForAll, tables=True)  # fmt: skip
rows({"ParallelTable": (lambda: Parts(), lambda m, x: m.each(x), "Layers each on its own tensor of a table.")},
     Container, tables=True)  # fmt: skip
rows({
    "Concat": (lambda dimension: Parts(dimension=dimension), _joined,
        "Layers side by side on the same input, their outputs joined along a dimension."),
    "ConcatTable": (lambda: Parts(), lambda m, x: m.each([x] * len(m.parts)),
        "Layers side by side on the same input; the outputs are a table."),
}, Container)  # fmt: skip
rows({
    "TimeDistributed": (lambda model: Weights(part=model), each_step, "A layer on every step of (batch, time, ...)."),
    "Bottle": (lambda module, n_input_dim=2, n_output_dim1=INTMAX: Weights(part=module, kept=n_input_dim - 1),
        _bottled, "A layer on inputs with more dimensions than it takes: the first ones are flattened into one."),
}, Holder)  # fmt: skip

# Elementwise functions, and softmax.

rows({
    "ReLU": (lambda x, ip=False: F.relu(x), "max(x, 0)."),
    "ReLU6": (lambda x, inplace=False: F.relu6(x), "min(max(x, 0), 6)."),
    "Tanh": (lambda x: torch.tanh(x), ""),
    "Sigmoid": (lambda x: torch.sigmoid(x), "1 / (1 + exp(-x))."),
    "HardSigmoid": (lambda x: torch.clamp(0.2 * x + 0.5, 0, 1), "0.2 x + 0.5 between 0 and 1."),
    "SoftMax": (lambda x: F.softmax(x, _channel(x)),
        "Softmax over the classes: the first dimension of one row, the second of a batch."),
    "LogSoftMax": (lambda x: F.log_softmax(x, _channel(x)), "The logarithm of SoftMax."),
    "SoftMin": (lambda x: F.softmin(x, _channel(x)), "Softmax of -x."),
    "SoftPlus": (lambda x, beta=1.0: F.softplus(x, beta), "log(1 + exp(beta x)) / beta."),
    "SoftShrink": (lambda x, the_lambda=0.5: F.softshrink(x, the_lambda),
        "x moved towards 0 by lambda, 0 where it is nearer."),
    "SoftSign": (lambda x: F.softsign(x), "x / (1 + |x|)."),
    "HardShrink": (lambda x, the_lambda=0.5: F.hardshrink(x, the_lambda), "x, or 0 between -lambda and lambda."),
    "HardTanh": (lambda x, min_value=-1.0, max_value=1.0, inplace=False: torch.clamp(x, min_value, max_value),
        "x between two bounds."),
    "Clamp": (lambda x, min, max: torch.clamp(x, min, max), "x between two bounds."),
    "TanhShrink": (lambda x: F.tanhshrink(x), "x - tanh(x)."),
    "Threshold": (lambda x, th=1e-6, v=0.0, ip=False: F.threshold(x, th, v),
        "x if it is over a threshold, else a value."),
    "BinaryThreshold": (lambda x, th=1e-6, ip=False: (x > th).to(x.dtype), "1 where x is over a threshold, else 0."),
    "ELU": (lambda x, alpha=1.0, inplace=False: F.elu(x, alpha), "x, or alpha (exp(x) - 1) below 0."),
    "LeakyReLU": (lambda x, negval=0.01, inplace=False: F.leaky_relu(x, negval),
        "x, or x times a small number below 0."),
    "LogSigmoid": (lambda x: F.logsigmoid(x), "log(1 / (1 + exp(-x)))."),
    "Abs": (lambda x: x.abs(), ""), "Exp": (lambda x: x.exp(), ""), "Log": (lambda x: x.log(), ""),
    "Sqrt": (lambda x: x.sqrt(), ""), "Square": (lambda x: x.square(), ""),
    "Negative": (lambda x, inplace=False: -x, ""),
    "Power": (lambda x, power, scale=1.0, shift=0.0: (shift + scale * x) ** power, "(shift + scale x) ** power."),
    "AddConstant": (lambda x, constant_scalar, inplace=False: x + constant_scalar, ""),
    "MulConstant": (lambda x, scalar, inplace=False: x * scalar, ""),
    "Identity": (lambda x: x, "The input, unchanged."), "Contiguous": (lambda x: x.contiguous(), ""),
    "Echo": (lambda x: x, "The input, unchanged."),
    "DenseToSparse": (lambda x: x, "The input, unchanged: tensors are dense here."),
    "GradientReversal": (lambda x, the_lambda=1.0: (1 + the_lambda) * x.detach() - the_lambda * x,
        "x, whose gradient comes back times -lambda."),
})  # fmt: skip

# Shapes.


def _narrow(x: Tensor, dimension: int, offset: int, length: int = 1) -> Tensor:
    at = axis(dimension, x)
    first = place(offset, x.shape[at])
    return x.narrow(at, first, length if length > 0 else x.shape[at] - first + length + 1)


def _view(x: Tensor, sizes: Any, num_input_dims: int = 0) -> Tensor:
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    if -1 in sizes:
        batch = x.shape[: x.dim() - num_input_dims] if num_input_dims else []
        return x.reshape(*batch, *sizes)
    total = math.prod(int(size) for size in x.shape)  # whole numbers where torch traces, too
    count, rest = divmod(total, math.prod(sizes))
    if rest:
        raise DataError(f"{total} numbers do not fill rows of {sizes}")
    single = x.dim() == num_input_dims if num_input_dims else x.dim() < 2 or x.shape[0] != 1
    return x.reshape(sizes if count == 1 and single else [-1, *sizes])


def _reshape(x: Tensor, size: Any, batch_mode: bool | None = None) -> Tensor:
    size = [size] if isinstance(size, int) else list(size)
    whole = batch_mode is None and math.prod(int(n) for n in x.shape) == math.prod(size) and x.shape[0] != 1
    return x.reshape(size if whole or batch_mode is False else [x.shape[0], *size])


def _infer_reshape(x: Tensor, size: Sequence[int], batch_mode: bool = False) -> Tensor:
    lead = [x.shape[0]] if batch_mode else []
    own = x.shape[len(lead) :]
    return x.reshape(lead + [own[at] if length == 0 else length for at, length in enumerate(size)])


def _squeeze(x: Tensor, dim: Any = None, num_input_dims: int = INTMIN) -> Tensor:
    dims = [dim] if isinstance(dim, int) else dim
    return x.squeeze() if dim is None else x.squeeze(tuple(axis(each, x, num_input_dims) for each in dims))


def _replicate(x: Tensor, n_features: int, dim: int = 1, n_dim: int = INTMAX) -> Tensor:
    at = dim - 1 + (n_dim < x.dim())
    return x.unsqueeze(at).expand(*x.shape[:at], n_features, *x.shape[at:])


def _padding(x: Tensor, dim: int, pad: int, n_input_dim: int, value: float = 0.0, n_index: int = 1) -> Tensor:
    at = axis(dim, x, n_input_dim)
    filler = x.new_full([*x.shape[:at], abs(pad), *x.shape[at + 1 :]], value)
    cut = n_index - 1 if pad < 0 else x.shape[at] - n_index + 1
    before, after = x.narrow(at, 0, cut), x.narrow(at, cut, x.shape[at] - cut)
    return torch.cat([before, filler, after], at)


def _sum(x: Tensor, dimension: int = 1, n_input_dims: int = -1, size_average: bool = False,
         squeeze: bool = True) -> Tensor:  # fmt: skip
    return (x.mean if size_average else x.sum)(axis(dimension, x, n_input_dims), keepdim=not squeeze)


def _resized(x: Tensor, height: int, width: int, corners: bool) -> Tensor:
    for at, size in ((-2, height), (-1, width)):
        old = x.shape[at]
        scale = (old - 1) / (size - 1) if corners and size > 1 else old / size
        where = torch.arange(size, device=x.device, dtype=x.dtype) * scale
        low = where.floor().clamp(max=old - 1)
        share = (where - low).reshape([-1, 1] if at == -2 else [-1])
        high = (low + 1).clamp(max=old - 1)
        x = x.index_select(at, low.long()) * (1 - share) + x.index_select(at, high.long()) * share
    return x


def _bifurcate(x: Tensor, dimension: int) -> list[Tensor]:
    at = axis(dimension, x)
    return [*x.split([x.shape[at] // 2, x.shape[at] - x.shape[at] // 2], at)]


rows({
    "Select": (lambda x, dim, index: x.select(axis(dim, x), place(index, x.shape[axis(dim, x)])),
        "The part of one index along a dimension, which goes."),
    "Narrow": (_narrow, "Some indices along a dimension; a length of -1 is up to the last, -2 up to the last but one."),
    "View": (_view, "The same numbers in another shape, row by row where there are more of them than the shape holds."),
    "Reshape": (_reshape,
        "The same numbers in another shape, row by row unless batch_mode is False or the whole input fills the shape."),
    "InferReshape": (_infer_reshape, "Another shape: -1 is inferred, 0 is the input's own dimension."),
    "Squeeze": (_squeeze, "The input without a dimension of 1, several of them, or all."),
    "Unsqueeze": (lambda x, pos, num_input_dims=INTMIN: x.unsqueeze(pos - 1 + (0 < num_input_dims < x.dim())),
        "The input with one more dimension of 1 at a place."),
    "Transpose": (lambda x, permutations: reduce(lambda y, pair: y.transpose(axis(pair[0], y), axis(pair[1], y)),
        permutations, x), "The input with pairs of dimensions exchanged, one pair after the other."),
    "Replicate": (_replicate, "The input several times, along a new dimension."),
    "Tile": (lambda x, dim=1, copies=2: torch.cat([x] * copies, axis(dim, x)),
        "The input several times along a dimension."),
    "ExpandSize": (lambda x, sizes: x.expand(*sizes),
        "The input repeated to these sizes; -1 leaves a dimension alone."),
    "Reverse": (lambda x, dimension=1, is_inplace=False: x.flip(axis(dimension, x)),
        "The input backwards along a dimension."),
    "Padding": (_padding, "The input with values inserted before (pad below 0) or after a place of a dimension."),
    "SpatialZeroPadding": (lambda x, pad_left, pad_right, pad_top, pad_bottom: padded(x, [(pad_top, pad_bottom), (
        pad_left, pad_right)]), "Images with zeros around them, or cut where a number is below 0."),
    "Cropping2D": (lambda x, heightCrop, widthCrop, data_format="NCHW": ordered(x, data_format, lambda y: padded(y, [
        heightCrop, widthCrop], -1)), "Images without some rows and columns at their ends."),
    "Cropping3D": (lambda x, dim1Crop, dim2Crop, dim3Crop, data_format="channel_first": ordered(x, data_format,
        lambda y: padded(y, [dim1Crop, dim2Crop, dim3Crop], -1), 3), "Volumes without some planes at their ends."),
    "UpSampling1D": (lambda x, length: repeated(x, [length, 1]), "Each step of (batch, time, features) several times."),
    "UpSampling2D": (lambda x, size, data_format="nchw": ordered(x, data_format, lambda y: repeated(y, size)),
        "Each row and column of images several times."),
    "UpSampling3D": (lambda x, size: repeated(x, size), "Each plane, row and column of volumes several times."),
    "ResizeBilinear": (lambda x, output_height, output_width, align_corner=False, data_format="NCHW": ordered(x,
        data_format, lambda y: _resized(y, output_height, output_width, align_corner)),
        "Images of another size; corners are where TensorFlow 1 puts them."),
    "Max": (lambda x, dim=1, num_input_dims=INTMIN: x.max(axis(dim, x, num_input_dims)).values,
        "The largest along a dimension."),
    "Min": (lambda x, dim=1, num_input_dims=INTMIN: x.min(axis(dim, x, num_input_dims)).values,
        "The smallest along a dimension."),
    "Mean": (lambda x, dimension=1, n_input_dims=-1, squeeze=True: _sum(x, dimension, n_input_dims, True, squeeze),
        "The mean along a dimension."),
    "Sum": (_sum, "The sum (or mean) along a dimension."),
    "SplitTable": (lambda x, dimension, n_input_dims=-1: list(x.unbind(axis(dimension, x, n_input_dims))),
        "The parts of every index along a dimension."),
    "BifurcateSplitTable": (_bifurcate, "The two halves along a dimension."),
    "Masking": (lambda x, mask_value=0.0: x * torch.ne(x, mask_value).any(-1, keepdim=True).to(x.dtype),
        "Steps of time whose features all have a value, as zeros."),
})  # fmt: skip

# Randomness.


def _dropped(m: Any, x: Tensor) -> Tensor:
    """Drop numbers; the mask has size 1 in the dimensions of `spread`, so that whole channels are dropped."""
    if not m.training:
        return x
    shape = [1 if at - x.dim() in m.spread else size for at, size in enumerate(x.shape)]
    y = x * F.dropout(x.new_ones(shape), m.p)
    return y if m.scale else y * (1 - m.p)


def _dropout(p: float, spread: Sequence[int] = (), scale: bool = True) -> Weights:
    return Weights(p=p, spread=tuple(spread), scale=scale)


def _spread(form: str, dims: int) -> range:
    return range(-dims, 0) if form.upper() == "NCHW" else range(-dims - 1, -1)


rows({
    "Dropout": (lambda init_p=0.5, inplace=False, scale=True: _dropout(init_p, scale=scale), _dropped,
        "Zeros in place of some numbers in training; the others are scaled up unless scale is False."),
    "SpatialDropout1D": (lambda init_p=0.5: _dropout(init_p, [-2]), _dropped,
        "Whole features of (batch, time, features) dropped in training."),
    "SpatialDropout2D": (lambda init_p=0.5, data_format="NCHW": _dropout(init_p, _spread(data_format, 2)), _dropped,
        "Whole channels of images dropped in training."),
    "SpatialDropout3D": (lambda init_p=0.5, data_format="NCHW": _dropout(init_p, _spread(data_format, 3)), _dropped,
        "Whole channels of volumes dropped in training."),
    "GaussianDropout": (lambda rate: Weights(deviation=math.sqrt(rate / (1 - rate))), lambda m, x: x * (
        1 + m.deviation * torch.randn_like(x)) if m.training else x,
        "The input times random numbers around 1, in training."),
    "GaussianNoise": (lambda stddev: Weights(deviation=stddev), lambda m, x: x + m.deviation * torch.randn_like(
        x) if m.training else x, "The input plus random numbers around 0, in training."),
    "RReLU": (lambda lower=1.0 / 8, upper=1.0 / 3, inplace=False: nn.RReLU(lower, upper),
        "x, or below 0 x times a random number in training, the middle one otherwise."),
})  # fmt: skip

# Weights, without images.


def _fitting(weight: Tensor, x: Tensor) -> Tensor:
    """Return a weight with as many dimensions as an input, with or without a batch."""
    if weight.dim() > x.dim() and weight.shape[0] == 1:
        return weight[0]
    return weight.unsqueeze(0) if weight.dim() < x.dim() else weight


def _prelu(m: Any, x: Tensor) -> Tensor:
    shape = [-1 if at == _channel(x) else 1 for at in range(x.dim())]
    return torch.where(x > 0, x, x * (m.weight if m.weight.numel() == 1 else m.weight.reshape(shape)))


class _FourWeights(Layer):
    def set_init_method(self, tLeftInit: Any = None, aLeftInit: Any = None, tRightInit: Any = None,  # type: ignore[override]
                        aRightInit: Any = None) -> Any:  # fmt: skip
        methods = (tLeftInit, aLeftInit, tRightInit, aRightInit)
        for method, weight in zip(methods, self.module.parameters(), strict=True):
            if method is not None:
                method.fill(weight)
        return self


def _srelu(input_shape: Sequence[int], share_axes: Sequence[int] | None = None) -> Weights:
    shape = [1 if share_axes and at + 1 in share_axes else size for at, size in enumerate(input_shape)]
    starts = {"left": nn.init.zeros_, "left_slope": nn.init.uniform_, "right": nn.init.uniform_,
              "right_slope": nn.init.ones_}  # fmt: skip
    return Weights(1, dict.fromkeys(starts, shape), starts)


def _bent(m: Any, x: Tensor) -> Tensor:
    right = m.left + m.right.abs()  # learned as a distance, so that it stays right of the left bound
    over, under = right + m.right_slope * (x - right), m.left + m.left_slope * (x - m.left)
    return torch.where(x >= right, over, torch.where(x <= m.left, under, x))


def _highway(m: Any, x: Tensor) -> Tensor:
    share, output = torch.sigmoid(m.gate(x)), m.linear(x)
    return share * (output if m.activation is None else m.activation(output)) + (1 - share) * x


def table_places(x: Tensor, first: int, count: int) -> Tensor:
    """Return indices of a table's rows as torch counts them; refuse others."""
    places = x.long() - first
    if SHAPING.get():  # the input is zeros, which are no indices
        return torch.zeros_like(places)
    if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < count):
        raise DataError(f"an index counts from {first} to {count - 1 + first}; got {x.min():g} to {x.max():g}")
    if bool((places + first != x).any()):
        raise DataError(f"an index is a whole number; got {x[places + first != x][0]:g}")
    return places


def _looked_up(m: Any, x: Tensor) -> Tensor:
    indices = table_places(x, 1, len(m.weight))
    return F.embedding(indices, m.weight, m.padding, m.limit, m.norm, m.by_frequency)


def _combined(m: Any, x: Any) -> Tensor:
    """Add up or average the rows of a table for the indices of each row, which count from 1; 0 is ignored."""
    indices, weights = x if isinstance(x, list | tuple) else (x, torch.ones_like(x))
    rows = F.embedding(table_places(torch.where(indices == 0, 1, indices), 1, len(m.weight)), m.weight)
    if m.limit is not None:
        rows = rows * (m.limit / rows.norm(dim=-1, keepdim=True).clamp(min=m.limit))
    shares = (weights * (indices > 0)).unsqueeze(-1)
    total, mass = (rows * shares).sum(-2), (shares if m.combiner == "mean" else shares.square()).sum(-2)
    mass = torch.where(mass == 0, 1.0, mass)
    return total if m.combiner == "sum" else total / (mass if m.combiner == "mean" else mass.sqrt())


def _lookup(count: int, size: int, combiner: str, max_norm: float) -> Weights:
    if combiner not in ("sum", "mean", "sqrtn"):
        raise ArgumentError(f"combiner must be one of 'sum', 'mean', 'sqrtn'; got {combiner!r}.")
    return Weights(1, {"weight": [count, size]}, {"weight": nn.init.normal_}, combiner=combiner,
                   limit=max_norm if max_norm > 0 else None)  # fmt: skip


def _sparse_linear(inputs: int, outputs: int, bias: bool, start: int, length: int) -> nn.Linear:
    if (start, length) != (-1, -1):
        raise ArgumentError(
            f"gradients are of the whole input here: leave out their start and length; got {start}, {length}."
        )
    return nn.Linear(inputs, outputs, bias)


def _normalize(x: Tensor, p: float = 2.0, eps: float = 1e-10) -> Tensor:
    at = _channel(x)
    if p == math.inf:
        return x / (x.abs().amax(at, keepdim=True) + eps)
    return x / ((x.abs() ** p).sum(at, keepdim=True) + eps) ** (1 / p)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalization over dimension 1; its factors begin between 0 and 1, as BigDL's do."""

    def __init__(self, size: int, eps: float, momentum: float, affine: bool, form: str = "NCHW") -> None:
        super().__init__(size, eps, momentum, affine)
        if not is_channels_first(form):  # by hooks: ranks that share statistics replace the forward pass itself
            self.register_forward_pre_hook(_channels_to_front)
            self.register_forward_hook(_channels_to_back)

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
        return batched(x, 1 if x.dim() < 3 else 3, super().forward)


def _channels_to_front(norm: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    return inputs[0].movedim(-1, -3) if inputs[0].dim() > 2 else inputs[0]


def _channels_to_back(norm: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output.movedim(-3, -1) if output.dim() > 2 else output


def _heads(hidden_size: int, num_heads: int, attention_dropout: float) -> Weights:
    query, key, value, output = (nn.Linear(hidden_size, hidden_size, False) for _ in range(4))
    return Weights(heads=num_heads, p=attention_dropout, query=query, key=key, value=value, joined=output)


def _attention(m: Any, x: Any) -> Tensor:
    queries, memory, bias = x
    q, k, v = (
        linear(source).unflatten(-1, (m.heads, -1)).transpose(1, 2)
        for linear, source in ((m.query, queries), (m.key, memory), (m.value, memory))
    )
    mask = bias.expand(len(q), m.heads, q.shape[2], k.shape[2])
    output = F.scaled_dot_product_attention(q, k, v, mask, m.p if m.training else 0.0)
    return m.joined(output.transpose(1, 2).flatten(2))


rows({"SReLU": (_srelu, _bent,
    "x between two bounds, straight lines outside; bounds and slopes are learned, the right one as its distance.")},
     _FourWeights)  # fmt: skip
rows({
    "Linear": (signed("input_size", "output_size", with_bias=True, **WB, **START), nn.Linear, "x W' + b."),
    "SparseLinear": (signed("input_size", "output_size", with_bias=True, backwardStart=-1, backwardLength=-1, **WB,
        **START), _sparse_linear, "Linear: sparse JTensors become dense tensors here."),
    "Add": (lambda input_size: Weights(input_size, {"bias": [input_size]}), lambda m, x: x + m.bias.reshape(x.shape[1:
        ] if x.numel() != m.bias.numel() else x.shape), "A bias that is learned."),
    "CAdd": (lambda size, bRegularizer=None: Weights(math.prod(size), {"bias": size}), lambda m, x: x + _fitting(m.bias,
        x), "A bias of any shape that is learned."),
    "CMul": (lambda size, wRegularizer=None: Weights(math.prod(size), {"weight": size}), lambda m, x: x * _fitting(
        m.weight, x), "A factor of any shape that is learned."),
    "Mul": (lambda: Weights(1, {"weight": [1]}), lambda m, x: x * m.weight, "One factor that is learned."),
    "Scale": (lambda size: Weights(math.prod(size), {"weight": size, "bias": size}), lambda m, x: x * _fitting(m.weight,
        x) + _fitting(m.bias, x), "A factor and a bias of any shape that are learned."),
    "Cosine": (lambda input_size, output_size: Weights(input_size, {"weight": [output_size, input_size]}), lambda m, x:
        F.normalize(x, dim=-1) @ F.normalize(m.weight, dim=-1).t(),
        "The cosine between the input and each row of the weight."),
    "Euclidean": (lambda input_size, output_size, fast_backward=True: Weights(input_size, {"weight": [input_size,
        output_size]}), lambda m, x: torch.linalg.vector_norm(x.unsqueeze(-1) - m.weight, dim=-2),
        "The distance between the input and each column of the weight."),
    "PReLU": (lambda n_output_plane=0: Weights(1, {"weight": [max(n_output_plane, 1)]}, {"weight": partial(
        nn.init.constant_, val=0.25)}), _prelu,
        "x, or below 0 x times a number that is learned, one of each plane or one for all."),
    "Maxout": (lambda input_size, output_size, maxout_number, with_bias=True, w_regularizer=None, b_regularizer=None,
        init_weight=None, init_bias=None: Weights(number=maxout_number, linear=nn.Linear(input_size,
        output_size * maxout_number, with_bias)), lambda m, x: m.linear(x).unflatten(-1, (m.number, -1)).max(-2).values,
        "The largest of several linear layers."),
    "Highway": (lambda size, with_bias=True, activation=None, wRegularizer=None, bRegularizer=None: Weights(1,
        gate=nn.Linear(size, size, with_bias), linear=nn.Linear(size, size, with_bias), activation=activation),
        _highway, "A gate between the input and a layer on it."),
    "LookupTable": (lambda n_index, n_output, padding_value=0.0, max_norm=DOUBLEMAX, norm_type=2.0,
        should_scale_grad_by_freq=False, wRegularizer=None: Weights(1, {"weight": [n_index, n_output]}, {"weight":
        nn.init.normal_}, norm=norm_type, padding=int(padding_value) - 1 if padding_value else None,
        limit=max_norm if max_norm < 1e30 else None, by_frequency=should_scale_grad_by_freq), _looked_up,
        "The row of the weight for each index, which counts from 1."),
    "LookupTableSparse": (lambda n_index, n_output, combiner="sum", max_norm=-1.0, wRegularizer=None: _lookup(n_index,
        n_output, combiner, max_norm), _combined,
        "The sum or mean of the weight's rows for indices (from 1, 0 for none), or for a table of them and weights."),
    "Normalize": (_normalize,
        "The input divided by its norm over the features: the first dimension of one row, the second of a batch."),
    "NormalizeScale": (lambda p, scale, size, w_regularizer=None, eps=1e-10: Weights(1, {"weight": size}, {"weight":
        partial(nn.init.constant_, val=scale)}, p=p, eps=eps), lambda m, x: _normalize(x, m.p, m.eps) * _fitting(
        m.weight, x), "Normalize, times a factor that is learned."),
    "LayerNormalization": (lambda hidden_size: nn.LayerNorm(hidden_size, eps=1e-6),
        "The input with mean 0 and deviation 1 over its last dimension, scaled."),
    "BatchNormalization": (signed("n_output", eps=1e-5, momentum=0.1, affine=True, **START), BatchNorm,
        "(batch, features) with mean 0 and deviation 1 over the batch, scaled."),
    "SpatialBatchNormalization": (signed("n_output", eps=1e-5, momentum=0.1, affine=True, **START, data_format="NCHW"),
        BatchNorm, "Images with mean 0 and deviation 1 of each channel over the batch, scaled."),
    "FeedForwardNetwork": (lambda hidden_size, filter_size, relu_dropout: nn.Sequential(nn.Linear(hidden_size,
        filter_size), nn.ReLU(), nn.Dropout(relu_dropout), nn.Linear(filter_size, hidden_size)),
        "Two linear layers with ReLU and Dropout between them."),
})  # fmt: skip

# Sequences and images.


def _temporal(m: Any, x: Tensor) -> Tensor:
    """Convolve over time: the weight holds the frames of a window one after the other."""
    weight = m.weight.unflatten(1, (m.kernel, -1)).transpose(1, 2)
    return F.conv1d((x if m.propagates else x.detach()).mT, weight, m.bias, m.stride).mT


def _local(planes: tuple[int, int], size: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
           padding: Sequence[int], bias: bool, propagates: bool, form: str = "NCHW") -> Weights:  # fmt: skip
    """Return a convolution with weights of its own at each place."""
    out = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True)]
    places, fan_in = math.prod(out), planes[0] * math.prod(kernel)
    shapes = {"weight": [places, planes[1], fan_in], "bias": [places, planes[1]] if bias else None}
    return Weights(fan_in, shapes, out=out, kernel=tuple(kernel), stride=tuple(stride), padding=tuple(padding),
                   propagates=propagates, form=form)  # fmt: skip


def _weighed(m: Any, windows: Tensor) -> Tensor:
    """Apply each place's own weight to its window; with channels last, they are last in the weight too."""
    weight = m.weight
    if len(m.kernel) == 2 and not is_channels_first(m.form):
        weight = weight.unflatten(-1, (*m.kernel, -1)).movedim(-1, -3).flatten(-3)
    output = torch.einsum("...pf,pof->...po", windows, weight)
    return output if m.bias is None else output + m.bias


def _by_places1d(m: Any, x: Tensor) -> Tensor:
    return _weighed(m, (x if m.propagates else x.detach()).unfold(-2, m.kernel[0], m.stride[0]).mT.flatten(-2))


def _by_places2d(m: Any, x: Tensor) -> Tensor:
    def compute(y: Tensor) -> Tensor:
        windows = F.unfold(y, m.kernel, padding=m.padding, stride=m.stride)
        return _weighed(m, windows.mT).mT.unflatten(-1, m.out)

    return ordered(x if m.propagates else x.detach(), m.form, lambda y: batched(y, 3, compute))


def _uniform_within(tensor: Tensor, bounds: Tensor) -> None:
    nn.init.uniform_(tensor, -1, 1).data.mul_(bounds.reshape(-1, *[1] * (tensor.dim() - 1)))


def _connected(conn_table: Any, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Weights:
    """Return a convolution with a kernel for each pair (input plane, output plane) of a table."""
    table = torch.as_tensor(conn_table).long() - 1
    ends, (inputs, outputs) = table[:, 1], (int(end) + 1 for end in table.amax(0))
    bounds = 1 / (math.prod(kernel) * torch.bincount(ends, minlength=outputs).clamp(min=1)).sqrt()
    starts = {"weight": partial(_uniform_within, bounds=bounds[ends]), "bias": partial(_uniform_within, bounds=bounds)}
    return Weights(1, {"weight": [len(table), *kernel], "bias": [outputs]}, starts, table=table, inputs=inputs,
                   stride=tuple(stride), padding=tuple(padding))  # fmt: skip


def _convolved_by_table(m: Any, x: Tensor) -> Tensor:
    whole = m.weight.new_zeros(len(m.bias), m.inputs, *m.weight.shape[1:])
    whole = whole.index_put((m.table[:, 1], m.table[:, 0]), m.weight, accumulate=True)
    return F.conv2d(x, whole, m.bias, m.stride, m.padding)


def _roi_pooled(x: Any, pooled_w: int, pooled_h: int, spatial_scale: float) -> Tensor:
    try:
        from torchvision.ops import roi_pool
    except ModuleNotFoundError as error:
        raise MissingDependency("RoiPooling needs torchvision: pip install torchvision.") from error
    images, regions = x
    return roi_pool(images, regions, (pooled_h, pooled_w), spatial_scale)


class _Separable(Weights):
    weight_kinds: ClassVar[dict[str, str]] = {"point.weight": "point"}


def _separable(inputs: int, outputs: int, depth: int, kw: int, kh: int, dw: int, dh: int, pw: int, ph: int,
               bias: bool, form: str) -> Weights:  # fmt: skip
    deep = Convolution((inputs, inputs * depth), (kh, kw), (dh, dw), (ph, pw), (), inputs, False, form, layout="depth")
    point = Convolution((inputs * depth, outputs), (1, 1), (1, 1), (0, 0), bias=bias, form=form, layout="joined")
    return _Separable(deep=deep, point=point)


def _convolution(inputs: int, outputs: int, kw: int, kh: int, dw: int, dh: int, pw: int, ph: int, groups: int,
                 propagates: bool, bias: bool, form: str = "NCHW") -> Weights:  # fmt: skip
    return Convolution((inputs, outputs), (kh, kw), (dh, dw), (ph, pw), (), groups, bias, form, propagates)


def _local2d(planes: int, width: int, height: int, outputs: int, kw: int, kh: int, dw: int, dh: int, pw: int, ph: int,
             propagates: bool, bias: bool, form: str) -> Weights:  # fmt: skip
    return _local((planes, outputs), [height, width], [kh, kw], [dh, dw], [ph, pw], bias, propagates, form)


def _average(x: Tensor, kw: int, kh: int, dw: int = 1, dh: int = 1, pad_w: int = 0, pad_h: int = 0,
             global_pooling: bool = False, ceil_mode: bool = False, count_include_pad: bool = True,
             divide: bool = True, format: str = "NCHW") -> Tensor:  # fmt: skip
    if global_pooling:
        return ordered(x, format, lambda y: y.mean((-2, -1), keepdim=True) if divide else y.sum((-2, -1), keepdim=True))
    return pooled("avg", x, (kh, kw), (dh, dw), (pad_h, pad_w), format, ceil_mode, count_include_pad, divide)


def _across(x: Tensor, size: int = 5, alpha: float = 1.0, beta: float = 0.75, k: float = 1.0,
            data_format: str = "NCHW") -> Tensor:  # fmt: skip
    if size % 2 == 0:
        raise DataError(f"size must be odd; got {size}")
    norm = partial(F.local_response_norm, size=size, alpha=alpha, beta=beta, k=k)
    return ordered(x, data_format, lambda y: batched(y, 3, norm))


def _neighbourhood(subtracts: bool, n_input_plane: int = 1, kernel: Any = None, threshold: float | None = None,
                   value: float = 1e-4) -> Weights:  # fmt: skip
    """Return a module that subtracts the mean around each place, divides by the deviation there, or both."""
    window = torch.ones(9, 9) if kernel is None else torch.as_tensor(kernel, dtype=torch.float32)
    module = Weights(planes=n_input_plane, subtracts=subtracts, threshold=threshold, value=value)
    module.register_buffer("kernel", window if window.dim() == 2 else window.reshape(-1, 1) @ window.reshape(1, -1))
    return module


def _around(m: Any, x: Tensor) -> Tensor:
    if not (m.kernel.shape[0] % 2 and m.kernel.shape[1] % 2):
        raise DataError(f"the kernel must have odd sizes; got {tuple(m.kernel.shape)}")
    weight = (m.kernel / m.kernel.sum() / x.shape[1]).expand(1, x.shape[1], *m.kernel.shape)
    return F.conv2d(x, weight, padding=(m.kernel.shape[0] // 2, m.kernel.shape[1] // 2))


def _contrast(m: Any, x: Tensor) -> Tensor:
    """Normalize images by the neighbourhood of each place; edges are corrected."""
    if x.dim() == 3:
        return _contrast(m, x.unsqueeze(0)).squeeze(0)
    if x.shape[1] != m.planes:
        raise DataError(f"n_input_plane is {m.planes}")
    share = _around(m, torch.ones_like(x))
    x = x - _around(m, x) / share if m.subtracts else x
    if m.threshold is None:
        return x
    deviation = _around(m, x.square()).sqrt() / share
    return x / torch.where(deviation > m.threshold, deviation, m.value)


rows({
    "TemporalConvolution": (signed("input_frame_size", "output_frame_size", "kernel_w", stride_w=1,
        propagate_back=True, weight_regularizer=None, bias_regularizer=None, **START), lambda size, output, kernel,
        stride, propagates: Weights(size * kernel, {"weight": [output, size * kernel], "bias": [output]},
        kernel=kernel, stride=stride, propagates=propagates), _temporal,
        "A convolution over time of (batch, time, features)."),
    "TemporalMaxPooling": (lambda x, k_w, d_w=-1: pooled("max", x, [x.shape[-2] if k_w == -1 else k_w], [
        d_w if d_w != -1 else x.shape[-2] if k_w == -1 else k_w], form="NHWC"),
        "The largest of some steps of (batch, time, features)."),
    "SpatialConvolution": (signed(*PLANES, "kernel_w", "kernel_h", **SPATIAL, n_group=1, propagate_back=True, **WB,
        **START, with_bias=True, data_format="NCHW"), _convolution,
        "A convolution of images; padding -1 gives outputs of size / stride."),
    "SpatialShareConvolution": (signed(*PLANES, "kernel_w", "kernel_h", **SPATIAL, n_group=1, propagate_back=True,
        **WB, **START, with_bias=True), _convolution, "A convolution of images, as SpatialConvolution."),
    "SpatialDilatedConvolution": (lambda n_input_plane, n_output_plane, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0,
        dilation_w=1, dilation_h=1, wRegularizer=None, bRegularizer=None: Convolution((n_input_plane, n_output_plane), (
        kh, kw), (dh, dw), (pad_h, pad_w), (dilation_h, dilation_w), layout="plain"),
        "A convolution of images with holes in its kernel."),
    "SpatialConvolutionMap": (lambda conn_table, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0, wRegularizer=None,
        bRegularizer=None: _connected(conn_table, (kh, kw), (dh, dw), (pad_h, pad_w)), _convolved_by_table,
        "A convolution of images with a kernel for each pair (input plane, output plane) of a table."),
    "SpatialFullConvolution": (lambda n_input_plane, n_output_plane, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0, adj_w=0,
        adj_h=0, n_group=1, no_bias=False, wRegularizer=None, bRegularizer=None: nn.ConvTranspose2d(n_input_plane,
        n_output_plane, (kh, kw), (dh, dw), (pad_h, pad_w), (adj_h, adj_w), n_group, not no_bias),
        "The transpose of a convolution: larger images."),
    "SpatialSeparableConvolution": (signed("n_input_channel", "n_output_channel", "depth_multiplier", "kernel_w",
        "kernel_h", **SPATIAL, with_bias=True, data_format="NCHW", w_regularizer=None, b_regularizer=None,
        p_regularizer=None), _separable, lambda m, x: m.point(m.deep(x)),
        "A convolution of each channel by itself, then one of 1 x 1."),
    "VolumetricConvolution": (lambda n_input_plane, n_output_plane, k_t, k_w, k_h, d_t=1, d_w=1, d_h=1, pad_t=0,
        pad_w=0, pad_h=0, with_bias=True, wRegularizer=None, bRegularizer=None: Convolution((n_input_plane,
        n_output_plane), (k_t, k_h, k_w), (d_t, d_h, d_w), (pad_t, pad_h, pad_w), bias=with_bias,
        layout="plain"), "A convolution of volumes; padding -1 gives outputs of size / stride."),
    "VolumetricFullConvolution": (lambda n_input_plane, n_output_plane, kt, kw, kh, dt=1, dw=1, dh=1, pad_t=0, pad_w=0,
        pad_h=0, adj_t=0, adj_w=0, adj_h=0, n_group=1, no_bias=False, wRegularizer=None, bRegularizer=None:
        nn.ConvTranspose3d(n_input_plane, n_output_plane, (kt, kh, kw), (dt, dh, dw), (pad_t, pad_h, pad_w), (adj_t,
        adj_h, adj_w), n_group, not no_bias), "The transpose of a convolution of volumes."),
    "LocallyConnected1D": (signed("n_input_frame", "input_frame_size", "output_frame_size", "kernel_w", stride_w=1,
        propagate_back=True, weight_regularizer=None, bias_regularizer=None, **START), lambda frames, size, output,
        kernel, stride, propagates: _local((size, output), [frames], [kernel], [stride], [0], True, propagates),
        _by_places1d, "A convolution over time with weights of its own at each step; (batch, time, features)."),
    "LocallyConnected2D": (signed("n_input_plane", "input_width", "input_height", "n_output_plane", "kernel_w",
        "kernel_h", **SPATIAL, propagate_back=True, **WB, **START, with_bias=True, data_format="NCHW"), _local2d,
        _by_places2d, "A convolution of images with weights of its own at each place."),
    "SpatialMaxPooling": (lambda x, kw, kh, dw=1, dh=1, pad_w=0, pad_h=0, to_ceil=False, format="NCHW": pooled("max", x,
        (kh, kw), (dh, dw), (pad_h, pad_w), format, to_ceil),
        "The largest number of each window of images; padding -1 gives outputs of size / stride."),
    "SpatialAveragePooling": (_average,
        "The mean (or sum) of each window of images; padding -1 gives outputs of size / stride."),
    "VolumetricMaxPooling": (lambda x, k_t, k_w, k_h, d_t, d_w, d_h, pad_t=0, pad_w=0, pad_h=0: pooled("max", x, (k_t,
        k_h, k_w), (d_t, d_h, d_w), (pad_t, pad_h, pad_w)), "The largest number of each window of volumes."),
    "VolumetricAveragePooling": (lambda x, k_t, k_w, k_h, d_t, d_w, d_h, pad_t=0, pad_w=0, pad_h=0,
        count_include_pad=True, ceil_mode=False: pooled("avg", x, (k_t, k_h, k_w), (d_t, d_h, d_w), (pad_t, pad_h,
        pad_w), "NCHW", ceil_mode, count_include_pad), "The mean of each window of volumes."),
    "SpatialCrossMapLRN": (_across,
        "Images divided by a power of the neighbouring channels at the same place; size is odd."),
    "SpatialWithinChannelLRN": (lambda x, size=5, alpha=1.0, beta=0.75: x / (1 + alpha * F.avg_pool2d(x.square(), size,
        1, (size - 1) // 2)) ** beta, "Images divided by a power of the channel around each place."),
    "SpatialSubtractiveNormalization": (lambda n_input_plane=1, kernel=None: _neighbourhood(True, n_input_plane,
        kernel), _contrast, "Images without the mean around each place."),
    "SpatialDivisiveNormalization": (signed(n_input_plane=1, kernel=None, threshold=1e-4, thresval=1e-4), partial(
        _neighbourhood, False), _contrast, "Images divided by the deviation around each place."),
    "SpatialContrastiveNormalization": (signed(n_input_plane=1, kernel=None, threshold=1e-4, thresval=1e-4), partial(
        _neighbourhood, True), _contrast, "Images without the mean around each place, divided by the deviation there."),
})  # fmt: skip

# Tables.


def _flat(x: Any) -> list[Any]:
    return [part for each in x for part in (_flat(each) if isinstance(each, list | tuple) else [each])]


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a, b, dim=-1)


def _bilinear(m: Any, a: Tensor, b: Tensor) -> Tensor:
    return F.bilinear(a, b, m.weight, m.bias)


def _product(x: Any, trans_a: bool, trans_b: bool) -> Tensor:
    a, b = x
    return (a.mT if trans_a else a) @ (b.mT if trans_b else b)


def _mixture(x: Any, dim: int = INTMAX) -> Tensor:
    gater, experts = x
    at = gater.dim() - 1
    tensor = torch.stack(experts, at) if isinstance(experts, list | tuple) else experts
    tensor = tensor if dim == INTMAX else tensor.movedim(axis(dim, tensor), at)
    return (gater.reshape(*gater.shape, *[1] * (tensor.dim() - gater.dim())) * tensor).sum(at)


def _narrow_table(x: Any, offset: int, length: int = 1) -> list[Any]:
    first = place(offset, len(x))
    return list(x[first : first + length if length > 0 else len(x) + length + 1])


rows({
    "CAddTable": (lambda x, inplace=False: reduce(torch.add, x), "The sum of all tensors."),
    "CSubTable": (lambda x: torch.sub(*x), "The first tensor minus the second."),
    "CMulTable": (lambda x: reduce(torch.mul, x), "The product of all tensors."),
    "CDivTable": (lambda x: torch.div(*x), "The first tensor divided by the second."),
    "CMaxTable": (lambda x: reduce(lambda a, b: torch.where(b > a, b, a), x),
        "The largest of all tensors, number by number."),
    "CMinTable": (lambda x: reduce(lambda a, b: torch.where(b < a, b, a), x),
        "The smallest of all tensors, number by number."),
    "CAveTable": (lambda x, inplace=False: reduce(torch.add, x) / len(x), "The mean of all tensors."),
    "JoinTable": (lambda x, dimension, n_input_dims=-1: torch.cat(list(x), axis(dimension, x[0], n_input_dims)),
        "The tensors joined along a dimension."),
    "SparseJoinTable": (lambda x, dimension: torch.cat(list(x), axis(dimension, x[0])), "JoinTable of dense tensors."),
    "Pack": (lambda x, dimension: torch.stack(list(x), dimension - 1), "The tensors stacked along a new dimension."),
    "SelectTable": (lambda x, index: x[place(index, len(x))], "One tensor of the table."),
    "NarrowTable": (_narrow_table, "Some tensors of the table; a length of -1 is up to the last."),
    "FlattenTable": (lambda x: _flat(x), "The tensors of tables in tables, in one table."),
    "MM": (lambda x, trans_a=False, trans_b=False: _product(x, trans_a, trans_b),
        "The matrix product of two tensors."),
    "MV": (lambda x, trans=False: _product((x[0], x[1].unsqueeze(-1)), trans, False).squeeze(-1),
        "The product of a matrix and a vector."),
    "Gemm": (lambda x, alpha=1.0, beta=1.0, trans_a=False, trans_b=False: alpha * _product(x[:2], trans_a,
        trans_b) + beta * x[2], "alpha A B + beta C of a table of three matrices."),
    "DotProduct": (lambda x: torch.mul(*x).sum(-1), "The dot product of two tensors, row by row."),
    "CosineDistance": (lambda x: _cosine(*x), "The cosine between two tensors, row by row."),
    "PairwiseDistance": (lambda x, norm=2: torch.linalg.vector_norm(torch.sub(*x), ord=norm, dim=-1),
        "The distance between two tensors, row by row."),
    "CrossProduct": (lambda x, numTensor=0, embeddingSize=0: torch.stack([(a * b).sum(-1) for at, a in enumerate(
        x) for b in x[at + 1 :]], -1), "The dot products of all pairs of tensors, row by row."),
    "MixtureTable": (_mixture,
        "Experts (a table, or a tensor with a dimension of them) weighed by a gater ([batch,] experts)."),
    "Index": (lambda x, dimension: x[0].index_select(axis(dimension, x[0]), x[1].long().reshape(-1) - 1),
        "The entries of the first tensor along a dimension that the second names."),
    "MaskedSelect": (lambda x: x[0].masked_select(x[1] != 0),
        "The numbers of the first tensor where the second is not 0."),
    "GaussianSampler": (lambda x: x[0] + torch.exp(0.5 * x[1]) * torch.randn_like(x[0]),
        "A draw from the normal distribution of a table (mean, logarithm of the variance)."),
    "Bilinear": (lambda input_size1, input_size2, output_size, bias_res=True, wRegularizer=None, bRegularizer=None:
        Weights(input_size1, {"weight": [output_size, input_size1, input_size2], "bias": [
        output_size] if bias_res else None}), lambda m, x: _bilinear(m, *x),
        "x1' W x2 + b of a table of two."),
    "Attention": (_heads, _attention, "Attention with several heads of a table (queries, keys and values, bias)."),
    "RoiPooling": (_roi_pooled,
        "The largest numbers of each cell of regions: of a table (images, regions (image from 0, x1, y1, x2, y2))."),
}, tables=True)  # fmt: skip
rows({"TableOperation": (lambda operation_layer: Weights(part=operation_layer), lambda m, x: m.part(list(
    torch.broadcast_tensors(*x))), "An operation on two tensors, the smaller one expanded to the other's shape.")},
     Holder, tables=True)  # fmt: skip

__getattr__ = lookup(LAYERS, "layer")
