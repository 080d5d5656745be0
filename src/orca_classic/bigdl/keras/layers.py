"""Layers: the layers of the Keras-style API as rows of tables. Owns the arguments of Keras 1 (and keras2)'s layers.

`keras_rows` of `engine.py` documents the rows. Images have channels first ("th") unless dim_ordering is "tf". Most
rows are modules of `orca_classic.bigdl.layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orca.errors import ArgumentError, DataError
from orca_classic.bigdl.initial import HeNormal, InitializationMethod, Ones, RandomNormal, RandomUniform, Xavier, Zeros
from orca_classic.bigdl.keras.engine import KERAS, KERAS2, Variable, keras_rows
from orca_classic.bigdl.layer import LAYERS, Holder, Layer, Weights, signed, table_of
from orca_classic.bigdl.layers import BatchNorm, Convolution, ordered, padded, pooled, repeated, table_places
from orca_classic.bigdl.recurrent import ConvolutionCell, unroll

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "softplus": nn.Softplus, "softsign": nn.Softsign,
    "elu": nn.ELU, "hard_sigmoid": lambda: _of("HardSigmoid"), "softmax": lambda: nn.Softmax(-1),
    "log_softmax": lambda: nn.LogSoftmax(-1), "relu6": nn.ReLU6, "tanh_shrink": nn.Tanhshrink,
    "softmin": lambda: nn.Softmin(-1), "log_sigmoid": nn.LogSigmoid, "linear": nn.Identity, "gelu": nn.GELU,
}  # fmt: skip
INITIAL: dict[str, InitializationMethod] = {
    "glorot_uniform": Xavier(), "one": Ones(), "zero": Zeros(), "uniform": RandomUniform(-0.05, 0.05), "ones": Ones(),
    "normal": RandomNormal(0.0, 0.05), "he_normal": HeNormal(), "zeros": Zeros(),
    "random_uniform": RandomUniform(-0.05, 0.05),
}  # fmt: skip


def _of(name: str, *args: Any, **kwargs: Any) -> nn.Module:
    return LAYERS[name](*args, **kwargs).module


# Arguments.


def _chosen(what: str, value: Any, choices: Sequence[str]) -> Any:
    if value not in choices:
        raise ArgumentError(f"{what} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
    return value


def _only(layer: str, **settings: tuple[Any, Any]) -> None:
    """Refuse arguments with another value than the supported one: name=(value, supported)."""
    for name, (value, one) in settings.items():
        if value != one:
            raise ArgumentError(f"{layer} supports {name}={one!r} alone; got {value!r}.")


def activated(activation: Any) -> nn.Module:
    """Return the module of an activation: its name, a layer, a module, or None."""
    if isinstance(activation, Layer):
        return activation.module
    if activation is None or isinstance(activation, nn.Module):
        return activation or nn.Identity()
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"there is no activation {activation!r}; there are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[activation]()


def initial(init: Any, limits: Any = None) -> InitializationMethod:
    """Return the initialisation method of a name, or a method unchanged; limits are the bounds of uniform numbers."""
    method = INITIAL.get(init) if isinstance(init, str) else init
    if method is None or not hasattr(method, "fill"):
        raise ArgumentError(f"there is no init {init!r}; there are {', '.join(INITIAL)}, or an initialisation method.")
    if limits is not None and not isinstance(method, RandomUniform):
        raise ArgumentError(f"limits are the bounds of init='uniform'; got init={init!r}. Leave limits out.")
    return method if limits is None else RandomUniform(*limits)


def started(module: nn.Module, init: Any = "glorot_uniform", act: Any = None, bias: Any = "zero") -> nn.Module:
    """Draw the weights of a module by `init` and its bias by `bias`; return it, followed by an activation."""
    method, other = initial(init), initial(bias)
    for name, parameter in module.named_parameters():
        (other if "bias" in name.rsplit(".", 1)[-1] else method).fill(parameter, getattr(module, "groups", 1))
    return nn.Sequential(module, activated(act)) if act is not None else module


def _pair(value: Any, count: int = 2) -> tuple[int, ...]:
    return (int(value),) * count if isinstance(value, int | np.integer) else tuple(value)


def _form(dim_ordering: str) -> str:
    _chosen("dim_ordering", dim_ordering, ("th", "tf", "channels_first", "channels_last"))
    return "NCHW" if dim_ordering in ("th", "channels_first") else "NHWC"


def _channels(shape: Sequence[int], dim_ordering: str) -> int:
    return shape[0] if _form(dim_ordering) == "NCHW" else shape[-1]


def _border(mode: str, dims: int = 2) -> tuple[int, ...]:
    return (0 if _chosen("border_mode", mode, ("valid", "same")) == "valid" else -1,) * dims


def _ends(value: Any, dims: int) -> list[tuple[int, int]]:
    """Return pairs of numbers, one for each dimension: of one number for both ends, of pairs, or of four in a row."""
    sizes = value if isinstance(value, list | tuple) else (value,) * dims
    if dims == 2 and len(sizes) == 4:
        sizes = (sizes[:2], sizes[2:])
    if dims == 1 and len(sizes) == 2:
        sizes = (sizes,)
    return [(size, size) if isinstance(size, int) else tuple(size) for size in sizes]


# Modules.


def _indexed(m: Any, x: Tensor) -> Tensor:
    """Return rows of a table for indices that count from `first`; the padding index, if any, gives zeros."""
    valid = torch.ones_like(x, dtype=torch.bool) if m.padding is None else x != m.padding
    rows = m.table(table_places(torch.where(valid, x, m.first), m.first, m.table.num_embeddings))
    return rows if m.padding is None else rows * valid.unsqueeze(-1)


def _table(count: int, size: int, init: Any, weights: Any, trainable: bool, first: int, padding: Any) -> nn.Module:
    table = nn.Embedding(count, size)
    started(table, init)
    if weights is not None:
        table.weight.data.copy_(torch.as_tensor(np.asarray(weights), dtype=torch.float32).reshape(table.weight.shape))
    table.weight.requires_grad_(trainable)
    return Weights(computes=_indexed, table=table, first=first, padding=padding)


def _vectors_in(embedding_file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the words of a file in GloVe's format, with their numbers."""
    with open(embedding_file, encoding="utf-8") as lines:
        for line in lines:
            word, *numbers = line.rstrip().split(" ")
            yield word, numbers


