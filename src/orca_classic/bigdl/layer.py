"""Layer: a torch module with BigDL's API. Owns rows of the tables, graphs, weights and local predictions.

`rows` documents the rows of a table (`layers.py`, `recurrent.py`). Tensors are float32; a table is a list of tensors.
"""

from __future__ import annotations

import copy
import inspect
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from orca.errors import ArgumentError, DataError
from orca.frameworks.torch.penalties import penalised, weights_of_kind
from orca.rows.tree import flatten, map_tree, unflatten
from orca_classic.bigdl.refusals import CAFFE, refusal
from orca_classic.bigdl.topology import Topology, begins, ordered
from orca_classic.zoo.sample import JTensor

LAYERS: dict[str, type[Layer]] = {}  # every layer by its name
# Arguments about weights, which many layers have.
PENALTIES = {
    **dict.fromkeys(("wRegularizer", "w_regularizer", "weight_regularizer", "W_regularizer", "kernel_regularizer",
                     "depthwise_regularizer"), "weight"),
    **dict.fromkeys(("bRegularizer", "b_regularizer", "bias_regularizer"), "bias"), "uRegularizer": "hidden",
    "U_regularizer": "hidden", "cRegularizer": "peep", "p_regularizer": "point", "pointwise_regularizer": "point",
}  # fmt: skip
START_VALUES = {"init_weight": "weight", "init_bias": "bias"}
ABOUT_WEIGHTS = {*PENALTIES, *START_VALUES, "init_grad_weight", "init_grad_bias", "bigdl_type"}
FORWARD: dict[str, Callable[..., Any]] = {}  # the forward functions of rows, by name
SHAPING: ContextVar[bool] = ContextVar("inputs are zeros, to infer shapes", default=False)


