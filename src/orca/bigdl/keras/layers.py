"""Layers: the layers of the Keras-style API as rows. Owns Keras 1's arguments (and those of keras2) and what they build.

A row is a function of the input's shape and its arguments, which returns a torch module on rows of such inputs. Images
have channels first ("th") unless dim_ordering says "tf". Most rows are modules of `orca.bigdl.layers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orca.bigdl import layers as rows
from orca.bigdl import recurrent
from orca.bigdl.initial import InitializationMethod, MsraFiller, Ones, RandomNormal, RandomUniform, Xavier, Zeros
from orca.bigdl.keras.engine import KERAS, KERAS2, KerasLayer, Variable, keras_layer, zeros
from orca.bigdl.layer import LAYERS, Layer
from orca.bigdl.layers import nchw
from orca.errors import ArgumentError, DataError

layer, layer2 = keras_layer(KERAS), keras_layer(KERAS2)

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "softplus": nn.Softplus, "softsign": nn.Softsign, "elu": nn.ELU,
    "hard_sigmoid": lambda: _module("HardSigmoid"), "softmax": lambda: nn.Softmax(-1), "log_softmax": lambda: nn.LogSoftmax(-1),
    "relu6": nn.ReLU6, "tanh_shrink": nn.Tanhshrink, "softmin": lambda: nn.Softmin(-1), "log_sigmoid": nn.LogSigmoid,
    "linear": nn.Identity, "gelu": nn.GELU,
}  # fmt: skip
INITIAL: dict[str, InitializationMethod] = {
    "glorot_uniform": Xavier(), "one": Ones(), "zero": Zeros(), "uniform": RandomUniform(-0.05, 0.05), "ones": Ones(),
    "normal": RandomNormal(0.0, 0.05), "he_normal": MsraFiller(False), "zeros": Zeros(), "random_uniform": RandomUniform(-0.05, 0.05),
}  # fmt: skip


def _module(name: str, *args: Any, **kwargs: Any) -> nn.Module:
    return LAYERS[name](*args, **kwargs).module


def activation(given: Any) -> nn.Module:
    """Return the module of an activation: its name, a layer, or None.

    Raises:
        ArgumentError: There is no such activation.
    """
    if given is None:
        return nn.Identity()
    if isinstance(given, Layer):
        return given.module
    if isinstance(given, nn.Module):
        return given
    if given not in ACTIVATIONS:
        raise ArgumentError(f"there is no activation {given!r}; there are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[given]()


def initial(init: Any, limits: Any = None) -> InitializationMethod:
    """Return the initialisation method of a name, or as it is; limits are the bounds of uniform numbers.

    Raises:
        ArgumentError: There is no such way to begin.
    """
    method = INITIAL.get(init) if isinstance(init, str) else init
    if method is None or not hasattr(method, "fill"):
        raise ArgumentError(f"there is no init {init!r}; there are {', '.join(INITIAL)}, or an initialisation method.")
    if limits is not None and not isinstance(method, RandomUniform):
        raise ArgumentError(f"limits are the bounds of init='uniform'; got init={init!r}. Leave limits out.")
    return method if limits is None else RandomUniform(*limits)


def started(module: nn.Module, init: Any = "glorot_uniform", act: Any = None, bias: Any = "zero") -> nn.Module:
    """Return a module whose weights are drawn as asked for and whose bias is 0, with an activation behind it.

    Raises:
        ArgumentError: There is no such way to begin.
    """
    method, other = initial(init), initial(bias)
    for name, parameter in module.named_parameters():
        (other if "bias" in name.rsplit(".", 1)[-1] else method).fill(parameter, getattr(module, "groups", 1))
    return nn.Sequential(module, activation(act)) if act is not None else module


def pair(value: Any, count: int = 2) -> tuple[int, ...]:
    """Return one number for all dimensions, or the numbers of each."""
    return (value,) * count if isinstance(value, int) else tuple(value)


def form(dim_ordering: str) -> str:
    """Return how images lie, in BigDL's word.

    Raises:
        ArgumentError: There is no such order.
    """
    if dim_ordering not in ("th", "tf", "channels_first", "channels_last"):
        raise ArgumentError(
            f"dim_ordering must be 'th' (channels first) or 'tf' (channels last); got {dim_ordering!r}."
        )
    return "NCHW" if dim_ordering in ("th", "channels_first") else "NHWC"


def channels(shape: Sequence[int], dim_ordering: str) -> int:
    """Return how many channels a shape has."""
    return shape[0] if form(dim_ordering) == "NCHW" else shape[-1]


def only(layer: str, **given: tuple[Any, Any]) -> None:
    """Refuse arguments that have another value than the one there is: name=(value, the one)."""
    for name, (value, one) in given.items():
        if value != one:
            raise ArgumentError(f"{layer} has {name}={one!r} alone; got {value!r}.")


def padding(border_mode: str) -> tuple[int, int]:
    """Return the padding of a border mode; -1 stands for "same".

    Raises:
        ArgumentError: There is no such mode.
    """
    if border_mode not in ("valid", "same"):
        raise ArgumentError(f"border_mode must be 'valid' or 'same'; got {border_mode!r}.")
    return (0, 0) if border_mode == "valid" else (-1, -1)


class Turned(nn.Module):
    """A module on volumes with channels first, where they come last."""

    def __init__(self, inner: nn.Module, places: tuple[int, int]) -> None:
        super().__init__()
        self.inner, self.places = inner, places

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, turned back."""
        return self.inner(x.movedim(*self.places)).movedim(*self.places[::-1])


def turned(inner: nn.Module, dim_ordering: str, dims: int) -> nn.Module:
    """Return a module of channels first for inputs of any order."""
    return inner if form(dim_ordering) == "NCHW" else Turned(inner, (-1, -1 - dims))


# Core.