def _word_vectors(embedding_file: str, word_index: Mapping[str, int] | None, trainable: bool) -> nn.Module:
    vectors = {
        word: np.array(numbers, np.float32)
        for word, numbers in _vectors_in(embedding_file)
        if word_index is None or word in word_index
    }
    if not vectors:
        raise ArgumentError(f"{embedding_file} has no vectors of the words of word_index.")
    places = word_index or {word: at + 1 for at, word in enumerate(vectors)}
    weights = np.zeros((max(places.values()) + 1, len(next(iter(vectors.values())))), np.float32)
    for word, vector in vectors.items():
        weights[places[word]] = vector
    return _table(*weights.shape, "zero", weights, trainable, 0, None)


def _normalized(shape: Any, epsilon: float, mode: int, axis: int, momentum: float, beta_init: Any, gamma_init: Any,
                dim_ordering: str) -> nn.Module:  # fmt: skip
    _only("BatchNormalization", mode=(mode, 0))
    order = dim_ordering if len(shape) == 3 else "th"
    if len(shape) not in (1, 3):
        raise ArgumentError(f"BatchNormalization takes rows of features or of images; got rows of shape {shape}.")
    if axis not in ((1,) if _form(order) == "NCHW" else (1, 3, -1)) and not (len(shape) == 1 and axis == -1):
        raise ArgumentError(f"BatchNormalization is over the channels, which dim_ordering says; got axis={axis}.")
    norm = BatchNorm(_channels(shape, order), epsilon, 1 - momentum, True, _form(order))
    initial(gamma_init).fill(norm.weight)
    initial(beta_init).fill(norm.bias)
    return norm


def _srelu(shape: Any, shared_axes: Any, **inits: Any) -> nn.Module:
    module = _of("SReLU", shape, shared_axes)
    for weight, init in zip(module.parameters(), inits.values(), strict=True):
        initial(init).fill(weight)
    return module


def _dense(shape: Any, output_dim: int, init: Any, activation: Any, bias: bool, limits: Any = None,
           bias_init: Any = "zero", **gradient: int) -> nn.Module:  # fmt: skip
    module = _of("SparseLinear", shape[-1], output_dim, bias, *gradient.values())
    return started(module, initial(init, limits), activation, bias_init)


def _convolution(shape: Any, nb_filter: int, init: Any, activation: Any, bias: bool, border_mode: str = "valid",
                 subsample: Any = 1, dim_ordering: str = "tf", limits: Any = None, atrous_rate: Any = None,
                 pad_h: int = 0, pad_w: int = 0, propagate_back: bool = True, bias_init: Any = "zero",
                 **kernel: Any) -> nn.Module:  # fmt: skip
    """Return a convolution over all dimensions of a row but the channels; a softmax after it is over channels."""
    dims, form, act = len(shape) - 1, _form(dim_ordering), activation
    sizes = _pair(next(iter(kernel.values())), dims) if len(kernel) == 1 else tuple(kernel.values())
    padding = (pad_h, pad_w) if pad_h or pad_w else _border(border_mode, dims)
    layout = "groups" if dims < 3 and atrous_rate is None else "plain"
    module = Convolution((_channels(shape, dim_ordering), nb_filter), sizes, _pair(subsample, dims), padding,
                       _pair(atrous_rate or 1, dims), 1, bias, form, propagate_back, layout)  # fmt: skip
    if act in ("softmax", "log_softmax"):
        act = (nn.Softmax if act == "softmax" else nn.LogSoftmax)(1 if form == "NCHW" else -1)
    return started(module, initial(init, limits), act, bias_init)


