"""Autograd: arithmetic of variables, and losses and layers of the user's functions. Owns the table of operations.

Axis 0 is that of the rows. Numbers and arrays may take the place of variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from orca.errors import ArgumentError
from orca_classic.bigdl.criterion import Criterion
from orca_classic.bigdl.keras.engine import VARIABLES, Input, KerasLayer, Model, Variable, shape_of
from orca_classic.bigdl.layer import Weights, _tensors, lookup, signed

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "getitem": lambda x, places: x[tuple(places) if isinstance(places, list) else places],
    "mean": lambda x, axis=0, keepDims=False: x.mean(axis, keepdim=keepDims),
    "sum": lambda x, axis=0, keepDims=False: x.sum(axis, keepdim=keepDims),
    "abs": torch.abs, "square": torch.square, "sqrt": torch.sqrt, "exp": torch.exp, "log": torch.log, "neg": torch.neg,
    "erf": torch.erf, "softsign": F.softsign, "softplus": F.softplus, "contiguous": lambda x: x.contiguous(),
    "clip": torch.clamp,
    "maximum": lambda x, y: torch.maximum(*map(torch.as_tensor, (x, y))),
    "minimum": lambda x, y: torch.minimum(*map(torch.as_tensor, (x, y))),
    "batch_dot": lambda x, y, axes=1, normalize=False: _batch_dot(x, y, axes, normalize),
    "mm": lambda x, y, axes=None: x @ y if axes is None else _batch_dot(x, y, axes, False),
    "dot": lambda x, y, axes=1, normalize=False: (_unit(x, normalize) * _unit(y, normalize)).sum(-1, keepdim=True),
    "l2_normalize": lambda x, axis: F.normalize(x, dim=axis, eps=1e-6),
    "expand_dims": lambda x, axis: x.unsqueeze(axis),
    "squeeze": lambda x, dim=None: x.squeeze() if dim is None else x.squeeze(dim),
    "stack": lambda *tensors, axis=1: torch.stack(tensors, axis),
    "slice": lambda x, dim, start_index, length: x.narrow(dim, start_index, x.shape[dim] - start_index + length + 1
                                                          if length < 0 else length),
    "index_select": lambda x, dim, index: x.select(dim, index),
    "replicate": lambda x, axis, times: x.repeat_interleave(times, axis),
}  # fmt: skip


def _unit(x: Any, normalize: bool, dim: int = -1) -> Any:
    return F.normalize(x, dim=dim) if normalize else x


def _batch_dot(x: Any, y: Any, axes: Any, normalize: bool) -> Any:
    """Multiply rows of matrices (or of vectors) over one axis of each, perhaps normalized to length 1."""
    first, second = (axes, axes) if isinstance(axes, int) else axes
    a, b = _unit(x, normalize, first), _unit(y, normalize, second)
    a = a.unsqueeze(1) if x.dim() == 2 else a.movedim(first, -1)
    b = b.unsqueeze(-1) if y.dim() == 2 else b.movedim(second, -2)
    product = (a @ b).squeeze(-1) if y.dim() == 2 else a @ b
    return product.squeeze(1) if x.dim() == 2 and y.dim() > 2 else product


def _calculated(m: Any, x: Any) -> Any:
    """Return the result of an operation: `places` has its constant arguments, and None for each variable."""
    tensors = iter(x if isinstance(x, list | tuple) else [x])
    arguments = [next(tensors) if place is None else place for place in m.places]
    return OPERATIONS[m.operation](*arguments, **m.more)


class Operation(KerasLayer):
    """The layer of an operation on variables."""

    table = VARIABLES
    signature = signed("operation", "places", "more", input_shape=None, name=None)

    def _for(self, shape: Any) -> nn.Module:
        own = {key: self.arguments[key] for key in ("operation", "places", "more")}
        return Weights(computes=_calculated, **own)


VARIABLES["Operation"] = Operation


def placed(layer: Any, nodes: list[Any]) -> Variable:
    """Return the variable of a layer of any kind after others."""
    samples = [node.sample for node in nodes]
    if isinstance(layer, Weight):
        return Variable.after(layer, [], layer.module([]).detach())
    sample = samples[0] if len(samples) == 1 else samples
    if isinstance(layer, Operation):
        layer.module = layer._for(None)
        return Variable.after(layer, nodes, layer.call(sample))
    variable: Variable = layer(nodes[0] if len(nodes) == 1 else nodes)
    return variable


def operation(name: str, *arguments: Any, **more: Any) -> Variable:
    """Return the variable of an operation, one of whose arguments is a variable."""
    nodes = [argument for argument in arguments if isinstance(argument, Variable)]
    if not nodes:
        raise ArgumentError(
            f"{name} needs a variable: Input(shape=...) or the result of a layer; got {arguments!r:.60}."
        )
    values = [Constant(each) if isinstance(each, np.ndarray) else each for each in arguments]
    nodes = [argument for argument in values if isinstance(argument, Variable)]
    places = [None if isinstance(argument, Variable) else argument for argument in values]
    return placed(Operation(name, places, more), nodes)


_FIRST = ("inputs", "a", "x", "y")  # names of arguments that are variables, in their order


def _function(name: str) -> Callable[..., Variable]:
    def function(*arguments: Any, **more: Any) -> Variable:
        operands = [*arguments, *(more.pop(word) for word in _FIRST if word in more)]
        if operands and isinstance(operands[0], list | tuple):  # stack([a, b], axis)
            operands = [*operands[0]]
            more = more if len(arguments) < 2 else more | {"axis": arguments[1]}
        return operation(name, *operands, **more)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return the variable {name}(...) of variables and numbers; axis 0 is that of the rows."
    return function


METHODS = {name: _function(name) for name in ("squeeze", "slice", "index_select", "expand_dims", "replicate")}
FUNCTIONS = {
    name: _function(name) for name in OPERATIONS if name not in ("getitem", "slice", "index_select", "replicate")
}


def epsilon() -> float:
    """Return the small number that keeps others from 0."""
    return 1e-7


def _alone(m: Any, x: Any) -> Any:
    return m.weight


def _stay(weight: Any) -> None:
    """Leave a weight unchanged when those of layers are drawn again: its variable sets it."""


class Weight(KerasLayer):
    """The layer of a Parameter or a Constant."""

    is_source = True
    table = VARIABLES
    signature = signed("shape", "trainable", name=None)

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        module = Weights(1, {"weight": arguments["shape"]}, {"weight": nn.init.zeros_}, computes=_alone)
        module.starts["weight"] = _stay
        return module.requires_grad_(arguments["trainable"])


VARIABLES["Weight"] = Weight


class Parameter(Variable):
    """A trainable variable without rows. It starts with init_weight, or is drawn by init_method."""

    def __init__(self, shape: Sequence[int], init_method: Any = None, init_weight: Any = None, trainable: bool = True,
                 name: str | None = None, bigdl_type: str = "float") -> None:  # fmt: skip
        layer = Weight(list(shape), trainable, name)
        weight: Any = layer.module.weight
        if init_weight is not None:
            layer.set_weights([init_weight])
        elif init_method is not None:
            init_method.fill(weight)
        else:
            nn.init.uniform_(weight, -0.05, 0.05)
        super().__init__(None, (layer, [], weight.detach()))

    def get_weight(self) -> np.ndarray[Any, Any]:
        """Return its value."""
        return self.layer.get_weights()[0]

    def set_weight(self, value: Any) -> None:
        """Set its value."""
        self.layer.set_weights([value])


class Constant(Variable):
    """An array as a variable without rows."""

    def __init__(self, data: Any, name: str | None = None, bigdl_type: str = "float") -> None:
        array = np.asarray(data, np.float32)
        layer = Weight(list(array.shape), False, name)
        layer.set_weights([array])
        super().__init__(None, (layer, [], layer.module([]).detach()))


class Lambda(KerasLayer):
    """A layer of a function, which takes a variable (or several) and returns one."""

    signature = signed("function", input_shape=None, name=None)

    def _for(self, shape: Any) -> nn.Module:
        inputs = [Input(part) for part in (shape if isinstance(shape, list) else [shape])]
        self.graph = Model(inputs, self.arguments["function"](*inputs))
        self.layers = self.graph.parts
        return self.graph.module

    def definition(self, describe: Any) -> dict[str, Any]:
        """Return the layer's definition for a file: the graph that its function made."""
        return self.graph.definition(describe)