@layer
def Dense(shape, output_dim, init="glorot_uniform", limits=None, activation=None, W_regularizer=None,
          b_regularizer=None, bias=True, input_dim=None):  # fmt: skip
    """A linear layer on the last dimension."""
    return started(nn.Linear(shape[-1], output_dim, bias), initial(init, limits), activation)


@layer
def SparseDense(shape, output_dim, init="glorot_uniform", activation=None, W_regularizer=None, b_regularizer=None,
                backward_start=-1, backward_length=-1, init_weight=None, init_bias=None, init_grad_weight=None,
                init_grad_bias=None, bias=True, input_dim=None):  # fmt: skip
    """Dense: inputs are dense tensors here."""
    only("SparseDense", backward_start=(backward_start, -1), backward_length=(backward_length, -1))
    made = nn.Linear(shape[-1], output_dim, bias)
    whole = started(made, init, activation)
    for weight, given in ((made.weight, init_weight), (made.bias, init_bias)):
        if given is not None:
            weight.data.copy_(torch.as_tensor(np.asarray(given), dtype=torch.float32).reshape(weight.shape))
    return whole


@layer
def Activation(shape, activation):
    """An activation by its name."""
    return _activation(activation)


_activation = activation


@layer
def Dropout(shape, p):
    """Zeros in place of some numbers in training."""
    return _module("Dropout", p)


@layer
def Flatten(shape):
    """A row as one dimension."""
    return nn.Flatten()


@layer
def Reshape(shape, target_shape):
    """A row in another shape; one -1 is found out."""
    return (
        nn.Unflatten(1, tuple(target_shape))
        if len(shape) == 1
        else nn.Sequential(nn.Flatten(), nn.Unflatten(1, tuple(target_shape)))
    )


class _Permuted(nn.Module):
    def __init__(self, dims: Sequence[int]) -> None:
        super().__init__()
        self.dims = tuple(dims)

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, *self.dims)


@layer
def Permute(shape, dims):
    """The dimensions of a row in another order, counted from 1."""
    return _Permuted(dims)


class _Repeated(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, self.count, *x.shape[1:])


@layer
def RepeatVector(shape, n):
    """Each row several times, along a new dimension of time."""
    return _Repeated(n)


@layer
def Masking(shape, mask_value=0.0):
    """Steps of time whose features all have a value, as zeros."""
    return _module("Masking", mask_value)


@layer
def MaxoutDense(shape, output_dim, nb_feature=4, W_regularizer=None, b_regularizer=None, bias=True, input_dim=None):
    """The largest of several linear layers."""
    return _module("Maxout", shape[-1], output_dim, nb_feature, bias)


@layer
def Highway(shape, activation=None, W_regularizer=None, b_regularizer=None, bias=True, input_dim=None):
    """A gate between the input and a layer on it."""
    return LAYERS["Highway"].made_by(shape[-1], bias, _activation(activation))


@layer
def Embedding(shape, input_dim, output_dim, init="uniform", weights=None, trainable=True, input_length=None,
              W_regularizer=None, mask_zero=False, padding_value=0, zero_based_id=True):  # fmt: skip
    """A row of the weight for each index."""
    padding = padding_value if mask_zero else None
    return _Indexed(_table(input_dim, output_dim, init, weights, trainable), 0 if zero_based_id else 1, padding)


@layer
def SparseEmbedding(shape, input_dim, output_dim, combiner="sum", max_norm=-1.0, init="uniform", W_regularizer=None):
    """The sum or mean of the rows of the weight for the indices of a row, which count from 1; 0 stands for none."""
    return _Combined(_table(input_dim, output_dim, init, None, True), combiner)


def _table(count: int, size: int, init: Any, weights: Any, trainable: bool) -> nn.Embedding:
    table = nn.Embedding(count, size)
    started(table, init)
    if weights is not None:
        table.weight.data.copy_(torch.as_tensor(np.asarray(weights), dtype=torch.float32).reshape(count, size))
    table.weight.requires_grad_(trainable)
    return table


class _Indexed(nn.Module):
    """A table whose indices begin with a number; the index of padding, where there is one, gives zeros."""

    def __init__(self, table: nn.Embedding, first: int, padding: int | None = None) -> None:
        super().__init__()
        self.table, self.first, self.padding = table, first, padding

    def forward(self, x: Tensor) -> Tensor:
        places = x.long() - self.first
        count = self.table.num_embeddings
        if self.padding is not None:
            kept = x.long() != self.padding
            return self._rows(x, torch.where(kept, places, 0), count) * kept.unsqueeze(-1)
        if self.first and not x.any():
            places = torch.zeros_like(places)  # zeros stand for no index while shapes are found
        return self._rows(x, places, count)

    def _rows(self, x: Tensor, places: Tensor, count: int) -> Tensor:
        if places.numel() and not (int(places.min()) >= 0 and int(places.max()) < count):
            raise DataError(
                f"an index counts from {self.first} to {count - 1 + self.first}; got {int(x.min())} to {int(x.max())}"
            )
        return self.table(places)


class _Combined(nn.Module):
    def __init__(self, table: nn.Embedding, combiner: str) -> None:
        super().__init__()
        self.table, self.combiner = table, combiner

    def forward(self, x: Tensor) -> Tensor:
        there = (x > 0).unsqueeze(-1).to(self.table.weight.dtype)
        total = (self.table((x.long() - 1).clamp(min=0)) * there).sum(-2)
        count = there.sum(-2).clamp(min=1)
        return {"sum": total, "mean": total / count, "sqrtn": total / count.sqrt()}[self.combiner]