def _enlarged(shape: Any, nb_filter: int, nb_row: int, nb_col: int, output_shape: Any, init: Any, activation: Any,
              border_mode: str, subsample: Any, dim_ordering: str, bias: bool) -> nn.Module:  # fmt: skip
    _only("Deconvolution2D", border_mode=(border_mode, "valid"))
    first, kernel = _form(dim_ordering) == "NCHW", (nb_row, nb_col)
    size = zip(shape[1:] if first else shape[:2], kernel, _pair(subsample), strict=True)
    high, wide = ((length - 1) * step + span for length, span, step in size)
    whole = (nb_filter, high, wide) if first else (high, wide, nb_filter)
    if output_shape is not None and tuple(output_shape)[-3:] != whole:
        raise ArgumentError(
            f"Deconvolution2D gives rows of shape {whole} here; got output_shape={tuple(output_shape)}."
        )
    module = nn.ConvTranspose2d(_channels(shape, dim_ordering), nb_filter, kernel, _pair(subsample), bias=bias)  # type: ignore[arg-type]
    return Weights(computes=_turned, inner=started(module, init, activation), order=_form(dim_ordering))


def _turned(m: Any, x: Tensor) -> Tensor:
    return ordered(x, m.order, m.inner)


def _separable(shape: Any, nb_filter: int, nb_row: int, nb_col: int, init: Any, activation: Any, border_mode: str,
               subsample: Any, depth_multiplier: int, dim_ordering: str, bias: bool) -> nn.Module:  # fmt: skip
    module = _of("SpatialSeparableConvolution", _channels(shape, dim_ordering), nb_filter, depth_multiplier, nb_col,
               nb_row, *subsample[::-1], *_border(border_mode), bias, _form(dim_ordering))  # fmt: skip
    return started(module, init, activation)


def _local1d(shape: Any, nb_filter: int, filter_length: int, subsample: int, activation: Any, bias: bool,
             **mode: str) -> nn.Module:  # fmt: skip
    _only("LocallyConnected1D", **{name: (value, "valid") for name, value in mode.items()})
    module = _of("LocallyConnected1D", shape[0], shape[1], nb_filter, filter_length, subsample)
    if not bias:
        module.bias = None  # type: ignore[assignment]
    return nn.Sequential(module, activated(activation))