def _mean_of_graph(m: Any, output: Any, target: Any) -> torch.Tensor:
    labels = target.to(output.dtype)
    truth = labels.reshape(output.shape) if labels.numel() == output.numel() else labels
    mean: torch.Tensor = m.graph([truth, output]).mean()
    return mean


class CustomLoss(Criterion):
    """A loss of a function of the variables (y_true, y_pred); the mean of its result is the loss.

    The shapes are those of one row's output, and of one row's label if it differs.
    """

    def __init__(self, loss_func: Callable[..., Variable], y_pred_shape: Any, y_true_shape: Any = None) -> None:
        guess = tuple(size for size in y_pred_shape if size is not None)
        truth = guess if y_true_shape is None else tuple(size for size in y_true_shape if size is not None)
        inputs = [Input(truth), Input(guess)]
        self.arguments, self.model = {}, Model(inputs, loss_func(*inputs))
        self.module = Weights(computes=_mean_of_graph, graph=self.model.module)

    def forward(self, y_true: Any, y_pred: Any = None) -> float:
        """Return the loss of arrays; labels come first."""
        return float(self.module(_tensors(y_pred), _tensors(y_true)))

    def backward(self, y_true: Any, y_pred: Any = None) -> Any:
        """Return the gradient of the loss by y_pred; labels come first."""
        guess = _tensors(y_pred).requires_grad_()
        (gradient,) = torch.autograd.grad(self.module(guess, _tensors(y_true)), [guess])
        return gradient.numpy()


__all__ = ["CustomLoss", "Lambda", "Parameter", "Constant", "Variable", "epsilon", "shape_of", *FUNCTIONS]

__getattr__ = lookup(FUNCTIONS, "name")