@layer
def WordEmbedding(shape, embedding_file, word_index=None, trainable=False, input_length=None):
    """Word vectors of a file in GloVe's format; the index 0 is for words without a vector."""
    vectors = {}
    with open(embedding_file, encoding="utf-8") as lines:
        for line in lines:
            word, *numbers = line.rstrip().split(" ")
            if word_index is None or word in word_index:
                vectors[word] = np.array(numbers, np.float32)
    if not vectors:
        raise ArgumentError(f"{embedding_file} has no vectors of the words of word_index.")
    places = word_index or {word: at + 1 for at, word in enumerate(vectors)}
    weights = np.zeros((max(places.values()) + 1, len(next(iter(vectors.values())))), np.float32)
    for word, vector in vectors.items():
        weights[places[word]] = vector
    return _Indexed(_table(len(weights), weights.shape[1], "zero", weights, trainable), 0)


@layer
def BatchNormalization(shape, epsilon=0.001, mode=0, axis=1, momentum=0.99, beta_init="zero", gamma_init="one",
                       dim_ordering="th"):  # fmt: skip
    """Channels (or features) with mean 0 and deviation 1 over the batch, scaled."""
    order = dim_ordering if len(shape) == 3 else "th"
    only("BatchNormalization", mode=(mode, 0))
    if len(shape) not in (1, 3):
        raise ArgumentError(f"BatchNormalization takes rows of features or of images; got rows of shape {shape}.")
    if axis not in ((1,) if form(order) == "NCHW" else (1, 3, -1)) and not (len(shape) == 1 and axis == -1):
        raise ArgumentError(f"BatchNormalization is over the channels, which dim_ordering says; got axis={axis}.")
    norm = rows._BatchNorm(channels(shape, order), epsilon, 1 - momentum, True, form(order))
    initial(gamma_init).fill(norm.weight)
    initial(beta_init).fill(norm.bias)
    return norm


# Rows of BigDL under the same name: name -> arguments that have another name here.


def _same_row(name: str, renames: dict[str, str]) -> None:
    """Put a layer of `bigdl.nn.layer` into the table, its arguments under the names that they have here."""
    import inspect

    signature = LAYERS[name].signature
    back = {new: old for old, new in renames.items()}
    parameters = [p.replace(name=renames.get(p.name, p.name)) for p in signature.parameters.values()]

    def row(shape: Any, **given: Any) -> nn.Module:
        return _module(name, **{back.get(key, key): value for key, value in given.items()})

    row.__name__, row.__doc__, row.__module__ = name, LAYERS[name].__doc__, __name__
    plain = [p for p in parameters if p.name not in ("inplace", "ip")]
    row.__signature__ = inspect.Signature([inspect.Parameter("shape", inspect.Parameter.POSITIONAL_OR_KEYWORD), *plain])  # type: ignore[attr-defined]
    layer(row)


for _name, _renames in {
    "ELU": {}, "LeakyReLU": {"negval": "alpha"}, "PReLU": {"n_output_plane": "nOutputPlane"}, "RReLU": {},
    "HardShrink": {"the_lambda": "value"}, "HardTanh": {}, "SoftShrink": {"the_lambda": "value"}, "Threshold": {},
    "BinaryThreshold": {"th": "value"}, "Exp": {}, "Log": {}, "Sqrt": {}, "Square": {}, "Negative": {}, "Identity": {},
    "Power": {}, "AddConstant": {"constant_scalar": "constant"}, "MulConstant": {"scalar": "constant"}, "Mul": {}, "CAdd": {},
    "CMul": {}, "Scale": {}, "GaussianDropout": {"rate": "p"}, "GaussianNoise": {"stddev": "sigma"}, "GaussianSampler": {},
    "SpatialDropout1D": {"init_p": "p"},
}.items():  # fmt: skip
    _same_row(_name, _renames)


@layer
def SReLU(shape, t_left_init="zero", a_left_init="glorot_uniform", t_right_init="glorot_uniform", a_right_init="one",
          shared_axes=None):  # fmt: skip
    """x between two bounds, straight lines outside; bounds and slopes are learned."""
    made = LAYERS["SReLU"].made_by(shape, shared_axes)
    inits = (t_left_init, a_left_init, t_right_init, a_right_init)
    for weight, init in zip((made.left, made.left_slope, made.right, made.right_slope), inits, strict=True):
        initial(init).fill(weight)
    return made


@layer
def ThresholdedReLU(shape, theta=1.0):
    """x where it is over a threshold, else 0."""
    return _module("Threshold", theta, 0.0)


@layer
def SpatialDropout2D(shape, p=0.5, dim_ordering="th"):
    """Whole channels of images dropped in training."""
    return _module("SpatialDropout2D", p, form(dim_ordering))


@layer
def SpatialDropout3D(shape, p=0.5, dim_ordering="th"):
    """Whole channels of volumes dropped in training."""
    return _module("SpatialDropout3D", p, form(dim_ordering))


@layer
def LRN2D(shape, alpha=1e-4, k=1.0, beta=0.75, n=5, dim_ordering="th"):
    """Images divided by a power of what neighbouring channels have at the same place."""
    return _module("SpatialCrossMapLRN", n, alpha, beta, k, form(dim_ordering))


@layer
def WithinChannelLRN2D(shape, size=5, alpha=1.0, beta=0.75):
    """Images divided by a power of what the channel has around the place."""
    return _module("SpatialWithinChannelLRN", size, alpha, beta)


@layer
def ResizeBilinear(shape, output_height, output_width, align_corners=False, dim_ordering="th"):
    """Images of another size."""
    return _module("ResizeBilinear", output_height, output_width, align_corners, form(dim_ordering))


class _OnRow(nn.Module):
    """A function of tensors with their rows."""

    def __init__(self, name: str, *arguments: Any) -> None:
        super().__init__()
        self.name, self.arguments = name, arguments

    def forward(self, x: Any) -> Any:
        return _ROW_FUNCTIONS[self.name](x, *self.arguments)