def _local2d(shape: Any, nb_filter: int, nb_row: int, nb_col: int, activation: Any, border_mode: str, subsample: Any,
             dim_ordering: str, bias: bool) -> nn.Module:  # fmt: skip
    high, wide = shape[1:] if _form(dim_ordering) == "NCHW" else shape[:2]
    same = _border(border_mode) != (0, 0)
    if same and not (tuple(subsample) == (1, 1) and nb_row % 2 and nb_col % 2):
        raise ArgumentError(
            "LocallyConnected2D supports border_mode='same' for odd kernels and a subsample of (1, 1) alone."
        )
    pads = (nb_col // 2, nb_row // 2) if same else (0, 0)
    module = _of("LocallyConnected2D", _channels(shape, dim_ordering), wide, high, nb_filter, nb_col, nb_row,
               *subsample[::-1], *pads, with_bias=bias, data_format=_form(dim_ordering))  # fmt: skip
    return nn.Sequential(module, activated(activation))


def _pool(x: Tensor, kind: str, size: Any, stride: Any, mode: str, order: str, dims: int) -> Tensor:
    sizes = _pair(size, dims)
    strides = sizes if stride in (None, -1) else _pair(stride, dims)
    return pooled(kind, x, sizes, strides, _border(mode, dims), _form(order))


def _edged(x: Tensor, value: Any, dims: int, order: str, sign: int = 1) -> Tensor:
    """Pad all places with zeros, or (sign -1) crop them."""
    ends = _ends(value, dims)
    return ordered(x, _form(order), lambda y: padded(y, ends, sign), dims)


def _enlarged_by(x: Tensor, sizes: Any, dims: int, order: str) -> Tensor:
    return ordered(x, _form(order), lambda y: repeated(y, _pair(sizes, dims)), dims)


POOLS = (("Max", "max", "largest number"), ("Average", "avg", "mean"))
PLACES = {1: "steps of (time, features)", 2: "images", 3: "volumes"}


def _pooling(kind: str, dims: int) -> Callable[..., Tensor]:
    if dims == 1:
        return lambda x, pool_length=2, stride=None, border_mode="valid": _pool(
            x, kind, pool_length, stride, border_mode, "tf", 1
        )
    return lambda x, pool_size=(2,) * dims, strides=None, border_mode="valid", dim_ordering="th": _pool(
        x, kind, pool_size, strides, border_mode, dim_ordering, dims
    )


def _global(kind: str, dims: int) -> Callable[..., Tensor]:
    if dims == 1:
        return lambda x: _over_all(x, kind, "tf", 1)
    return lambda x, dim_ordering="th": _over_all(x, kind, dim_ordering, dims)


def _over_all(x: Tensor, kind: str, order: str, dims: int) -> Tensor:
    first = 2 if _form(order) == "NCHW" else 1
    return (x.amax if kind == "max" else x.mean)(tuple(range(first, first + dims)))


def _unrolled(m: Any, x: Tensor) -> Tensor:
    """Return the last output of a cell over (time, ...), or all of them."""
    outputs, state = unroll(m.cell, x.flip(1) if m.backwards else x)
    return outputs if m.sequences else state[0]


def _recurrent(kind: str, shape: Any, output_dim: int, init: Any, inner_init: Any, return_sequences: bool,
               go_backwards: bool, activation: Any, **inner_activation: Any) -> nn.Module:  # fmt: skip
    modules = [activated(each) for each in (activation, *inner_activation.values())]
    cell = _of(kind, shape[1], output_dim, *([*modules, True, False] if kind == "RnnCell" else [0.0, *modules]))
    started(cell, init)
    for name, parameter in cell.named_parameters():
        if name.startswith("hidden"):
            (nn.init.orthogonal_ if inner_init == "orthogonal" else initial(inner_init).fill)(parameter)
    return Weights(computes=_unrolled, cell=cell, sequences=return_sequences, backwards=go_backwards)


def _film(layer: str, shape: Any, nb_filter: int, nb_kernel: int, dim_ordering: str, subsample: int,
          return_sequences: bool, go_backwards: bool, border_mode: str, **activations: Any) -> nn.Module:  # fmt: skip
    _only(layer, dim_ordering=(dim_ordering, "th"), border_mode=(border_mode, "same"))
    modules: list[Any] = [activated(act) for act in activations.values()]
    cell = ConvolutionCell(int(layer[-2]), shape[1], nb_filter, nb_kernel, nb_kernel, subsample, -1, *modules)
    return Weights(computes=_unrolled, cell=cell, sequences=return_sequences, backwards=go_backwards)


def _each_step(shape: Any, layer: Any) -> nn.Module:
    if len(shape) < 2:
        raise DataError(f"TimeDistributed takes rows of time and features; got rows of shape {shape}.")
    return _of("TimeDistributed", layer.build(tuple(shape[1:])).module)


def _bidirectional(shape: Any, layer: Any, merge_mode: str = "concat") -> nn.Module:
    _chosen("merge_mode", merge_mode, ("concat", "sum", "mul", "ave"))
    forth, back = (each.build(tuple(shape)).module for each in (layer, type(layer)(**layer.arguments)))
    return Weights(computes=_two_ways, forth=forth, back=back, mode=merge_mode)


def _two_ways(m: Any, x: Tensor) -> Tensor:
    """Merge the output of a module on the steps, and of another on the steps backwards."""
    ways = [m.forth(x), m.back(x.flip(1))]
    if getattr(m.back, "sequences", False):
        ways[1] = ways[1].flip(1)
    return torch.cat(ways, -1) if m.mode == "concat" else MERGES[m.mode](ways)


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Sequence[Tensor]], Tensor]:
    return lambda tensors: reduce(function, tensors)


MERGES: dict[str, Callable[..., Any]] = {
    "sum": _fold(torch.add), "mul": _fold(torch.mul), "max": _fold(torch.maximum), "min": _fold(torch.minimum),
    "ave": lambda tensors: sum(tensors) / len(tensors), "sub": _fold(torch.sub), "div": _fold(torch.div),
    "dot": lambda tensors: (tensors[0] * tensors[1]).sum(-1, keepdim=True),
    "cos": lambda tensors: F.cosine_similarity(tensors[0], tensors[1], dim=-1).reshape(-1, 1, 1),
}  # fmt: skip


def _merge(shape: Any, layers: Any = None, mode: str = "sum", concat_axis: int = -1) -> nn.Module:
    shapes = shape if isinstance(shape, list) else [shape]
    own = [part.build(part.shape_in or part.given or each) for part, each in zip(layers or [], shapes, strict=False)]
    parts = nn.ModuleList(part.module for part in own)
    return Weights(computes=_merged, mode=_chosen("mode", mode, (*MERGES, "concat")), axis=concat_axis, parts=parts)


def _merged(m: Any, x: Any) -> Any:
    inputs = table_of(x)
    tensors = [part(each) for part, each in zip(m.parts, inputs, strict=True)] if len(m.parts) else list(inputs)
    if m.mode == "concat":
        return torch.cat(tensors, m.axis)
    shapes = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(shapes) > 1:
        raise DataError(f"inputs of different shapes: {sorted(shapes)}")
    if m.mode in ("dot", "cos") and (len(tensors) != 2 or tensors[0].dim() != 2):
        raise DataError(f"mode={m.mode!r} takes two inputs with rows of one dimension")
    return MERGES[m.mode](tensors)


