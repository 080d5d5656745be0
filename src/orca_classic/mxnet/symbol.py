"""Symbol models: a Module of MXNet as a Gluon block. Owns which modules can be trained, their first weights and losses.

The last layers of a symbol are its losses: they tell outputs, and make the gradients in the backward pass themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from orca.errors import ArgumentError

INITIALIZER = mx.init.Uniform(0.01)  # that of Module.fit


class SymbolNet(gluon.SymbolBlock):
    """The symbol of a module as a block whose inputs are the data and the labels.

    Args:
        module: A Module on one device.

    Raises:
        ArgumentError: It is another kind of module, on several devices, or a loss of it divides by a worker's rows.
    """

    def __init__(self, module: Any) -> None:
        if not isinstance(module, mx.mod.Module):
            raise ArgumentError(
                f"model_creator must return a gluon.Block or a mx.mod.Module; got {type(module).__name__}. Make a "
                "Module of the symbol, or a Block."
            )
        if len(module._context) > 1:
            raise ArgumentError(
                f"a worker trains on one device; the Module has {module._context}. Use more workers instead."
            )
        symbol = module.symbol
        arguments = symbol.list_arguments()
        self._data_names = list(module.data_names)
        self._label_names = [name for name in module.label_names or () if name in arguments]
        inputs = [mx.sym.var(name, dtype=np.float32) for name in (*self._data_names, *self._label_names)]
        super().__init__(symbol, inputs)
        self._module, self.symbol = module, symbol
        self._heads = _heads(symbol)
        for name in module._fixed_param_names or ():
            self.params[name].grad_req = "null"

    def arguments(self, x: Any, y: Any, array: Callable[[Any], Any]) -> list[Any]:
        """Return the inputs for features and labels (None, or other than the symbol has: zeros)."""
        features = [array(leaf) for leaf in _ordered(x, self._data_names)]
        labels = [] if y is None else [array(leaf) for leaf in _ordered(y, self._label_names)]
        shapes = self._label_shapes(features)
        if len(labels) != len(shapes):
            return [*features, *(mx.nd.zeros(shape, ctx=features[0].context) for shape in shapes)]
        fits = [label.size == np.prod(shape) for label, shape in zip(labels, shapes, strict=True)]
        return [
            *features,
            *(label.reshape(s) if f else label for label, s, f in zip(labels, shapes, fits, strict=True)),
        ]

    def start(self, arguments: list[Any], initializer: Any) -> dict[str, Any]:
        """Return the first weights, as Module.fit draws them for data of these shapes."""
        module, data = self._module, arguments[: len(self._data_names)]
        if not module.binded:
            labels = arguments[len(data) :]
            module.bind(
                [(name, each.shape) for name, each in zip(self._data_names, data, strict=True)],
                [(name, each.shape) for name, each in zip(self._label_names, labels, strict=True)] or None,
            )
        if not module.params_initialized:
            module.init_params(initializer or INITIALIZER)
        weights, statistics = module.get_params()
        return {**weights, **statistics}

    def trained(self, weights: Mapping[str, Any]) -> Any:
        """Return the module with these weights, as Module.load makes it: to be bound to data."""
        module, aux = self._module, set(self.symbol.list_auxiliary_states())
        module._arg_params = {name: value for name, value in weights.items() if name not in aux}
        module._aux_params = {name: value for name, value in weights.items() if name in aux}
        module.params_initialized = bool(weights)
        return module

    def losses(self, outputs: list[np.ndarray], y: Any) -> float:
        """Return the sum of the losses of all rows, as the last layers mean them, each with its own labels.

        Raises:
            ArgumentError: No last layer is a loss that is known here.
        """
        heads = [
            (LOSSES[op], options, label, at) for at, (op, options, label) in enumerate(self._heads) if op in LOSSES
        ]
        if not heads:
            raise ArgumentError(
                f"the loss of a symbol that ends in {[op for op, *_ in self._heads]} is not known. Let it end in one "
                f"of {sorted(LOSSES)}, or pass loss_creator, which tells the loss of the outputs."
            )
        labels = map(np.asarray, [] if y is None else _ordered(y, self._label_names))
        truth = dict(zip(self._label_names, labels, strict=False))
        absent = [label for loss, _, label, _ in heads if loss is not _own and label not in truth]
        if absent:
            raise ArgumentError(f"the loss of the symbol needs labels for {absent}; the rows have {list(truth)}.")
        return float(sum(loss(outputs[at], truth.get(label), options) for loss, options, label, at in heads))

    @property
    def tells_losses(self) -> bool:
        """Say whether an output is itself a loss, which depends on the labels."""
        return any(op in ("MakeLoss", "make_loss") for op, *_ in self._heads)

    def _label_shapes(self, features: list[Any]) -> list[tuple[int, ...]]:
        """Return the shapes of labels as the symbol expects them."""
        shapes = dict(zip(self._data_names, (each.shape for each in features), strict=True))
        sizes = self.symbol.infer_shape_partial(**shapes)[0]
        by_name = dict(zip(self.symbol.list_arguments(), sizes, strict=True))
        return [by_name[name] or (len(features[0]),) for name in self._label_names]


def _ordered(tree: Any, names: list[str]) -> list[Any]:
    """Return the arrays of features or labels in the order of the module's names."""
    if isinstance(tree, dict):
        return [tree[name] for name in names] if set(names) == set(tree) else list(tree.values())
    return list(tree) if isinstance(tree, tuple | list) else [tree]