_ROW_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "select": lambda x, dim, index: x.select(dim, index),
    "narrow": lambda x, dim, offset, length: x.narrow(dim, offset, x.shape[dim] - offset + length + 1 if length < 0 else length),
    "squeeze": lambda x, dims: x.squeeze(dims) if dims else x.reshape(len(x), *[size for size in x.shape[1:] if size != 1]),
    "expand": lambda x, dim: x.unsqueeze(dim),
    "max": lambda x, dim, value: x.amax(dim, keepdim=True) if value else x.argmax(dim, keepdim=True).to(x.dtype),
    "pick": lambda x, index: x[index],
    "shape": lambda x: torch.tensor([float(size) for size in x.shape]).expand(len(x), -1),
}  # fmt: skip


@layer
def Select(shape, dim, index):
    """The part of one index along a dimension, which goes; both count from 0, and the rows are dimension 0."""
    return _OnRow("select", dim, index)


@layer
def Narrow(shape, dim, offset, length=1):
    """Some indices along a dimension; both count from 0, and the rows are dimension 0."""
    return _OnRow("narrow", dim, offset, length)


@layer
def Squeeze(shape, dim=None):
    """The input without dimensions of 1; the rows are dimension 0."""
    return _OnRow("squeeze", () if dim is None else pair(dim, 1))


@layer
def ExpandDim(shape, dim):
    """The input with one more dimension of 1; the rows are dimension 0."""
    return _OnRow("expand", dim)


@layer
def Max(shape, dim, num_input_dims=-2147483648, return_value=True):
    """The largest along a dimension, or its place; the rows are dimension 0."""
    return _OnRow("max", dim, return_value)


@layer
def SelectTable(shape, index):
    """One tensor of several, counted from 0."""
    return _OnRow("pick", index)


@layer
def GetShape(shape):
    """The sizes of the input, for each row."""
    return _OnRow("shape")


# Images.


@layer
def Convolution1D(shape, nb_filter, filter_length, init="glorot_uniform", activation=None, limits=None,
                  border_mode="valid", subsample_length=1, W_regularizer=None, b_regularizer=None,
                  bias=True, input_dim=None, input_length=None):  # fmt: skip
    """A convolution over time of (time, features)."""
    how = initial(init, limits)
    return _convolution1d(shape, nb_filter, filter_length, subsample_length, border_mode, bias, how, activation)


def _convolution1d(shape: Any, filters: int, length: int, stride: int, border: str, bias: bool, init: Any, act: Any,
                   dilation: int = 1, bias_init: Any = "zero") -> nn.Module:  # fmt: skip
    kernel = rows._Convolution((shape[1], filters), (1, length), (1, stride), (0, 0) if border == "valid" else padding(border),
                               (1, dilation), bias=bias)  # fmt: skip
    started(kernel, init, None, bias_init)
    return nn.Sequential(_OverTime(kernel), activation(act))