class Weights(nn.Module):
    """The module of a row, with weights of these shapes (None for no weight); FORWARD has its forward function.

    Weights are drawn between +-1 / sqrt(fan_in), or by a function of `starts`. Settings are other attributes.
    """

    computes: Any = None  # the forward function of a module without a row
    row: Any
    weight: Any
    bias: Any

    def __init__(self, fan_in: int = 1, shapes: Mapping[str, Any] | None = None,
                 starts: Mapping[str, Any] | None = None, **settings: Any) -> None:  # fmt: skip
        super().__init__()
        self.fan_in, self.starts = fan_in, dict(starts or {})
        for name, shape in (shapes or {}).items():
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(*shape)))
        for name, value in settings.items():
            setattr(self, name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights."""
        bound = 1 / math.sqrt(max(self.fan_in, 1))
        for name, parameter in self.named_parameters(recurse=False):
            self.starts.get(name, lambda weight: nn.init.uniform_(weight, -bound, bound))(parameter)

    def forward(self, *inputs: Any) -> Any:
        """Return the output of the forward function."""
        return (self.computes or FORWARD[self.row])(self, *inputs)

    def extra_repr(self) -> str:
        """Return the arguments of a layer without weights as torch prints them."""
        return ", ".join(f"{name}={value!r}" for name, value in getattr(self, "arguments", {}).items())

    def _get_name(self) -> str:
        return str(getattr(self, "row", type(self).__name__))

    def __getstate__(self) -> dict[str, Any]:  # so that files call __setstate__, as pickles do
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        import orca_classic.bigdl.keras.layers  # noqa: F401  (it fills FORWARD: a worker or a reader has none of it yet)

        super().__setstate__(state)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)  # settings are of any type


def rows(table: Mapping[str, tuple[Any, ...]], base: type[Layer] | None = None, tables: bool = False) -> None:
    """Make a Layer class of each row: name -> ([signature], function, [forward function], docstring).

    The function takes `x` and the arguments (a layer without weights), or takes the arguments and returns a torch
    module. After a signature it gets the arguments in their order, without those about weights. A forward function
    takes the module, a Weights, and an input. With `tables` the input is a table; one tensor is a table of one.
    """
    for name, (*parts, words) in table.items():
        signature = parts.pop(0) if isinstance(parts[0], inspect.Signature) else None
        row, *forward = parts
        if forward:
            FORWARD[name] = forward[0]
        if signature is not None:
            made_by = _in_order(row)
        else:
            parameters = [p.replace(annotation=p.empty) for p in inspect.signature(row).parameters.values()]
            of_input = bool(parameters) and parameters[0].name == "x"
            made_by = applied(row, name) if of_input else row
            signature = inspect.Signature(parameters[of_input:])
        if tables:
            FORWARD[name] = partial(_on_table, FORWARD[name])
        scope = {"__doc__": words, "__module__": "orca_classic.bigdl.recurrent", "signature": signature,
                 "__signature__": signature, "made_by": staticmethod(made_by), "kind": name}  # fmt: skip
        LAYERS[name] = type(name, (base or Layer,), scope)


def applied(function: Callable[..., Any], row: str) -> Callable[..., Weights]:
    """Return a function that makes modules of a function of `x` and arguments, under the name of a row."""
    FORWARD[row] = lambda module, x: function(x, **module.arguments)
    return lambda **arguments: Weights(row=row, arguments=arguments)


def _on_table(function: Callable[..., Any], module: Weights, x: Any) -> Any:
    return function(module, table_of(x))


def table_of(x: Any) -> Any:
    """Return a table; one tensor is a table of one."""
    return x if isinstance(x, list | tuple) else [x]


def _in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **arguments: function(*arguments.values())


def signed(*names: str, **defaults: Any) -> inspect.Signature:
    """Return the signature of required arguments, and of others with their defaults (empty for none)."""
    every = dict.fromkeys(names, inspect.Parameter.empty) | defaults
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind, default=value) for name, value in every.items()])


def lookup(table: Mapping[str, Any], what: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module whose names are those of a table."""

    def load(name: str) -> Any:
        if name in table:
            return table[name]
        raise AttributeError(f"there is no {what} {name!r}; there are {', '.join(table)}.")

    return load


class Layer:
    """A layer of BigDL on a torch module, which `to_torch()` returns.

    Raises:
        ArgumentError: An argument is unknown or missing; the message lists the arguments.

    Example:
        >>> from orca_classic.bigdl.layers import Linear
        >>> Linear(2, 3).forward(np.zeros((4, 2))).shape
        (4, 3)
    """

    signature: ClassVar[inspect.Signature] = inspect.Signature()
    made_by: ClassVar[Any] = None
    is_source: ClassVar[bool] = False  # whether it is a graph's without an input
    kind: ClassVar[str] = ""  # the name of the row, which a program's own subclass shares
    _twin: Layer | None = None  # a copy that is frozen and unfrozen with this layer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.arguments = bound(type(self), args, kwargs)
        self._begin(type(self).__name__)
        self.module: nn.Module = self._made(self.arguments)
        self._settle()

    def _begin(self, kind: str) -> None:
        self._name = f"{kind}{uuid.uuid4().hex[:8]}"
        self.layers: list[Layer] = []
        self._seed: int | None = None
        self._last: Any = None

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        """Build the torch module."""
        own = {name: _plain(value) for name, value in arguments.items() if name not in ABOUT_WEIGHTS}
        module: nn.Module = type(self).made_by(**own)
        module.row = self.kind  # type: ignore[assignment]
        return module

    def _settle(self) -> None:
        """Set penalties on weights, and weights from arguments."""
        arguments = self.arguments
        for argument, kind in PENALTIES.items():
            if (penalty := arguments.get(argument)) is not None:
                self._penalise(kind, penalty)
        views = {id(parameter): shown(part, name, parameter) for part, name, parameter in weights_of(self.module)}
        for argument, kind in START_VALUES.items():
            if arguments.get(argument) is not None:
                for parameter in weights_of_kind(self.module, kind):
                    _fill(views[id(parameter)], arguments[argument], f"{argument} of {self}")

    def _penalise(self, kind: str, penalty: Any) -> Layer:
        penalties = dict(getattr(self.module, "penalties", {}))
        self.module.penalties = penalties | {kind: (penalty.l1, penalty.l2)}  # type: ignore[assignment]
        return self

    @classmethod
    def of(cls, module: nn.Module) -> Layer:
        """Return the Layer of any torch module."""
        layer = Layer.__new__(Layer)
        layer.arguments, layer.module = {}, module
        layer._begin(type(module).__name__)
        return layer

    def __call__(self, x: Any = None) -> Any:
        """Return the node of this layer after one node or several; without any, the first node of a graph."""
        return Node(self, [] if x is None else list(x) if isinstance(x, Sequence) else [x])

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self._name}]"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}

    # Names, modes, seeds.

    def name(self) -> str:
        """Return the layer's name."""
        return self._name

    def set_name(self, name: str) -> Layer:
        """Give the layer a name."""
        self._name = str(name)
        return self

    def set_seed(self, seed: int = 123) -> Layer:
        """Set the seed by which `reset` draws the weights."""
        self._seed = seed
        return self

    def reset(self) -> Layer:
        """Draw new weights."""
        with torch.random.fork_rng(enabled=self._seed is not None):
            if self._seed is not None:
                torch.manual_seed(self._seed)
            for module in self.module.modules():
                if callable(getattr(module, "reset_parameters", None)):
                    module.reset_parameters()  # type: ignore[operator]
        return self

    def training(self, is_training: bool = True) -> Layer:
        """Switch training mode on or off."""
        self.module.train(is_training)
        return self

    def is_training(self) -> bool:
        """Say whether the layer is in training mode."""
        return self.module.training

    def get_dtype(self) -> str:
        """Return the type of all tensors."""
        return "float32"

    # Forward and backward.

    def to_torch(self) -> nn.Module:
        """Return the torch module: several inputs are several arguments. Its weights are this layer's own."""
        return LayerEntry(self.module)

    def forward(self, input: Any) -> Any:
        """Return the output for an array, a JTensor or a list of them, as arrays; an error names the inner layer."""
        inputs = _tensors(input)
        for leaf in _leaves(inputs):
            leaf.requires_grad_()
        output = run(self.module, inputs, self._name)
        self._last = inputs, output, self._moment()
        return _arrays(output)

    def backward(self, input: Any, grad_output: Any) -> Any:
        """Return the gradient of the input from that of the output; accumulate the gradients of the weights.

        Calls `forward` if this input is not that of the last call.
        """
        if self._last is None or self._last[2] != self._moment() or not _same(self._last[0], input):
            self.forward(input)
        inputs, output, _ = self._last
        outputs, gradients = _leaves(output), _leaves(_tensors(grad_output))
        if len(outputs) != len(gradients):
            raise DataError(f"{self} gave {len(outputs)} output(s); got a grad_output of {len(gradients)}.")
        for out, gradient in zip(outputs, gradients, strict=True):
            if out.shape != gradient.shape:
                raise DataError(
                    f"{self} gave an output of shape {tuple(out.shape)}; got a grad_output of {tuple(gradient.shape)}."
                )
        pairs = [(out, gradient) for out, gradient in zip(outputs, gradients, strict=True) if out.requires_grad]
        for leaf in _leaves(inputs):
            leaf.grad = None
        torch.autograd.backward([out for out, _ in pairs], [gradient for _, gradient in pairs], retain_graph=True)
        for parameter, (l1, l2) in penalised(self.module):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach().sign(), alpha=l1).add_(parameter.detach(), alpha=l2)
        return _arrays(_like(inputs, [leaf.grad for leaf in _leaves(inputs)]))

    def _moment(self) -> list[Any]:
        """Return a stamp that changes with weights and modes: a backward pass needs the same as its forward pass."""
        versions = [(id(parameter), parameter._version) for parameter in self.module.parameters()]
        return [*versions, *(part.training for part in self.module.modules())]

    def zero_grad_parameters(self) -> None:
        """Set the gradients of all weights to zero."""
        self.module.zero_grad(set_to_none=False)

    def update_parameters(self, learning_rate: float) -> None:
        """Take one plain step of gradient descent."""
        with torch.no_grad():
            for parameter in self.module.parameters():
                if parameter.grad is not None and parameter.requires_grad:
                    parameter.sub_(parameter.grad, alpha=learning_rate)

    # Weights.

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        """Return the weights of all layers as arrays, in the order of BigDL."""
        return [shown(*each).cpu().numpy().copy() for each in weights_of(self.module)]

    def set_weights(self, weights: Any) -> None:
        """Set the weights: as many arrays, of the same sizes, as `get_weights` returns."""
        mine, arrays = list(weights_of(self.module)), weights if isinstance(weights, Sequence) else [weights]
        if len(arrays) != len(mine):
            raise ArgumentError(f"{self} has {len(mine)} arrays of weights; got {len(arrays)}.")
        for array, (module, name, parameter) in zip(arrays, mine, strict=True):
            _fill(shown(module, name, parameter), array, f"{name} of {type(module).__name__} in {self}")

    def is_with_weights(self) -> bool:
        """Say whether the layer has weights."""
        return any(True for _ in weights_of(self.module))

    def parameters(self) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
        """Return {layer name: {"weight", "bias", "gradWeight", "gradBias"}} of all layers that have weights."""
        tensors: dict[str, dict[str, Any]] = {}
        for part in self.flattened_layers() or [self]:
            for module, name, parameter in weights_of(part.module):
                place, gradient = tensors.setdefault(part.name(), {}), parameter.grad
                values = {name: parameter, f"grad{name[0].upper()}{name[1:]}": gradient}
                same = sum(key.rstrip("0123456789") == name for key in place)
                number = f"{same + 1}" if same else ""
                for key, value in values.items():
                    tensor = torch.zeros_like(parameter) if value is None else value
                    place[f"{key}{number}"] = shown(module, name, tensor).cpu().numpy().copy()
        return tensors

    def set_running_mean(self, running_mean: Any) -> Layer:
        """Set the running mean of batch normalization."""
        return self._set_running("running_mean", running_mean)

    def set_running_std(self, running_std: Any) -> Layer:
        """Set the running variance of batch normalization; the name is BigDL's."""
        return self._set_running("running_var", running_std)

    def _set_running(self, name: str, values: Any) -> Layer:
        if not hasattr(self.module, name):
            raise ArgumentError(f"{self} keeps no running statistics; only batch normalization does.")
        _fill(getattr(self.module, name), values, f"{name} of {self}")
        return self

    def set_init_method(self, weight_init_method: Any = None, bias_init_method: Any = None) -> Layer:
        """Draw weights and bias by initialisation methods."""
        for method, kind in ((weight_init_method, "weight"), (bias_init_method, "bias")):
            for parameter in weights_of_kind(self.module, kind) if method is not None else ():
                method.fill(parameter, getattr(self.module, "groups", 1))
        return self

    def setWRegularizer(self, wRegularizer: Any) -> Layer:
        """Penalise the weights from now on."""
        return self._penalise("weight", wRegularizer)

    def setBRegularizer(self, bRegularizer: Any) -> Layer:
        """Penalise the bias from now on."""
        return self._penalise("bias", bRegularizer)

    def freeze(self, names: Sequence[str] | str | None = None) -> Layer:
        """Freeze all layers, or those of the given names."""
        return self._freeze(names, trains=False)

    def unfreeze(self, names: Sequence[str] | str | None = None) -> Layer:
        """Unfreeze all layers, or those of the given names."""
        return self._freeze(names, trains=True)

    def _freeze(self, names: Sequence[str] | str | None, trains: bool) -> Layer:
        part_names = [self.layer_named(name).name() for name in ([names] if isinstance(names, str) else names or [])]
        for part in [self, *self.flattened_layers(include_container=True)]:
            if part is self if names is None else part.name() in part_names:  # several may have one name
                for each in filter(None, (part, part._twin)):
                    each.module.requires_grad_(trains)
        return self

    def layer_named(self, name: str) -> Layer:
        """Return the layer of a name, at any depth; the error for an unknown name lists the names."""
        parts = [self, *self.flattened_layers(include_container=True)]
        for part in parts:
            if part.name() == name:
                return part
        names = dict.fromkeys(part.name() for part in parts)
        raise ArgumentError(f"{self} has no layer {name!r}; it has {', '.join(names)}.")

    @property
    def _inner(self) -> list[Layer]:
        """The layers within this one."""
        return self.layers

    def flattened_layers(self, include_container: bool = False) -> list[Layer]:
        """Return the layers at all depths, in order; containers too with include_container."""
        layers = []
        for part in self._inner:
            if include_container or not part._inner:
                layers.append(part)
            layers += part.flattened_layers(include_container)
        return layers

    # Predictions.

    def predict(self, features: Any, batch_size: int = -1) -> Any:
        """Return the outputs for arrays, as arrays; for an RDD of Samples or arrays, as an RDD of arrays.

        Args:
            features: An array (or a list of arrays for several inputs) with a first dimension of rows, or an RDD.
            batch_size: Rows of one forward pass; 256 unless given.
        """
        from orca_classic.bigdl.training import predicted

        return predicted(self, features, batch_size)

    def predict_class(self, features: Any, batch_size: int = -1) -> Any:
        """Return the class of each row, counted from 1."""
        answers = self.predict(features, batch_size)
        if isinstance(answers, list):
            raise ArgumentError(f"{self} has {len(answers)} outputs: predict_class takes models with one. Use predict.")
        if hasattr(answers, "mapPartitions"):
            return answers.map(lambda answer: int(np.argmax(answer)) + 1)
        return np.argmax(answers, axis=-1) + 1

    predict_local = predict_distributed = predict
    predict_class_local = predict_class_distributed = predict_class

    def evaluate(self, *args: Any) -> Any:
        """Switch to evaluation mode; or, with (rdd, batch_size, methods) or (x, y, batch_size, methods), evaluate.

        Returns:
            The layer, or an EvaluatedResult of each method.
        """
        if not args:
            return self.training(False)
        from orca_classic.bigdl.training import evaluated

        if len(args) not in (3, 4):
            raise ArgumentError(
                "evaluate takes nothing, (dataset, batch_size, val_methods) or (x, y, batch_size, val_methods); got "
                f"{len(args)} arguments."
            )
        return evaluated(self, args[0] if len(args) == 3 else args[:2], args[-2], args[-1])

    def quantize(self) -> Layer:
        """Return a copy for inference whose linear layers compute with 8-bit integers."""
        from torch.ao.quantization import quantize_dynamic

        whole = copy.deepcopy(self).evaluate()
        (whole.module,) = quantize_dynamic(nn.Sequential(whole.module), {nn.Linear}, dtype=torch.qint8)
        return whole

    def saveModel(self, modelPath: str, weightPath: str | None = None, over_write: bool = False) -> None:
        """Save the model at any fsspec path, as safetensors and JSON; with weightPath, the weights go to a second file.

        over_write=True replaces existing files.
        """
        from orca_classic.bigdl.files import save_layer

        save_layer(self, modelPath, weightPath, over_write)

    def save(self, path: str, over_write: bool = False) -> None:
        """Save the model in one file."""
        self.saveModel(path, over_write=over_write)

    save_caffe = refusal("save_caffe", "use saveModel, or to_openvino of the Estimator for serving")
    save_tensorflow = refusal("save_tensorflow", "use saveModel, or torch.onnx.export(layer.to_torch())")
    predict_image = refusal("predict_image", "use predict of the images as arrays (get_image of an ImageSet)")
    from_jvalue = refusal("from_jvalue", "no layer lives in a JVM here. Use the layer itself")