def _heads(symbol: Any) -> list[tuple[str, dict[str, str], str]]:
    """Return (operator, options, name of its labels or "") of each output.

    Raises:
        ArgumentError: A loss divides its gradient itself.
    """
    graph = json.loads(symbol.tojson())
    heads = [graph["nodes"][number] for number, *_ in graph["heads"]]
    for node in graph["nodes"]:
        words = node.get("attrs", {})
        if node["op"] in (*LOSSES, "MakeLoss") and words.get("normalization", "null") != "null":
            raise ArgumentError(
                f"{node['name']} has normalization={words['normalization']!r}, which divides by the rows of one "
                "worker. Leave it out: a step is divided by the rows of all workers."
            )
    return [(node["op"], node.get("attrs", {}), _label_of(node, graph["nodes"])) for node in heads]


def _label_of(head: dict[str, Any], nodes: list[dict[str, Any]]) -> str:
    """Return the name of the variable that a loss takes its labels from, by way of other layers or not."""
    if len(head["inputs"]) < 2:
        return ""
    node = nodes[head["inputs"][1][0]]
    while node["inputs"]:
        node = nodes[node["inputs"][0][0]]
    return str(node["name"])


def _cross_entropy(output: np.ndarray, label: np.ndarray, options: Mapping[str, str]) -> float:
    axis = -1 if options.get("preserve_shape") in ("True", "1") else 1
    if label.shape == output.shape:
        return float(-(label * np.log(np.maximum(output, 1e-12))).sum())
    classes = np.moveaxis(output, axis, -1).reshape(-1, output.shape[axis])
    numbers = label.reshape(-1).astype(np.int64)
    mask = np.ones(len(numbers), bool)
    if options.get("use_ignore") in ("True", "1"):
        mask = numbers != int(float(options.get("ignore_label", -1)))
    chances = classes[np.flatnonzero(mask), numbers[mask]]
    return float(-np.log(np.maximum(chances, 1e-12)).sum())


def _binary(output: np.ndarray, label: np.ndarray, options: Mapping[str, str]) -> float:
    label = label.reshape(output.shape)
    chance = np.clip(output, 1e-12, 1 - 1e-7)
    return float(-(label * np.log(chance) + (1 - label) * np.log(1 - chance)).sum()) / _width(output)


def _squared(output: np.ndarray, label: np.ndarray, options: Mapping[str, str]) -> float:
    return float(0.5 * ((output - label.reshape(output.shape)) ** 2).sum()) / _width(output)


def _absolute(output: np.ndarray, label: np.ndarray, options: Mapping[str, str]) -> float:
    return float(np.abs(output - label.reshape(output.shape)).sum()) / _width(output)


def _own(output: np.ndarray, label: Any, options: Mapping[str, str]) -> float:
    return float(output.sum())


def _width(output: np.ndarray) -> int:
    """Return the numbers of a row: the gradient of a regression is divided by them."""
    return max(1, output.size // len(output))


# The loss whose gradient each last layer gives.
LOSSES: dict[str, Callable[[np.ndarray, Any, Mapping[str, str]], float]] = {
    "SoftmaxOutput": _cross_entropy,
    "LogisticRegressionOutput": _binary,
    "LinearRegressionOutput": _squared,
    "MAERegressionOutput": _absolute,
    "MakeLoss": _own,
    "make_loss": _own,
}