class _OverTime(nn.Module):
    """A module of images on (time, features)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(1, 2).unsqueeze(2)).squeeze(2).transpose(1, 2)


@layer
def AtrousConvolution1D(shape, nb_filter, filter_length, init="glorot_uniform", activation=None,
                        border_mode="valid", subsample_length=1, atrous_rate=1, W_regularizer=None,
                        b_regularizer=None, bias=True, input_dim=None, input_length=None):  # fmt: skip
    """A convolution over time with holes in its kernel."""
    return _convolution1d(
        shape, nb_filter, filter_length, subsample_length, border_mode, bias, init, activation, atrous_rate
    )


def _convolution2d(shape: Any, filters: int, kernel: Any, stride: Any, border: str, order: str, bias:
                   bool, init: Any, act: Any, dilation: Any = 1, groups: int = 1,
                   bias_init: Any = "zero") -> nn.Module:  # fmt: skip
    made = rows._Convolution((channels(shape, order), filters), pair(kernel), pair(stride), padding(border), pair(dilation),  # type: ignore[arg-type]
                             groups, bias, form(order))  # fmt: skip
    return started(made, init, nn.Identity() if act is None else _by_channel(act, order), bias_init)


def _by_channel(act: Any, order: str) -> Any:
    """Return an activation of images; softmax is one over channels."""
    if act in ("softmax", "log_softmax"):
        place = 1 if form(order) == "NCHW" else -1
        return nn.Softmax(place) if act == "softmax" else nn.LogSoftmax(place)
    return act


@layer
def Convolution2D(shape, nb_filter, nb_row, nb_col, init="glorot_uniform", activation=None, border_mode="valid",
                  subsample=(1, 1), dim_ordering="th", W_regularizer=None, b_regularizer=None, bias=True):  # fmt: skip
    """A convolution of images."""
    return _convolution2d(
        shape, nb_filter, (nb_row, nb_col), subsample, border_mode, dim_ordering, bias, init, activation
    )


@layer
def ShareConvolution2D(shape, nb_filter, nb_row, nb_col, init="glorot_uniform", activation=None,
                       subsample=(1, 1), pad_h=0, pad_w=0, propagate_back=True, dim_ordering="th",
                       W_regularizer=None, b_regularizer=None, bias=True):  # fmt: skip
    """A convolution of images with padding in numbers."""
    made = rows._Convolution((channels(shape, dim_ordering), nb_filter), (nb_row, nb_col), pair(subsample), (pad_h, pad_w),  # type: ignore[arg-type]
                             bias=bias, form=form(dim_ordering), propagates=propagate_back)  # fmt: skip
    return started(made, init, activation)


@layer
def AtrousConvolution2D(shape, nb_filter, nb_row, nb_col, init="glorot_uniform", activation=None, border_mode="valid",
                        subsample=(1, 1), atrous_rate=(1, 1), dim_ordering="th", W_regularizer=None, b_regularizer=None,
                        bias=True):  # fmt: skip
    """A convolution of images with holes in its kernel."""
    return _convolution2d(shape, nb_filter, (nb_row, nb_col), subsample, border_mode, dim_ordering, bias, init, activation,
                          atrous_rate)  # fmt: skip


@layer
def Deconvolution2D(shape, nb_filter, nb_row, nb_col, output_shape=None, init="glorot_uniform",
                    activation=None, border_mode="valid", subsample=(1, 1), dim_ordering="th",
                    W_regularizer=None, b_regularizer=None, bias=True):  # fmt: skip
    """The transpose of a convolution: larger images."""
    only("Deconvolution2D", border_mode=(border_mode, "valid"))
    places = zip(
        shape[1:] if form(dim_ordering) == "NCHW" else shape[:2], (nb_row, nb_col), pair(subsample), strict=True
    )
    high, wide = ((size - 1) * step + span for size, span, step in places)
    whole = (nb_filter, high, wide) if form(dim_ordering) == "NCHW" else (high, wide, nb_filter)
    if output_shape is not None and tuple(output_shape)[-3:] != whole:
        raise ArgumentError(
            f"Deconvolution2D gives rows of shape {whole} here; got output_shape={tuple(output_shape)}."
        )
    made = nn.ConvTranspose2d(channels(shape, dim_ordering), nb_filter, (nb_row, nb_col), pair(subsample), bias=bias)  # type: ignore[arg-type]
    return turned(started(made, init, activation), dim_ordering, 2)


@layer
def SeparableConvolution2D(shape, nb_filter, nb_row, nb_col, init="glorot_uniform", activation=None,
                           border_mode="valid", subsample=(1, 1), depth_multiplier=1, dim_ordering="th",
                           depthwise_regularizer=None, pointwise_regularizer=None, b_regularizer=None,
                           bias=True):  # fmt: skip
    """A convolution of each channel by itself, then one of 1 x 1."""
    pad = padding(border_mode)
    made = LAYERS["SpatialSeparableConvolution"].made_by(
        channels(shape, dim_ordering), nb_filter, depth_multiplier, nb_col, nb_row, subsample[1], subsample[0], *pad, bias,
        form(dim_ordering),
    )  # fmt: skip
    return started(made, init, activation)


@layer
def Convolution3D(shape, nb_filter, kernel_dim1, kernel_dim2, kernel_dim3, init="glorot_uniform",
                  activation=None, border_mode="valid", subsample=(1, 1, 1), dim_ordering="th",
                  W_regularizer=None, b_regularizer=None, bias=True):  # fmt: skip
    """A convolution of volumes."""
    same = padding(border_mode) != (0, 0)
    if same and pair(subsample, 3) != (1, 1, 1):
        raise ArgumentError("Convolution3D has border_mode 'same' for a subsample of (1, 1, 1) alone.")
    made = nn.Conv3d(channels(shape, dim_ordering), nb_filter, (kernel_dim1, kernel_dim2, kernel_dim3), pair(subsample, 3),  # type: ignore[arg-type]
                     "same" if same else 0, bias=bias)  # fmt: skip
    return turned(started(made, init, activation), dim_ordering, 3)


@layer
def LocallyConnected1D(shape, nb_filter, filter_length, activation=None, border_mode="valid",
                       subsample_length=1, W_regularizer=None, b_regularizer=None, bias=True,
                       input_dim=None, input_length=None):  # fmt: skip
    """A convolution over time with weights of its own at each step."""
    return _local1d(shape, nb_filter, filter_length, subsample_length, activation, bias, border_mode=border_mode)


def _local1d(shape: Any, filters: int, length: int, stride: int, act: Any, bias: bool, **border: str) -> nn.Module:
    only("LocallyConnected1D", **{name: (value, "valid") for name, value in border.items()})
    made = LAYERS["LocallyConnected1D"].made_by(shape[0], shape[1], filters, length, stride)
    if not bias:
        made.bias = None
    return nn.Sequential(made, _activation(act))


@layer
def LocallyConnected2D(shape, nb_filter, nb_row, nb_col, activation=None, border_mode="valid", subsample=(1, 1),
                       dim_ordering="th", W_regularizer=None, b_regularizer=None, bias=True):  # fmt: skip
    """A convolution of images with weights of its own at each place."""
    high, wide = shape[1:] if form(dim_ordering) == "NCHW" else shape[:2]
    same = padding(border_mode) != (0, 0)
    if same and not (tuple(subsample) == (1, 1) and nb_row % 2 and nb_col % 2):
        raise ArgumentError(
            "LocallyConnected2D has border_mode='same' for odd kernels and a subsample of (1, 1) alone."
        )
    pad_w, pad_h = (nb_col // 2, nb_row // 2) if same else (0, 0)
    made = LAYERS["LocallyConnected2D"].made_by(
        channels(shape, dim_ordering), wide, high, nb_filter, nb_col, nb_row, subsample[1], subsample[0], pad_w, pad_h,
        with_bias=bias, data_format=form(dim_ordering),
    )  # fmt: skip
    return nn.Sequential(made, _activation(activation))


class _Pool(nn.Module):
    """The largest or the mean of windows, over time, images or volumes with channels first."""

    def __init__(self, kind: str, size: tuple[int, ...], stride: tuple[int, ...], border: str) -> None:
        super().__init__()
        self.kind, self.size, self.stride, self.same = kind, size, stride, padding(border) != (0, 0)

    def forward(self, x: Tensor) -> Tensor:
        dims = len(self.size)
        pool: Any = {("max", 1): F.max_pool1d, ("max", 2): F.max_pool2d, ("max", 3): F.max_pool3d, ("average", 1): F.avg_pool1d,
                     ("average", 2): F.avg_pool2d, ("average", 3): F.avg_pool3d}[self.kind, dims]  # fmt: skip
        if not self.same:
            return pool(x, self.size, self.stride)
        pad = rows.same_padding(x, self.size, self.stride)
        if self.kind == "max":
            return pool(F.pad(x, pad, value=-math.inf), self.size, self.stride)
        sums, shares = (pool(F.pad(each, pad), self.size, self.stride) for each in (x, torch.ones_like(x)))
        return sums / shares


def _pooled(kind: str, size: Any, stride: Any, border: str, order: str, dims: int) -> nn.Module:
    sizes = pair(size, dims)
    return turned(_Pool(kind, sizes, sizes if stride is None else pair(stride, dims), border), order, dims)


@layer
def MaxPooling1D(shape, pool_length=2, stride=None, border_mode="valid"):
    """The largest of some steps of (time, features)."""
    return _pooled("max", pool_length, None if stride in (None, -1) else stride, border_mode, "tf", 1)


@layer
def AveragePooling1D(shape, pool_length=2, stride=None, border_mode="valid"):
    """The mean of some steps of (time, features)."""
    return _pooled("average", pool_length, None if stride in (None, -1) else stride, border_mode, "tf", 1)


@layer
def MaxPooling2D(shape, pool_size=(2, 2), strides=None, border_mode="valid", dim_ordering="th"):
    """The largest number of each window of images."""
    return _pooled("max", pool_size, strides, border_mode, dim_ordering, 2)


@layer
def AveragePooling2D(shape, pool_size=(2, 2), strides=None, border_mode="valid", dim_ordering="th"):
    """The mean of each window of images."""
    return _pooled("average", pool_size, strides, border_mode, dim_ordering, 2)


@layer
def MaxPooling3D(shape, pool_size=(2, 2, 2), strides=None, border_mode="valid", dim_ordering="th"):
    """The largest number of each window of volumes."""
    return _pooled("max", pool_size, strides, border_mode, dim_ordering, 3)


@layer
def AveragePooling3D(shape, pool_size=(2, 2, 2), strides=None, border_mode="valid", dim_ordering="th"):
    """The mean of each window of volumes."""
    return _pooled("average", pool_size, strides, border_mode, dim_ordering, 3)


class _Global(nn.Module):
    """The largest or the mean over some dimensions."""

    def __init__(self, kind: str, dims: Sequence[int]) -> None:
        super().__init__()
        self.kind, self.dims = kind, tuple(dims)

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(self.dims) if self.kind == "max" else x.mean(self.dims)


def _over_all(kind: str, order: str, dims: int) -> nn.Module:
    return _Global(kind, range(2, 2 + dims) if form(order) == "NCHW" else range(1, 1 + dims))


@layer
def GlobalMaxPooling1D(shape):
    """The largest of all steps of (time, features)."""
    return _over_all("max", "tf", 1)


@layer
def GlobalAveragePooling1D(shape):
    """The mean of all steps of (time, features)."""
    return _over_all("average", "tf", 1)


@layer
def GlobalMaxPooling2D(shape, dim_ordering="th"):
    """The largest number of each channel."""
    return _over_all("max", dim_ordering, 2)


@layer
def GlobalAveragePooling2D(shape, dim_ordering="th"):
    """The mean of each channel."""
    return _over_all("average", dim_ordering, 2)


@layer
def GlobalMaxPooling3D(shape, dim_ordering="th"):
    """The largest number of each channel of volumes."""
    return _over_all("max", dim_ordering, 3)


@layer
def GlobalAveragePooling3D(shape, dim_ordering="th"):
    """The mean of each channel of volumes."""
    return _over_all("average", dim_ordering, 3)


class _Padded(nn.Module):
    """Zeros around the dimensions behind the channels; numbers below 0 cut."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.sizes)