_RESTING = ("SelectTable", "NarrowTable", "BinaryThreshold")


class LayerEntry(nn.Module):
    """A layer's module as torch calls modules: several inputs are several arguments."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        """Return the output."""
        return self.layer(inputs[0] if len(inputs) == 1 else list(inputs))

    @property
    def rests(self) -> bool:
        """Whether some weights may get no gradient: a layer stops gradients, or leaves out a part of a table."""
        return any(
            getattr(part, "stops", None)
            or getattr(part, "propagates", True) is False
            or getattr(part, "label", getattr(part, "row", None)) in _RESTING
            for part in self.layer.modules()
        )


def layer_of(model: Any) -> Any:
    """Return a model with a torch module, such as a TFNet, as a Layer; other values unchanged."""
    return model if isinstance(model, Layer) or not hasattr(model, "to_torch") else Layer.of(model.to_torch())


class Node:
    """A layer's place in a graph, after other nodes."""

    def __init__(self, layer: Layer, previous: list[Node]) -> None:
        if wrong := [type(node).__name__ for node in previous if not isinstance(node, Node)]:
            raise ArgumentError(
                f"{layer} is called with nodes: Input(), or the results of such calls; got {wrong[0]}. "
                "To compute an output, call its forward."
            )
        self.layer, self.previous = layer, previous

    def element(self) -> Layer:
        """Return the layer."""
        return self.layer

    def followed_by(self, model: Any, nodes: list[Any]) -> Node:
        """Return the node of a model with `to_torch`, such as a TFNet, after these nodes, which include this one."""
        return Node(layer_of(model), nodes)

    def remove_pre_edges(self) -> Node:
        """Forget the nodes before this one."""
        self.previous = []
        return self