# The rows.

WB: dict[str, Any] = {"W_regularizer": None, "b_regularizer": None}
WUB: dict[str, Any] = {"W_regularizer": None, "U_regularizer": None, "b_regularizer": None}
TIME: dict[str, Any] = {"input_dim": None, "input_length": None}
BEGINS: dict[str, Any] = {"init": "glorot_uniform", "activation": None}
CONVOLUTION: dict[str, Any] = {**BEGINS, "border_mode": "valid"}
IMAGES: dict[str, Any] = {"subsample": (1, 1), "dim_ordering": "th"}


def _renamed(name: str, **names: str) -> tuple[Any, str]:
    """Return the row of a layer of BigDL with some arguments renamed, {name here: BigDL's name}.

    Arguments about memory are left out; an order of dimensions is "th" or "tf".
    """
    back = {there: here for here, there in names.items()}
    own = [p for p in LAYERS[name].signature.parameters.values() if p.name not in ("inplace", "ip")]

    def row(shape: Any, **arguments: Any) -> nn.Module:
        if "dim_ordering" in arguments:
            arguments["dim_ordering"] = _form(arguments["dim_ordering"])
        return _of(name, **{names.get(key, key): value for key, value in arguments.items()})

    here = {back.get(p.name, p.name): p.default for p in own}
    if "dim_ordering" in here:
        here["dim_ordering"] = "th"
    row.__signature__ = signed("shape", **here)  # type: ignore[attr-defined]
    return row, LAYERS[name].__doc__ or ""


keras_rows(KERAS, {
    "Dense": (signed("output_dim", init="glorot_uniform", limits=None, activation=None, **WB, bias=True,
        input_dim=None), _dense, "A linear layer on the last dimension."),
    "SparseDense": (signed("output_dim", **BEGINS, **WB, backward_start=-1, backward_length=-1, init_weight=None,
        init_bias=None, init_grad_weight=None, init_grad_bias=None, bias=True, input_dim=None), _dense,
        "Dense: inputs are dense tensors here."),
    "Activation": (lambda shape, activation: activated(activation), "An activation by its name."),
    "Dropout": (lambda shape, p: _of("Dropout", p), "Zeros in place of some numbers in training."),
    "Flatten": (lambda shape: nn.Flatten(), "A row as one dimension."),
    "Reshape": (lambda shape, target_shape: nn.Sequential(nn.Flatten(), nn.Unflatten(1, tuple(target_shape))),
        "A row in another shape; one -1 is inferred."),
    "Permute": (lambda x, dims: x.permute(0, *dims), "The dimensions of a row in another order, counted from 1."),
    "RepeatVector": (lambda x, n: x.unsqueeze(1).expand(-1, n, *x.shape[1:]),
        "Each row several times, along a new dimension of time."),
    "Masking": _renamed("Masking"),
    "MaxoutDense": (signed("output_dim", nb_feature=4, **WB, bias=True, input_dim=None), lambda shape, output_dim,
        nb_feature, bias: _of("Maxout", shape[-1], output_dim, nb_feature, bias),
        "The largest of several linear layers."),
    "Highway": (signed(activation=None, **WB, bias=True, input_dim=None), lambda shape, activation, bias: _of("Highway",
        shape[-1], bias, activated(activation)), "A gate between the input and a layer on it."),
    "Embedding": (lambda shape, input_dim, output_dim, init="uniform", weights=None, trainable=True, input_length=None,
        W_regularizer=None, mask_zero=False, padding_value=0, zero_based_id=True: _table(input_dim, output_dim, init,
        weights, trainable, 0 if zero_based_id else 1, padding_value if mask_zero else None),
        "A row of the weight for each index."),
    "SparseEmbedding": (lambda shape, input_dim, output_dim, combiner="sum", max_norm=-1.0, init="uniform",
        W_regularizer=None: started(_of("LookupTableSparse", input_dim, output_dim, combiner, max_norm), init),
        "The sum or mean of the rows of the weight for the indices of a row, which count from 1; 0 is ignored."),
    "WordEmbedding": (lambda shape, embedding_file, word_index=None, trainable=False, input_length=None: _word_vectors(
        embedding_file, word_index, trainable),
        "Word vectors of a file in GloVe's format; the index 0 is for words without a vector."),
    "BatchNormalization": (signed(epsilon=0.001, mode=0, axis=1, momentum=0.99, beta_init="zero", gamma_init="one",
        dim_ordering="th"), _normalized,
        "Channels (or features) with mean 0 and deviation 1 over the batch, scaled."),
    **{name: _renamed(name) for name in ("ELU", "RReLU", "HardTanh", "Threshold", "Exp", "Log", "Sqrt", "Square",
        "Negative", "Identity", "Power", "Mul", "CAdd", "CMul", "Scale", "GaussianSampler")},
    "LeakyReLU": _renamed("LeakyReLU", alpha="negval"),
    "PReLU": _renamed("PReLU", nOutputPlane="n_output_plane"),
    "HardShrink": _renamed("HardShrink", value="the_lambda"),
    "SoftShrink": _renamed("SoftShrink", value="the_lambda"),
    "BinaryThreshold": _renamed("BinaryThreshold", value="th"),
    "AddConstant": _renamed("AddConstant", constant="constant_scalar"),
    "MulConstant": _renamed("MulConstant", constant="scalar"),
    "GaussianDropout": _renamed("GaussianDropout", p="rate"),
    "GaussianNoise": _renamed("GaussianNoise", sigma="stddev"),
    "SpatialDropout1D": _renamed("SpatialDropout1D", p="init_p"),
    "SReLU": (signed(t_left_init="zero", a_left_init="glorot_uniform", t_right_init="glorot_uniform",
        a_right_init="one", shared_axes=None), _srelu, LAYERS["SReLU"].__doc__ or ""),
    "ThresholdedReLU": (lambda shape, theta=1.0: _of("Threshold", theta, 0.0),
        "x where it is over a threshold, else 0."),
    "SpatialDropout2D": _renamed("SpatialDropout2D", p="init_p", dim_ordering="data_format"),
    "SpatialDropout3D": _renamed("SpatialDropout3D", p="init_p", dim_ordering="data_format"),
    "LRN2D": (lambda shape, alpha=1e-4, k=1.0, beta=0.75, n=5, dim_ordering="th": _of("SpatialCrossMapLRN", n, alpha,
        beta, k, _form(dim_ordering)), LAYERS["SpatialCrossMapLRN"].__doc__ or ""),
    "WithinChannelLRN2D": _renamed("SpatialWithinChannelLRN"),
    "ResizeBilinear": _renamed("ResizeBilinear", align_corners="align_corner", dim_ordering="data_format"),
    "Select": (lambda x, dim, index: x.select(dim, index),
        "The part of one index along a dimension, which goes; both count from 0, and the rows are dimension 0."),
    "Narrow": (lambda x, dim, offset, length=1: x.narrow(dim, offset, length if length >= 0 else x.shape[
        dim] - offset + length + 1), "Some indices of a dimension; both count from 0, and the rows are dimension 0."),
    "Squeeze": (lambda x, dim=None: x.squeeze(_pair(dim, 1)) if dim is not None else x.reshape(len(x), *[
        size for size in x.shape[1:] if size != 1]), "The input without dimensions of 1; the rows are dimension 0."),
    "ExpandDim": (lambda x, dim: x.unsqueeze(dim), "The input with one more dimension of 1; the rows are dimension 0."),
    "Max": (lambda x, dim, num_input_dims=-2147483648, return_value=True: x.max(dim, keepdim=True).values if
        return_value else x.argmax(dim, keepdim=True).to(x.dtype),
        "The largest along a dimension, or its place; the rows are dimension 0."),
    "SelectTable": (lambda x, index: table_of(x)[index], "One tensor of several, counted from 0."),
    "GetShape": (lambda x: x.new_tensor([float(size) for size in x.shape]).expand(len(x), -1),
        "The sizes of the input, for each row."),
})  # fmt: skip