def _ends(value: Any, dims: int, sign: int = 1) -> list[int]:
    """Return what F.pad takes: one number a dimension for both ends, or a pair for each."""
    given = value if isinstance(value, list | tuple) else (value,) * dims
    if dims == 2 and len(given) == 4 and all(isinstance(size, int) for size in given):
        given = (given[:2], given[2:])
    if dims == 1 and len(given) == 2:
        given = (given,)
    pairs = [(size, size) if isinstance(size, int) else tuple(size) for size in given]
    return [sign * size for both in reversed(pairs) for size in both]


@layer
def ZeroPadding1D(shape, padding=1):
    """Zeros before and behind the steps of (time, features)."""
    return turned(_Padded(_ends(padding, 1)), "tf", 1)


@layer
def ZeroPadding2D(shape, padding=(1, 1), dim_ordering="th"):
    """Zeros around images."""
    return turned(_Padded(_ends(padding, 2)), dim_ordering, 2)


@layer
def ZeroPadding3D(shape, padding=(1, 1, 1), dim_ordering="th"):
    """Zeros around volumes."""
    return turned(_Padded(_ends(padding, 3)), dim_ordering, 3)


@layer
def Cropping1D(shape, cropping=(1, 1)):
    """(time, features) without some steps at its ends."""
    return turned(_Padded(_ends(cropping, 1, -1)), "tf", 1)


@layer
def Cropping2D(shape, cropping=((0, 0), (0, 0)), dim_ordering="th"):
    """Images without some rows and columns at their ends."""
    return turned(_Padded(_ends(cropping, 2, -1)), dim_ordering, 2)


@layer
def Cropping3D(shape, cropping=((1, 1), (1, 1), (1, 1)), dim_ordering="th"):
    """Volumes without some planes at their ends."""
    return turned(_Padded(_ends(cropping, 3, -1)), dim_ordering, 3)


@layer
def UpSampling1D(shape, length=2):
    """Each step of (time, features) several times."""
    return _module("UpSampling1D", length)


@layer
def UpSampling2D(shape, size=(2, 2), dim_ordering="th"):
    """Each row and column of images several times."""
    return _module("UpSampling2D", pair(size), form(dim_ordering))


@layer
def UpSampling3D(shape, size=(2, 2, 2), dim_ordering="th"):
    """Each plane, row and column of volumes several times."""
    return turned(_module("UpSampling3D", pair(size, 3)), dim_ordering, 3)


# Time.