class Holder(Layer):
    """A layer of layers, which are its arguments."""

    @property
    def _inner(self) -> list[Layer]:
        return [each for value in self.arguments.values() for each in table_of(value) if isinstance(each, Layer)]


class Container(Layer):
    """A layer of layers, which `add` puts in."""

    def add(self, model: Any) -> Any:
        """Add a layer; returns the container."""
        model = layer_of(model)
        if not isinstance(model, Layer):
            raise ArgumentError(f"{self} takes layers; got {type(model).__name__}. Layer.of(module) wraps torch's own.")
        return self._take(model)

    def _take(self, part: Layer) -> Container:
        parts: Any = self.module
        self.layers.append(part)
        parts.parts.append(part.module)
        parts.names.append(part.name)
        return self


class Parts(Weights):
    """The modules of a container and their names for errors; run in sequence unless the row has a forward function."""

    row = "Sequential"

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        self.names: list[Any] = []  # functions, as names may change
        for name, value in settings.items():
            setattr(self, name, value)

    def each(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the output of every part for its own input."""
        if len(inputs) != len(self.parts):
            raise DataError(f"{len(self.parts)} layers take as many tensors; got {len(inputs)}")
        return [self.part(place, x) for place, x in enumerate(inputs)]

    def part(self, place: int, x: Any) -> Any:
        """Return the output of one part."""
        return run(self.parts[place], x, self._called(place))

    def _called(self, place: int) -> str:
        name = self.names[place]
        return name() if callable(name) else str(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "names": [self._called(place) for place in range(len(self.names))], "state": None}


def in_turn(parts: Parts, x: Any) -> Any:
    """Return the output of all parts in sequence."""
    for place in range(len(parts.parts)):
        x = parts.part(place, x)
    return x


FORWARD["Sequential"] = in_turn


class LayerGraph(nn.Module):
    """Layers in topological order.

    A step is (number of a layer, numbers of its input values); values are the inputs, then the output of each step.
    """

    def __init__(self, layers: Sequence[nn.Module], names: Sequence[str], steps: Sequence[tuple[int, Sequence[int]]],
                 inputs: int, outputs: Sequence[int]) -> None:  # fmt: skip
        super().__init__()
        self.parts, self.names = nn.ModuleList(layers), list(names)
        self.steps, self.inputs, self.outputs = list(steps), inputs, list(outputs)
        self.stops: set[str] = set()

    def forward(self, x: Any) -> Any:
        """Return the outputs: one, or a list of several."""
        values = list(table_of(x)) if self.inputs > 1 else [x]
        if len(values) != self.inputs:
            raise DataError(f"the model has {self.inputs} inputs; got {len(values)}. Pass a list of as many arrays.")
        for which, places in self.steps:
            inputs = [values[place] for place in places]
            output = run(self.parts[which], inputs[0] if len(inputs) == 1 else inputs, self.names[which])
            values.append(map_tree(torch.Tensor.detach, output) if self.names[which] in self.stops else output)
        outputs = [values[place] for place in self.outputs]
        return outputs[0] if len(outputs) == 1 else outputs


class Model(Topology, Container):
    """A graph from input nodes to output nodes.

    Example:
        >>> from orca_classic.bigdl.layers import CAddTable, Input, Linear
        >>> a, b = Input(), Input()
        >>> model = Model([a, b], CAddTable()([Linear(2, 3)(a), Linear(4, 3)(b)]))
        >>> model.forward([np.zeros((5, 2)), np.zeros((5, 4))]).shape
        (5, 3)
    """

    signature = __signature__ = signed("inputs", "outputs", jvalue=None, byte_order="little_endian", model_type="bigdl")

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        self.inputs, self.outputs = _nodes(arguments["inputs"], "inputs"), _nodes(arguments["outputs"], "outputs")
        order = ordered(self.inputs, self.outputs)
        places = {id(node): place for place, node in enumerate(self.inputs)}
        values = places | {id(node): place for place, node in enumerate(order, len(self.inputs))}
        self.layers = list(self.parts)
        which = {id(part): place for place, part in enumerate(self.parts)}
        steps = [
            (which[id(node.layer)], [places[id(node)]] if begins(node) and id(node) in places
             else [values[id(before)] for before in node.previous])
            for node in order
        ]  # fmt: skip
        outputs = [values[id(node)] for node in self.outputs]
        names = [part.name() for part in self.parts]
        return LayerGraph([part.module for part in self.parts], names, steps, len(self.inputs), outputs)

    add = refusal("add of a graph", "call layers with nodes, and make a Model of its inputs and outputs")

    def node(self, name: str) -> Node:
        """Return the node of the layer of a name."""
        for node in [*self.inputs, *ordered(self.inputs, self.outputs)]:
            if node.layer.name() == name:
                return node
        raise ArgumentError(f"there is no node {name!r}; there are {', '.join(part.name() for part in self.layers)}.")

    def _nodes_named(self, names: Sequence[str] | str) -> list[Node]:
        return [self.node(name) for name in ([names] if isinstance(names, str) else names)]

    def stop_gradient(self, stop_layers: Sequence[str]) -> Model:
        """Stop gradients at these layers, which must be layers of the graph itself."""
        names = [part.name() for part in self.parts]
        if inner := [self.layer_named(name) for name in stop_layers if name not in names]:
            raise ArgumentError(f"{inner[0]} is inside another layer of {self}, which has {', '.join(names)}.")
        self.module.stops, self.module.names = set(stop_layers), names  # type: ignore[assignment]
        return self

    def steps(self) -> dict[str, Any]:
        """Return the steps of the graph as files store them; stopped layers by their current names."""
        graph: Any = self.module
        stops = [part.name() for part, name in zip(self.parts, graph.names, strict=True) if name in graph.stops]
        steps = [[which, list(places)] for which, places in graph.steps]
        return {"steps": steps, "inputs": graph.inputs, "outputs": graph.outputs, "stops": stops}

    def new_graph(self, outputs: Sequence[str] | str) -> Any:
        """Return the graph that ends with the layers of these names; weights are shared."""
        return type(self)(self.inputs, self._nodes_named(outputs))

    def freeze_up_to(self, names: Sequence[str] | str) -> None:
        """Freeze the layers of these names, and all before them."""
        for node in ordered(self.inputs, self._nodes_named(names)):
            node.layer.freeze()

    train = refusal("train of a graph of TensorFlow 1", "use Estimator.from_graph")
    set_input_formats = set_output_formats = refusal("set_input_formats", "say data_format of the layers")

    @staticmethod
    def loadModel(modelPath: str, weightPath: str | None = None, bigdl_type: str = "float") -> Any:
        """Return the model that `saveModel` wrote."""
        from orca_classic.bigdl.files import load_layer

        return load_layer(modelPath, weightPath)

    load = loadModel

    @staticmethod
    def load_torch(path: str, bigdl_type: str = "float") -> Any:
        """Return the layer of a TorchScript file."""
        from orca_classic.bigdl.net import Net

        return Net.load_torch(path)

    load_keras = refusal("load_keras", "train a Keras model with Estimator.from_keras, or TFPark's KerasModel")
    load_caffe = load_caffe_model = refusal("Caffe's format", CAFFE)
    load_tensorflow = refusal("load_tensorflow", "use TFNet.from_export_folder or from_saved_model")


LAYERS["Model"] = Model


def run(module: nn.Module, x: Any, name: str) -> Any:
    """Call a module; the error for an unfit input has the module's name and the input's shape."""
    try:
        return module(x)
    except UNFIT as error:
        label = getattr(module, "label", getattr(module, "row", type(module).__name__))
        description = f"an input of shape {shapes_of(x)}"
        own = type(module).__module__.split(".")[0] in ("orca", "orca_classic", "torch")
        refusal = refused_input(error, f"{label} [{name}]", description, x, own=own)
        if refusal is None:
            raise
        raise refusal from error


UNFIT = RuntimeError, IndexError, TypeError, ValueError, AttributeError, AssertionError  # of tensors that do not fit
_MISCOUNTS = ("list index out of range", "values to unpack", "invalid combination", "positional argument")


def refused_input(error: Exception, label: str, description: str, *inputs: Any, own: bool = True) -> DataError | None:
    """Return the error of a layer or criterion that cannot take its inputs; None for an error of another kind.

    Args:
        error: The error.
        label: The layer or criterion.
        description: Its inputs, in words.
        inputs: Its inputs. Errors about a list or None count only where an input is one.
        own: Whether the code is ours or torch's, so that a wrong number of arguments means a wrong number of tensors.
    """
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    others = {type(each).__name__ for each in inputs if not isinstance(each, torch.Tensor)}
    culprits = [kind for kind in others if f"'{kind}' object" in reason]
    if (
        getattr(error, "names_layer", False)
        or type(error) in (ArgumentError, torch.cuda.OutOfMemoryError)
        or (type(error) is AttributeError and not culprits)
    ):
        return None
    if culprits:
        reason = "it needs targets" if "NoneType" in culprits else "it takes one tensor"
    elif own and any(words in reason for words in _MISCOUNTS):
        reason = "it takes another number of tensors"
    refusal = DataError(f"{label} cannot take {description}: {reason.rstrip('.')}.")
    refusal.names_layer = True  # type: ignore[attr-defined]
    return refusal


def shapes_of(tree: Any) -> Any:
    """Return the shape of a tensor, or a list of those of a table."""
    if isinstance(tree, list | tuple):
        return [shapes_of(part) for part in tree]
    return tuple(tree.shape) if isinstance(tree, torch.Tensor) else tree


def bound(kind: type, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class by name, defaults included."""
    signature: inspect.Signature = kind.signature  # type: ignore[attr-defined]
    kwargs.pop("bigdl_type", None)
    names = list(signature.parameters)
    unknown = [name for name in kwargs if name not in names]
    if unknown:
        raise ArgumentError(
            f"{kind.__name__} has no argument {', '.join(map(repr, unknown))}; it has {', '.join(names) or 'none'}."
        )
    try:
        arguments = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{kind.__name__}{signature}: {error}.") from error
    arguments.apply_defaults()
    return dict(arguments.arguments)


def weights_of(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    """Yield each weight once, with its module and name, in BigDL's order."""
    ids: set[int] = set()
    for part in module.modules():
        order = getattr(part, "weight_order", None) or [name for name, _ in part.named_parameters(recurse=False)]
        for home, _, name in (place.rpartition(".") for place in order):
            owner = part.get_submodule(home)
            parameter = getattr(owner, name)
            if parameter is not None and id(parameter) not in ids:
                ids.add(id(parameter))
                yield owner, name, parameter


def _fill(tensor: torch.Tensor, values: Any, what: str) -> None:
    array = values.to_ndarray() if isinstance(values, JTensor) else np.asarray(values, np.float32)
    if array.size != tensor.numel():
        raise ArgumentError(f"{what} has the shape {tuple(tensor.shape)}; got an array of shape {array.shape}.")
    mine, other = ([size for size in shape if size != 1] for shape in (tensor.shape, array.shape))
    if mine != other and sorted(mine) == sorted(other):
        raise ArgumentError(
            f"{what} has the shape {tuple(tensor.shape)}; got an array of shape {array.shape}, whose dimensions are in "
            "another order. Transpose it."
        )
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(np.ascontiguousarray(array)).reshape(tensor.shape))


def shown(module: nn.Module, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Return a view of a weight (or of its gradient) as BigDL lays it out."""
    view = weight.detach()
    if name == "weight" and hasattr(module, "shown"):
        return module.shown(view)  # type: ignore[operator]
    if name == "weight" and view.dim() > 3 and hasattr(module, "groups"):
        return view.unflatten(0, (module.groups, -1))
    return view


def _plain(value: Any) -> Any:
    """Return an argument as modules take it: a layer as its module."""
    if isinstance(value, Layer):
        return value.module
    if isinstance(value, list | tuple) and any(isinstance(item, Layer) for item in value):
        return [_plain(item) for item in value]
    return value


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().float().clone()
    if isinstance(value, JTensor):
        value = value.to_ndarray()
    if _is_table(value):
        return [_tensors(item) for item in value]
    try:
        if value is None:
            raise TypeError
        return torch.from_numpy(np.array(value, dtype=np.float32, order="C"))  # a copy: views may run backwards
    except (TypeError, ValueError) as error:
        raise DataError(
            f"a layer takes arrays, or a list of them; got {type(value).__name__} {value!r:.60}."
        ) from error


def _is_table(value: Any) -> bool:
    """Say whether a list is several tensors, not the numbers of one."""
    return isinstance(value, list | tuple) and any(
        isinstance(item, np.ndarray | JTensor | torch.Tensor) or _is_table(item) for item in value
    )


def _leaves(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _like(tree: Any, gradients: Sequence[torch.Tensor | None]) -> Any:
    """Return the gradients of a tree's leaves as such a tree; zeros for a missing one."""
    leaves = [
        torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(_leaves(tree), gradients, strict=True)
    ]
    return unflatten(flatten(tree)[1], leaves)


def _arrays(tree: Any) -> Any:
    """Return tensors as arrays, tables as lists."""
    if isinstance(tree, list | tuple):
        return [_arrays(part) for part in tree]
    return tree.detach().cpu().numpy().copy()


def _same(one: Any, other: Any) -> bool:
    ones, others = _leaves(_tensors(one)), _leaves(_tensors(other))
    return len(ones) == len(others) and all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def _nodes(nodes: Any, what: str) -> list[Node]:
    nodes = list(nodes) if isinstance(nodes, Sequence) else [nodes]
    wrong = [type(node).__name__ for node in nodes if not isinstance(node, Node)]
    if wrong or not nodes:
        raise ArgumentError(
            f"the {what} of a Model are nodes: Input(), or the results of layers called with nodes; got "
            f"{', '.join(wrong) or 'none'}."
        )
    return nodes