# Images.

keras_rows(KERAS, {
    "Convolution1D": (signed("nb_filter", "filter_length", **BEGINS, limits=None, border_mode="valid",
        subsample_length=1, **WB, bias=True, **TIME), _convolution, "A convolution over time of (time, features)."),
    "AtrousConvolution1D": (signed("nb_filter", "filter_length", **CONVOLUTION, subsample_length=1, atrous_rate=1, **WB,
        bias=True, **TIME), _convolution, "A convolution over time with holes in its kernel."),
    "Convolution2D": (signed("nb_filter", "nb_row", "nb_col", **CONVOLUTION, **IMAGES, **WB, bias=True), _convolution,
        "A convolution of images."),
    "ShareConvolution2D": (signed("nb_filter", "nb_row", "nb_col", **BEGINS, subsample=(1, 1), pad_h=0, pad_w=0,
        propagate_back=True, dim_ordering="th", **WB, bias=True), _convolution,
        "A convolution of images with padding in numbers."),
    "AtrousConvolution2D": (signed("nb_filter", "nb_row", "nb_col", **CONVOLUTION, subsample=(1, 1), atrous_rate=(1, 1),
        dim_ordering="th", **WB, bias=True), _convolution, "A convolution of images with holes in its kernel."),
    "Deconvolution2D": (signed("nb_filter", "nb_row", "nb_col", output_shape=None, **CONVOLUTION, **IMAGES, **WB,
        bias=True), _enlarged, "The transpose of a convolution: larger images."),
    "SeparableConvolution2D": (signed("nb_filter", "nb_row", "nb_col", **CONVOLUTION, subsample=(1, 1),
        depth_multiplier=1, dim_ordering="th", depthwise_regularizer=None, pointwise_regularizer=None,
        b_regularizer=None, bias=True), _separable, "A convolution of each channel by itself, then one of 1 x 1."),
    "Convolution3D": (signed("nb_filter", "kernel_dim1", "kernel_dim2", "kernel_dim3", **CONVOLUTION,
        subsample=(1, 1, 1), dim_ordering="th", **WB, bias=True), _convolution, "A convolution of volumes."),
    "LocallyConnected1D": (signed("nb_filter", "filter_length", activation=None, border_mode="valid",
        subsample_length=1, **WB, bias=True, **TIME), _local1d,
        "A convolution over time with weights of its own at each step."),
    "LocallyConnected2D": (signed("nb_filter", "nb_row", "nb_col", activation=None, border_mode="valid", **IMAGES,
        **WB, bias=True), _local2d, "A convolution of images with weights of its own at each place."),
    **{f"{name}Pooling{dims}D": (_pooling(kind, dims), f"The {word} of each window of {PLACES[dims]}.")
        for name, kind, word in POOLS for dims in PLACES},
    **{f"Global{name}Pooling{dims}D": (_global(kind, dims), f"The {word} of each channel of {PLACES[dims]}.")
        for name, kind, word in POOLS for dims in PLACES},
    "ZeroPadding1D": (lambda x, padding=1: _edged(x, padding, 1, "tf"),
        "Zeros before and after the steps of (time, features)."),
    "ZeroPadding2D": (lambda x, padding=(1, 1), dim_ordering="th": _edged(x, padding, 2, dim_ordering),
        "Zeros around images."),
    "ZeroPadding3D": (lambda x, padding=(1, 1, 1), dim_ordering="th": _edged(x, padding, 3, dim_ordering),
        "Zeros around volumes."),
    "Cropping1D": (lambda x, cropping=(1, 1): _edged(x, cropping, 1, "tf", -1),
        "(time, features) without some steps at its ends."),
    "Cropping2D": (lambda x, cropping=((0, 0), (0, 0)), dim_ordering="th": _edged(x, cropping, 2, dim_ordering, -1),
        "Images without some rows and columns at their ends."),
    "Cropping3D": (lambda x, cropping=((1, 1), (1, 1), (1, 1)), dim_ordering="th": _edged(x, cropping, 3, dim_ordering,
        -1), "Volumes without some planes at their ends."),
    "UpSampling1D": (lambda x, length=2: _enlarged_by(x, length, 1, "tf"),
        "Each step of (time, features) several times."),
    "UpSampling2D": (lambda x, size=(2, 2), dim_ordering="th": _enlarged_by(x, size, 2, dim_ordering),
        "Each row and column of images several times."),
    "UpSampling3D": (lambda x, size=(2, 2, 2), dim_ordering="th": _enlarged_by(x, size, 3, dim_ordering),
        "Each plane, row and column of volumes several times."),
})  # fmt: skip