class _Unrolled(nn.Module):
    """A cell over (time, ...), and the last output or all of them."""

    def __init__(self, cell: nn.Module, sequences: bool, backwards: bool) -> None:
        super().__init__()
        self.cell, self.sequences, self.backwards = cell, sequences, backwards

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = recurrent.unroll(self.cell, x.flip(1) if self.backwards else x)
        return outputs if self.sequences else state[0]


def _recurrent(cell: nn.Module, init: str, inner_init: str, sequences: bool, backwards: bool) -> nn.Module:
    started(cell, init)
    for name, parameter in cell.named_parameters():
        if name.startswith("hidden") and inner_init == "orthogonal":
            nn.init.orthogonal_(parameter)
    return _Unrolled(cell, sequences, backwards)


@layer
def SimpleRNN(shape, output_dim, init="glorot_uniform", inner_init="orthogonal", activation="tanh",
              return_sequences=False, go_backwards=False, W_regularizer=None, U_regularizer=None,
              b_regularizer=None, input_dim=None):  # fmt: skip
    """A recurrent layer without gates."""
    cell = LAYERS["RnnCell"].made_by(shape[1], output_dim, _activation(activation), True, False)
    return _recurrent(cell, init, inner_init, return_sequences, go_backwards)


@layer
def LSTM(shape, output_dim, init="glorot_uniform", inner_init="orthogonal", activation="tanh",
         inner_activation="hard_sigmoid", return_sequences=False, go_backwards=False, W_regularizer=None,
         U_regularizer=None, b_regularizer=None, input_dim=None):  # fmt: skip
    """A recurrent layer with a memory."""
    cell = LAYERS["LSTM"].made_by(shape[1], output_dim, 0.0, _activation(activation), _activation(inner_activation))
    return _recurrent(cell, init, inner_init, return_sequences, go_backwards)


@layer
def GRU(shape, output_dim, init="glorot_uniform", inner_init="orthogonal", activation="tanh",
        inner_activation="hard_sigmoid", return_sequences=False, go_backwards=False, W_regularizer=None,
        U_regularizer=None, b_regularizer=None, input_dim=None):  # fmt: skip
    """A recurrent layer with two gates."""
    cell = LAYERS["GRU"].made_by(shape[1], output_dim, 0.0, _activation(activation), _activation(inner_activation))
    return _recurrent(cell, init, inner_init, return_sequences, go_backwards)


@layer
def ConvLSTM2D(shape, nb_filter, nb_kernel, activation="tanh", inner_activation="hard_sigmoid",
               dim_ordering="th", subsample=1, W_regularizer=None, U_regularizer=None, b_regularizer=None,
               return_sequences=False, go_backwards=False, border_mode="same"):  # fmt: skip
    """An LSTM of images, whose sums are convolutions."""
    only("ConvLSTM2D", dim_ordering=(dim_ordering, "th"), border_mode=(border_mode, "same"))
    acts = _activation(activation), _activation(inner_activation)
    cell = recurrent._ConvolutionCell(2, (shape[1], nb_filter), (nb_kernel, nb_kernel), subsample, False, *acts)
    return _Unrolled(cell, return_sequences, go_backwards)


@layer
def ConvLSTM3D(shape, nb_filter, nb_kernel, dim_ordering="th", subsample=1, W_regularizer=None, U_regularizer=None,
               b_regularizer=None, return_sequences=False, go_backwards=False, border_mode="same"):  # fmt: skip
    """An LSTM of volumes, whose sums are convolutions."""
    only("ConvLSTM3D", dim_ordering=(dim_ordering, "th"), border_mode=(border_mode, "same"))
    cell = recurrent._ConvolutionCell(3, (shape[1], nb_filter), (nb_kernel, nb_kernel), subsample, False)
    return _Unrolled(cell, return_sequences, go_backwards)


@layer
def TimeDistributed(shape, layer):
    """A layer on every step of (time, ...)."""
    return LAYERS["TimeDistributed"].made_by(layer.build(tuple(shape[1:])).module)


class _TwoWays(nn.Module):
    def __init__(self, forth: nn.Module, back: nn.Module, mode: str) -> None:
        super().__init__()
        self.forth, self.back, self.mode = forth, back, mode

    def forward(self, x: Tensor) -> Tensor:
        ways = [self.forth(x), self.back(x.flip(1))]
        if getattr(self.back, "sequences", False):
            ways[1] = ways[1].flip(1)
        return torch.cat(ways, -1) if self.mode == "concat" else MERGES[self.mode](ways)


@layer
def Bidirectional(shape, layer, merge_mode="concat"):
    """A recurrent layer forwards and another like it backwards."""
    if merge_mode not in ("concat", "sum", "mul", "ave"):
        raise ArgumentError(f"merge_mode must be 'concat', 'sum', 'mul' or 'ave'; got {merge_mode!r}.")
    other = type(layer)(**layer.arguments)
    return _TwoWays(layer.build(tuple(shape)).module, other.build(tuple(shape)).module, merge_mode)


# Several inputs.


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
    from functools import reduce

    return lambda tensors: reduce(function, tensors)


MERGES: dict[str, Callable[..., Any]] = {
    "sum": _fold(torch.add), "mul": _fold(torch.mul), "max": _fold(torch.maximum), "min": _fold(torch.minimum),
    "ave": lambda tensors: sum(tensors) / len(tensors), "sub": _fold(torch.sub), "div": _fold(torch.div),
    "dot": lambda tensors: (tensors[0] * tensors[1]).sum(-1, keepdim=True),
    "cosine": lambda tensors: F.cosine_similarity(tensors[0], tensors[1], dim=-1).unsqueeze(-1),
}  # fmt: skip


class _Merged(nn.Module):
    """Several inputs as one, each behind a layer of its own where there are layers."""

    def __init__(self, mode: str, axis: int, parts: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.mode, self.axis, self.parts = mode, axis, nn.ModuleList(parts)

    def forward(self, x: Any) -> Any:
        tensors = [part(each) for part, each in zip(self.parts, x, strict=True)] if len(self.parts) else list(x)
        if self.mode == "concat":
            return torch.cat(tensors, self.axis)
        shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
        if len(shapes) > 1:
            raise DataError(f"inputs of different shapes: {sorted(shapes)}")
        return MERGES[self.mode](tensors)


@layer
def Merge(shape, layers=None, mode="sum", concat_axis=-1):
    """Several inputs (each behind a layer of its own where there are layers) as one."""
    if mode not in (*MERGES, "concat"):
        raise ArgumentError(f"mode must be one of {', '.join([*MERGES, 'concat'])}; got {mode!r}.")
    parts = [part.build(part.shape_in or part.given or own) for part, own in zip(layers or [], shape, strict=False)]
    return _Merged(mode, concat_axis, [part.module for part in parts])


class _MergeOfLayers(Merge):  # type: ignore[misc, valid-type]
    """Merge, whose inputs are those of its layers."""

    given: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layers = list(self.arguments["layers"] or [])
        shapes = [part.shape_in if part.shape_in is not None else part.given for part in self.layers]
        if self.given is None and shapes and all(shape is not None for shape in shapes):
            self.given = shapes


_MergeOfLayers.__name__ = _MergeOfLayers.__qualname__ = "Merge"
_MergeOfLayers.__doc__ = Merge.__doc__
Merge = KERAS["Merge"] = _MergeOfLayers


def merge(inputs: Sequence[Variable], mode: str = "sum", concat_axis: int = -1, name: str | None = None) -> Variable:
    """Return several variables as one."""
    variable: Variable = Merge(mode=mode, concat_axis=concat_axis, name=name)(list(inputs))
    return variable


# Keras 2.


def _mode(name: str, mode: str) -> tuple[Any, Any]:
    def row(shape: Any) -> nn.Module:
        return _Merged(mode, -1)

    row.__doc__, row.__module__, row.__name__ = f"Several inputs as one: their {name.lower()}.", __name__, name
    kind = layer2(row)

    def function(inputs: Sequence[Variable], **more: Any) -> Variable:
        variable: Variable = kind(**more)(list(inputs))
        return variable

    function.__doc__, function.__name__ = f"Return the {name.lower()} of several variables.", name.lower()
    return kind, function


Maximum, maximum = _mode("Maximum", "max")
Minimum, minimum = _mode("Minimum", "min")
Average, average = _mode("Average", "ave")


@keras_layer(KERAS2, "Dense")
def Dense2(shape, units, kernel_initializer="glorot_uniform", bias_initializer="zero", activation=None,
           kernel_regularizer=None, bias_regularizer=None, use_bias=True, input_dim=None):  # fmt: skip
    """A linear layer on the last dimension."""
    return started(nn.Linear(shape[-1], units, use_bias), kernel_initializer, activation, bias_initializer)


@layer2
def Conv1D(shape, filters, kernel_size, strides=1, padding="valid", activation=None, use_bias=True,
           kernel_initializer="glorot_uniform", bias_initializer="zero", kernel_regularizer=None,
           bias_regularizer=None):  # fmt: skip
    """A convolution over time of (time, features)."""
    return _convolution1d(shape, filters, kernel_size, strides, padding, use_bias, kernel_initializer, activation,
                          bias_init=bias_initializer)  # fmt: skip


@layer2
def Conv2D(shape, filters, kernel_size, strides=(1, 1), padding="valid", data_format="channels_first", activation=None,
           use_bias=True, kernel_initializer="glorot_uniform", bias_initializer="zero", kernel_regularizer=None,
           bias_regularizer=None):  # fmt: skip
    """A convolution of images."""
    return _convolution2d(
        shape, filters, kernel_size, strides, padding, data_format, use_bias, kernel_initializer, activation,
        bias_init=bias_initializer,
    )  # fmt: skip


@keras_layer(KERAS2, "MaxPooling1D")
def MaxPooling1D2(shape, pool_size=2, strides=None, padding="valid"):
    """The largest of some steps of (time, features)."""
    return _pooled("max", pool_size, strides, padding, "tf", 1)


@keras_layer(KERAS2, "AveragePooling1D")
def AveragePooling1D2(shape, pool_size=2, strides=None, padding="valid"):
    """The mean of some steps of (time, features)."""
    return _pooled("average", pool_size, strides, padding, "tf", 1)


@keras_layer(KERAS2, "Dropout")
def Dropout2(shape, rate):
    """Zeros in place of some numbers in training."""
    return _module("Dropout", rate)


@layer2
def Softmax(shape, axis=-1):
    """Softmax over the last dimension."""
    return nn.Softmax(axis)


@keras_layer(KERAS2, "Cropping1D")
def Cropping1D2(shape, cropping=(1, 1)):
    """(time, features) without some steps at its ends."""
    return turned(_Padded(_ends(cropping, 1, -1)), "tf", 1)


@keras_layer(KERAS2, "LocallyConnected1D")
def LocallyConnected1D2(shape, filters, kernel_size, strides=1, padding="valid", activation=None,
                        kernel_regularizer=None, bias_regularizer=None, use_bias=True):  # fmt: skip
    """A convolution over time with weights of its own at each step."""
    return _local1d(shape, filters, kernel_size, strides, activation, use_bias, padding=padding)


for _name in ("Activation", "Flatten", "GlobalAveragePooling1D", "GlobalMaxPooling1D", "GlobalAveragePooling2D",
              "GlobalMaxPooling2D", "GlobalAveragePooling3D"):  # fmt: skip
    KERAS2[_name] = KERAS[_name]

__all__ = ["ACTIVATIONS", "KERAS", "KERAS2", "KerasLayer", "average", "maximum", "merge", "minimum", "nchw", "zeros"]