# Time, and several inputs.

CELL: dict[str, Any] = {"init": "glorot_uniform", "inner_init": "orthogonal", "activation": "tanh"}
RETURNS: dict[str, Any] = {"return_sequences": False, "go_backwards": False}

keras_rows(KERAS, {
    "SimpleRNN": (signed("output_dim", **CELL, **RETURNS, **WUB, input_dim=None), partial(_recurrent, "RnnCell"),
        "A recurrent layer without gates."),
    "LSTM": (signed("output_dim", **CELL, inner_activation="hard_sigmoid", **RETURNS, **WUB, input_dim=None), partial(
        _recurrent, "LSTM"), "A recurrent layer with a memory."),
    "GRU": (signed("output_dim", **CELL, inner_activation="hard_sigmoid", **RETURNS, **WUB, input_dim=None), partial(
        _recurrent, "GRU"), "A recurrent layer with two gates."),
    "ConvLSTM2D": (signed("nb_filter", "nb_kernel", activation="tanh", inner_activation="hard_sigmoid",
        dim_ordering="th", subsample=1, **WUB, **RETURNS, border_mode="same"), partial(_film, "ConvLSTM2D"),
        "An LSTM of images, whose sums are convolutions."),
    "ConvLSTM3D": (signed("nb_filter", "nb_kernel", dim_ordering="th", subsample=1, **WUB, **RETURNS,
        border_mode="same"), partial(_film, "ConvLSTM3D"), "An LSTM of volumes, whose sums are convolutions."),
    "TimeDistributed": (_each_step, "A layer on every step of (time, ...)."),
    "Bidirectional": (_bidirectional, "A recurrent layer forwards and another like it backwards."),
    "Merge": (_merge, "Several inputs as one, each after a layer of its own if there are layers."),
})  # fmt: skip


class Merge(KERAS["Merge"]):  # type: ignore[misc, valid-type]
    """Several inputs as one, each after a layer of its own if there are layers."""

    given: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layers = list(self.arguments["layers"] or [])
        shapes = [part.shape_in if part.shape_in is not None else part.given for part in self.layers]
        if self.given is None and shapes and all(shape is not None for shape in shapes):
            self.given = shapes  # its inputs are those of its layers


class TimeDistributed(Holder, KERAS["TimeDistributed"]):  # type: ignore[misc, valid-type]
    """A layer on every step of (time, ...)."""


class WordEmbedding(KERAS["WordEmbedding"]):  # type: ignore[misc, valid-type]
    """Word vectors of a file in GloVe's format; the index 0 is for words without a vector."""

    @staticmethod
    def get_word_index(embedding_file: str) -> dict[str, int]:
        """Return the number of each word of a file in GloVe's format, counted from 1 in their order."""
        words = dict.fromkeys(word for word, _ in _vectors_in(embedding_file))
        return {word: number for number, word in enumerate(words, 1)}

    def definition(self, describe: Any) -> dict[str, Any]:
        """Return the layer's definition for a file: an Embedding, which needs no file of vectors."""
        about: dict[str, Any] = super().definition(describe)
        if self.shape_in is None:
            return about
        count, size = self.module.table.weight.shape
        arguments = {
            key: value for key, value in about["arguments"].items() if key not in ("embedding_file", "word_index")
        }
        return about | {"class": "Embedding", "arguments": arguments | {"input_dim": count, "output_dim": size}}


KERAS |= {"Merge": Merge, "TimeDistributed": TimeDistributed, "WordEmbedding": WordEmbedding}


def merge(inputs: Sequence[Variable], mode: str = "sum", concat_axis: int = -1, name: str | None = None) -> Variable:
    """Return several variables as one."""
    variable: Variable = Merge(mode=mode, concat_axis=concat_axis, name=name)(list(inputs))
    return variable


# Keras 2.

WB2: dict[str, Any] = {"kernel_regularizer": None, "bias_regularizer": None}
BEGINS2: dict[str, Any] = {"kernel_initializer": "glorot_uniform", "bias_initializer": "zero"}

keras_rows(KERAS2, {
    "Dense": (signed("units", **BEGINS2, activation=None, **WB2, use_bias=True, input_dim=None), _dense,
        "A linear layer on the last dimension."),
    "Conv1D": (signed("filters", "kernel_size", strides=1, padding="valid", activation=None, use_bias=True, **BEGINS2,
        **WB2), _convolution, "A convolution over time of (time, features)."),
    "Conv2D": (signed("filters", "kernel_size", strides=(1, 1), padding="valid", data_format="channels_first",
        activation=None, use_bias=True, **BEGINS2, **WB2), _convolution, "A convolution of images."),
    "MaxPooling1D": (lambda x, pool_size=2, strides=None, padding="valid": _pool(x, "max", pool_size, strides,
        padding, "tf", 1), "The largest of some steps of (time, features)."),
    "AveragePooling1D": (lambda x, pool_size=2, strides=None, padding="valid": _pool(x, "avg", pool_size, strides,
        padding, "tf", 1), "The mean of some steps of (time, features)."),
    "Dropout": (lambda shape, rate: _of("Dropout", rate), "Zeros in place of some numbers in training."),
    "Softmax": (lambda shape, axis=-1: nn.Softmax(axis), "Softmax over a dimension."),
    "Cropping1D": (lambda x, cropping=(1, 1): _edged(x, cropping, 1, "tf", -1),
        "(time, features) without some steps at its ends."),
    "LocallyConnected1D": (signed("filters", "kernel_size", strides=1, padding="valid", activation=None, **WB2,
        use_bias=True), _local1d, "A convolution over time with weights of its own at each step."),
    **{name: (signed(), partial(_merge, mode=mode), f"Several inputs as one: their {name.lower()}.")
        for name, mode in {"Maximum": "max", "Minimum": "min", "Average": "ave"}.items()},
})  # fmt: skip
for _name in ("Activation", "Flatten", "GlobalAveragePooling1D", "GlobalMaxPooling1D", "GlobalAveragePooling2D",
              "GlobalMaxPooling2D", "GlobalAveragePooling3D"):  # fmt: skip
    KERAS2[_name] = KERAS[_name]


def _merging(name: str) -> Callable[..., Any]:
    def function(inputs: Sequence[Variable], **more: Any) -> Variable:
        variable: Variable = KERAS2[name](**more)(list(inputs))
        return variable

    function.__name__, function.__doc__ = name.lower(), f"Return the {name.lower()} of several variables."
    return function


maximum, minimum, average = _merging("Maximum"), _merging("Minimum"), _merging("Average")


def __getattr__(name: str) -> Any:
    if name in KERAS:
        return KERAS[name]
    if name.removesuffix("2") in KERAS2:
        return KERAS2[name.removesuffix("2")]
    raise AttributeError(f"there is no layer {name!r}; there are {', '.join(KERAS)}.")
