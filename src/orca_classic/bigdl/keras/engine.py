"""Engine: layers that infer their shapes from the layers before, and models with fit. Owns building, shapes and verbs.

A row of `layers.py` is a function of `x` and its arguments (a layer without weights), or one of the input's `shape`
(without rows; a list of shapes for several inputs) and its arguments, which returns a torch module. Calling it with
zeros gives the output's shape. Classes count from 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from orca.errors import ArgumentError, DataError
from orca.rows.tree import cut_rows, rows_of
from orca_classic.bigdl import layer as graphs
from orca_classic.bigdl.layer import ABOUT_WEIGHTS, SHAPING, Layer, Node, Parts, Weights, applied, layer_of, run, signed
from orca_classic.bigdl.optimizer import Trainer
from orca_classic.zoo.sample import EvaluatedResult, Sample

KERAS: dict[str, type[KerasLayer]] = {}
KERAS2: dict[str, type[KerasLayer]] = {}
VARIABLES: dict[str, type[KerasLayer]] = {}  # layers of operations on variables
TABLES = {"keras": KERAS, "keras2": KERAS2, "variables": VARIABLES}
ROWS = 2  # of the zeros that shapes are inferred with
_COMMON = {"input_shape": None, "name": None}
# Names of arguments, and the name that a row's function may have for the same.
WORDS = {"units": "output_dim", "filters": "nb_filter", "kernel_initializer": "init", "bias_initializer": "bias_init",
         "use_bias": "bias", "strides": "subsample", "subsample_length": "subsample", "kernel_size": "filter_length",
         "padding": "border_mode", "data_format": "dim_ordering"}  # fmt: skip
LAYER_ARGUMENTS = {*ABOUT_WEIGHTS, "input_dim", "input_length"}  # for the layer itself; no **arguments of a row


def keras_rows(table: dict[str, Any], rows: Mapping[str, tuple[Any, ...]]) -> None:
    """Make a KerasLayer class of each row, and put it into a table: name -> ([signature], function, docstring).

    After a signature, a function gets the arguments that it has, by their own names or by those of WORDS.
    """
    for name, (*signatures, row, words) in rows.items():
        first, *parameters = inspect.signature(row).parameters.values()
        defaults = {p.name: p.default for p in (signatures[0].parameters.values() if signatures else parameters)}
        names, open_ended = {p.name for p in parameters}, any(p.kind is p.VAR_KEYWORD for p in parameters)
        own = {}
        for key in defaults:
            word = key if key in names else WORDS.get(key, key)
            if word in names or (open_ended and key not in LAYER_ARGUMENTS):
                own[key] = word if word in names else key
        signature = signed(**defaults, **_COMMON)
        place = name if table is KERAS else f"{name}2"  # pickles find it there
        scope = {"__doc__": words, "__module__": "orca_classic.bigdl.keras.layers", "row": staticmethod(row),
                 "table": table, "own": own, "signature": signature, "__signature__": signature, "dims": _dims(name),
                 "__qualname__": place}  # fmt: skip
        if first.name == "x":
            made_by = applied(row, f"keras.{place}")
            scope["row"] = staticmethod(lambda shape, made_by=made_by, **arguments: made_by(**arguments))
        table[name] = type(name, (KerasLayer,), scope)


def _dims(name: str) -> int | None:
    """Return the dimensions of a row that a layer takes, by its name; None for any."""
    counts = {"SimpleRNN": 2, "LSTM": 2, "GRU": 2, "ResizeBilinear": 3, "RepeatVector": 1}
    if name[-2:] in ("1D", "2D", "3D"):
        return int(name[-2]) + 1 + name.startswith("ConvLSTM")
    return counts.get(name)


def _unbuilt(m: Any, x: Any) -> Any:
    raise DataError(f"{m.label} does not know its input's shape yet: give it input_shape=, or put it after a layer")


class Variable(Node):
    """A node with a shape, and its value for zeros. Arithmetic with variables and numbers gives variables.

    A program makes one of the shape of a row, with its rows or without: `Variable(input_shape=(None, 2))`.
    """

    def __init__(self, input_shape: Any, node: tuple[Layer, list[Node], Any] | None = None, jvalue: Any = None,
                 name: str | None = None) -> None:  # fmt: skip
        if node is None:
            shape = _shape(_without_rows(input_shape), "Variable")
            node = InputLayer(input_shape=shape, name=name).build(shape), [], zeros(shape)
        layer, previous, sample = node
        super().__init__(layer, previous)
        self.sample = sample

    @classmethod
    def after(cls, layer: Layer, previous: list[Node], sample: Any) -> Variable:
        """Return the variable of a layer after others, with its value for zeros."""
        return Variable(None, (layer, previous, sample))

    @property
    def name(self) -> str:
        """The name of its layer."""
        return self.layer.name()

    def followed_by(self, model: Any, nodes: list[Any]) -> Node:
        """Return the variable of a model with `to_torch`, such as a TFNet, after these variables."""
        variable: Node = KerasLayerWrapper(model)(nodes)
        return variable

    def get_output_shape(self) -> Any:
        """Return the shape, None for the rows."""
        return shown(shape_of(self.sample))

    get_input_shape = get_output_shape
    shape = property(get_output_shape)

    def __getattr__(self, name: str) -> Any:
        from orca_classic.bigdl.keras import autograd

        if name in autograd.METHODS:
            return lambda *args, **kwargs: autograd.METHODS[name](self, *args, **kwargs)
        raise AttributeError(f"a Variable has no {name!r}; it has {', '.join(autograd.METHODS)}.")

    def __neg__(self) -> Variable:
        return _operation("mul", self, -1.0)

    def __getitem__(self, places: Any) -> Variable:
        return _operation("getitem", self, list(places) if isinstance(places, tuple) else places)


def _operation(name: str, *arguments: Any) -> Variable:
    from orca_classic.bigdl.keras import autograd

    return autograd.operation(name, *arguments)


def _operator(name: str) -> tuple[Callable[..., Variable], Callable[..., Variable]]:
    """Return the method of an operator with a variable on its left, and on its right."""
    return lambda self, other: _operation(name, self, other), lambda self, other: _operation(name, other, self)


for _sign, _name in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}.items():
    for _method, _function in zip((f"__{_sign}__", f"__r{_sign}__"), _operator(_name), strict=True):
        setattr(Variable, _method, _function)


class KerasLayer(Layer):
    """A layer whose module is built once its input's shape is known: from `input_shape`, or from the layer before."""

    row: ClassVar[Any] = None
    own: ClassVar[Mapping[str, str]] = {}  # arguments of the row's function, and its names for them
    dims: ClassVar[int | None] = None  # of a row of data
    table: ClassVar[dict[str, Any]] = KERAS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.arguments.get("name"):
            self.set_name(self.arguments["name"])
        self.shape_in: Any = None
        self.shape_out: Any = None
        self.given = _given_shape(type(self).signature, self.arguments)

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        return Weights(computes=_unbuilt, label=type(self).__name__)

    def _settle(self) -> None:
        """Do nothing: the module is not built yet."""

    def build(self, shape: Any) -> KerasLayer:
        """Build the module for an input's shape, without rows; a layer is built once, for one shape."""
        if self.shape_in is not None:
            if self.shape_in != shape:
                raise DataError(
                    f"{self} was built for inputs of shape {self.shape_in}; got {shape}. Make another layer."
                )
            return self
        sample = zeros(shape)
        self.module = self._for(shape)
        super()._settle()
        self.shape_in, self.shape_out = shape, shape_of(self.call(sample))
        return self

    def _for(self, shape: Any) -> nn.Module:
        """Return the module for a shape, labelled with this layer's name for errors."""
        name, dims = type(self).__name__, type(self).dims
        if dims is not None and (isinstance(shape, list) or len(shape) != dims):
            raise DataError(f"{name} takes rows of {dims} dimensions; got rows of shape {shape}.")
        module: nn.Module = type(self).row(shape, **{word: self.arguments[key] for key, word in self.own.items()})
        module.label = name  # type: ignore[assignment]
        return module

    def call(self, sample: Any) -> Any:
        """Return the output for zeros, in evaluation mode."""
        from orca.frameworks.torch.replica import evaluating

        before = SHAPING.set(True)
        try:
            with torch.no_grad(), evaluating([self.module]):
                return run(self.module, sample, self._name)
        finally:
            SHAPING.reset(before)

    def __call__(self, x: Any = None) -> Any:
        """Return the variable of this layer after one variable or several."""
        nodes = list(x) if isinstance(x, Sequence) else [x]
        if not all(isinstance(node, Variable) for node in nodes):
            raise ArgumentError(f"{self} is called with Input(shape=...) or results of layers; got {x!r:.60}.")
        samples = [node.sample for node in nodes]
        sample = samples[0] if len(samples) == 1 else samples
        self.build(shape_of(sample))
        return Variable.after(self, list(nodes), self.call(sample))

    def get_input_shape(self) -> Any:
        """Return the input's shape, None for the rows."""
        return shown(self._known(self.shape_in))

    def get_output_shape(self) -> Any:
        """Return the output's shape, None for the rows."""
        return shown(self._known(self.shape_out))

    input_shape, output_shape = property(get_input_shape), property(get_output_shape)

    def _known(self, shape: Any) -> Any:
        if shape is None:
            raise ArgumentError(
                f"{self} is not built yet: it has no shapes. Add it to a model, or call it with a variable."
            )
        return shape

    def definition(self, describe: Any) -> dict[str, Any]:
        """Return the layer's definition for a file."""
        from orca_classic.bigdl.files import packed

        arguments = {
            key: packed(value, f"{key} of {self}") for key, value in self.arguments.items() if key != "weights"
        }
        which = next(name for name, table in TABLES.items() if table is self.table)
        return {"kind": "keras", "table": which, "arguments": arguments, "shape": self.shape_in}


def rebuilt_keras(about: dict[str, Any]) -> Any:
    """Return the layer of a definition, built for the shape it had."""
    from orca_classic.bigdl.files import graph_of, rebuilt, unpacked
    from orca_classic.bigdl.keras import autograd, layers  # noqa: F401  (they fill the tables)

    name = about["class"]
    if name == "Sequential":
        model = Sequential()
        model.shape_in = _tupled(about["shape"])
        for part in about["layers"]:
            model._take(rebuilt(part))
        return model
    if name in ("Model", "Lambda", "CustomLoss"):
        return graph_of(about, [Input(shape) for shape in _tupled(about["shapes"])], autograd.placed, Model)
    if about.get("wraps"):
        return KerasLayerWrapper(rebuilt(about["wraps"])).build(_tupled(about["shape"]))
    kind = TABLES.get(about["table"], {}).get(name)
    if kind is None:
        raise ArgumentError(f"there is no layer {name!r} in the Keras-style API: the file is of another version.")
    layer = kind(**{key: unpacked(value) for key, value in about["arguments"].items()})
    shape = _tupled(about["shape"])
    return layer if shape is None else layer.build(shape)


class KerasLayerWrapper(graphs.Holder, KerasLayer):
    """A layer of `bigdl.nn.layer`, or a torch module, in the Keras-style API."""

    signature = signed("torch_layer", **_COMMON)

    def _for(self, shape: Any) -> nn.Module:
        inner = layer_of(self.arguments["torch_layer"])
        return inner.module if isinstance(inner, Layer) else inner

    def definition(self, describe: Any) -> dict[str, Any]:
        """Return the layer's definition for a file."""
        inner = layer_of(self.arguments["torch_layer"])
        layer = inner if isinstance(inner, Layer) else Layer.of(inner)
        return {"kind": "keras", "wraps": describe(layer), "shape": self.shape_in}


class InputLayer(KerasLayer):
    """The layer of a model's input."""

    signature = signed(**_COMMON)

    def _for(self, shape: Any) -> nn.Module:
        return nn.Identity()


KERAS["InputLayer"], KERAS["KerasLayerWrapper"] = InputLayer, KerasLayerWrapper


class Input(Variable):
    """The variable of a model's input, of the shape of a row, or a list of shapes for a table."""

    def __init__(self, shape: Any = None, name: str | None = None, bigdl_type: str = "float") -> None:
        super().__init__(_shape(shape, "Input"), name=name)


class KerasNet(Trainer, KerasLayer):
    """A model: compile, fit, evaluate, predict."""

    table: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compiled: dict[str, Any] = {}
        self.kept: tuple[str | None, bool] = (None, False)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "estimator": None}

    def build(self, shape: Any) -> KerasNet:
        """Check the shape: layers were built when they were added or called."""
        if shape != self.shape_in:
            raise DataError(f"{self} takes inputs of shape {self.shape_in}; got {shape}.")
        return self

    def compile(self, optimizer: Any, loss: Any, metrics: Any = None) -> None:
        """Set the optimizer, the loss and the metrics.

        Args:
            optimizer: An optim method, or its name: "sgd", "adam", "rmsprop", "adagrad", "adadelta", "adamax".
            loss: An objective, its name such as "mse", or a function of the variables (y_true, y_pred); for several
                outputs a list of them, which are added up.
            metrics: Metrics or their names, such as ["accuracy"].
        """
        from orca.core.metrics import metrics_of
        from orca_classic.bigdl.criterion import ParallelCriterion
        from orca_classic.bigdl.keras.objectives import metrics_named, objective_of, optimizer_of

        shapes = self.shape_out if isinstance(self.shape_out, list) else [self.shape_out]
        losses = list(loss) if isinstance(loss, list | tuple) else [loss] * len(shapes)
        if len(losses) != len(shapes):
            raise ArgumentError(
                f"{self} has {len(shapes)} outputs; got {len(losses)} losses. Pass one, or one for each."
            )
        whole = objective_of(losses[0], shapes[0])
        if len(shapes) > 1 and (losses[0] is not loss or isinstance(loss, str)):  # else it takes all outputs itself
            whole = ParallelCriterion()
            for each, shape in zip(losses, shapes, strict=True):
                whole.add(objective_of(each, shape))
        self.compiled = {
            "optimizer": optimizer_of(optimizer), "loss": whole, "metrics": metrics_of(metrics_named(metrics)),
        }  # fmt: skip
        self.estimator = None

    def set_checkpoint(self, path: str, over_write: bool = True) -> None:
        """Keep a checkpoint under a path at the end of every epoch: the newest alone with over_write, else all."""
        self.kept = path, over_write

    def fit(self, x: Any, y: Any = None, batch_size: int = 32, nb_epoch: int = 10, validation_split: float = 0,
            validation_data: Any = None, distributed: bool = True, feature_cols: Any = None, label_cols: Any = None,
            transform: Any = None, **options: Any) -> None:  # fmt: skip
        """Train, starting from the current weights.

        Args:
            x: Arrays (a list for several inputs), an RDD of Samples, XShards, a DataFrame, an ImageSet or TextSet.
            y: Labels of arrays.
            batch_size: Rows of one step over all workers.
            nb_epoch: The number of epochs.
            validation_split: The share of the last rows of arrays to validate with.
            validation_data: (x, y), or data of the kind of x.
            distributed: Whether to train on the cluster that is up, else in a process of this machine.
            feature_cols: Columns of features of a DataFrame.
            label_cols: Columns of labels of a DataFrame.
            transform: A preprocessing of an ImageSet.
            options: Other arguments of the Estimator's fit.
        """
        from orca.core.triggers import EveryEpoch

        if "epochs" in options:
            raise ArgumentError("fit has no argument 'epochs' here: it is nb_epoch.")
        data, checking = self._paired(x, y, transform), validation_data
        if validation_split:
            data, checking = _split(data, validation_split)
        elif isinstance(checking, list | tuple) and len(checking) == 2 and not isinstance(checking[0], Sample):
            checking = self._paired(checking[0], checking[1], transform)
        elif checking is not None:
            checking = self._paired(checking, None, transform)
        if self.kept[0]:
            options = {"checkpoint_trigger": EveryEpoch(), "keep_checkpoints": 1 if self.kept[1] else None} | options
        est = self._estimator(distributed)
        columns = _columns(feature_cols, label_cols)
        est.fit(data, nb_epoch, batch_size, validation_data=checking, **columns, **options)
        est.get_model()

    def _paired(self, x: Any, y: Any, transform: Any = None) -> Any:
        """Return data and labels as the Estimator takes them; the model must have as many inputs as there are arrays."""
        count, inputs = len(x) if _several(x) else 1, len(self.shape_in) if isinstance(self.shape_in, list) else 1
        if count != inputs and (isinstance(x, np.ndarray) or _several(x)):
            raise DataError(f"{self} has {inputs} input(s); got {count}. Pass a list of as many arrays.")
        return _paired(x, y, transform)

    def _estimator(self, distributed: bool | None = None) -> Any:
        """Return the Estimator: on the cluster that is up, in a process here, or on the backend of the last fit."""
        if not self.compiled:
            raise ArgumentError(f"{self} is not compiled. Call compile(optimizer, loss, metrics) first.")
        backend = "local" if distributed is False else None
        if distributed is None and self.estimator is not None:
            backend = self.estimator.options["backend"]
        return self.estimator_of(self, backend=backend, model_dir=self.kept[0], **self.compiled)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Switch to evaluation mode; or, with data (x, y, batch_size), return loss and metrics as EvaluatedResults."""
        return self._evaluate(*args, **kwargs) if args or kwargs else self.training(False)

    def _evaluate(self, x: Any, y: Any = None, batch_size: int = 32, feature_cols: Any = None, label_cols: Any = None,
                  transform: Any = None) -> list[EvaluatedResult]:  # fmt: skip
        est = self._estimator()
        statistics = est.evaluate(self._paired(x, y, transform), batch_size, **_columns(feature_cols, label_cols))
        rows = statistics["num_samples"]
        names = ["val_loss", *(metric.name for metric in est.metrics)]
        return [EvaluatedResult(statistics[name], rows, "Loss" if name == "val_loss" else name) for name in names]

    def predict(self, x: Any, batch_per_thread: int = 4, distributed: bool = True, feature_cols: Any = None,  # type: ignore[override]
                prediction_col: str | None = None, transform: Any = None) -> Any:  # fmt: skip
        """Return the outputs: an RDD of arrays where Spark is up and distributed is true, else arrays.

        Args:
            x: Arrays, an RDD of Samples, XShards, a DataFrame, an ImageSet or TextSet.
            batch_per_thread: Rows of one forward pass.
            distributed: Whether to predict on Spark.
            feature_cols: Columns of features of a DataFrame, to which a column of predictions is added.
            prediction_col: The name of that column, "prediction" unless given.
            transform: A preprocessing of an ImageSet.
        """
        from orca_classic.bigdl.training import backend_now
        from orca_classic.estimator import Estimator

        data = self._paired(x, None, transform)
        if hasattr(data, "columns") or hasattr(data, "transform_shard"):
            est = Estimator.from_bigdl(model=self, backend=backend_now())
            return est.predict(data, batch_per_thread, output_cols=prediction_col, **_columns(feature_cols))
        return answers_of(self, data, batch_per_thread, distributed)

    def predict_classes(self, x: Any, batch_per_thread: int = 4, zero_based_label: bool = True) -> Any:
        """Return the class of each row, counted from 0 unless zero_based_label is False; a single output is cut at 0.5."""
        if isinstance(self.shape_out, list) or hasattr(x, "predicted_by") or hasattr(x, "columns"):
            raise ArgumentError(
                f"predict_classes takes arrays and RDDs, for a model with one output; got {type(x).__name__}, and outputs "
                f"of {shown(self.shape_out)}. Use predict, and take the largest."
            )
        answers, first = self.predict(x, batch_per_thread), 0 if zero_based_label else 1
        if hasattr(answers, "mapPartitions"):
            return answers.map(lambda answer: int(_class_of(answer)) + first)
        return _class_of(answers) + first

    def set_evaluate_status(self) -> KerasNet:
        """Switch to evaluation mode."""
        self.training(False)
        return self

    get_layer = Layer.layer_named

    def summary(self, line_length: int = 120, positions: Sequence[float] = (0.33, 0.55, 0.67, 1.0)) -> str:
        """Return a table of the layers with their shapes and numbers of weights, and log it."""
        import logging

        lines = [f"{'Layer':40}{'Output shape':30}{'Weights':>12}"]
        for part in self.layers:
            shape = shown(part.shape_out) if isinstance(part, KerasLayer) and part.shape_out is not None else "?"
            count = sum(parameter.numel() for parameter in part.module.parameters())
            lines.append(f"{part!r:40}{shape!s:30}{count:>12}")
        total = sum(parameter.numel() for parameter in self.module.parameters())
        text = "\n".join([*lines, f"Weights in all: {total}"])
        logging.getLogger(__name__).info("%s", text)
        return text

    def to_model(self) -> Model:
        """Return the same layers as a graph."""
        if isinstance(self, Model):
            return self
        start = Input(self._known(self.shape_in))
        return Model(start, self(start))


class Sequential(KerasNet, graphs.Container):
    """Layers in sequence; the first must know its input's shape."""

    signature = signed(jvalue=None)

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        return Parts()

    def add(self, model: Any) -> Sequential:
        """Add a layer; returns the model."""
        part = model if isinstance(model, KerasLayer) else KerasLayerWrapper(model)
        shape = self.shape_out if self.layers else part.shape_in or part.given
        if shape is None:
            raise ArgumentError(f"the first layer must know its input's shape: give {part} input_shape=(...).")
        part.build(shape)
        if self.shape_in is None:
            self.shape_in = shape
        return self._take(part)

    def _take(self, part: Any) -> Sequential:
        self.shape_out = part.shape_out
        return super()._take(part)  # type: ignore[return-value]

    def is_built(self) -> bool:
        """Say whether there is a layer."""
        return bool(self.layers)

    def definition(self, describe: Any) -> dict[str, Any]:
        """Return the model's definition for a file."""
        return {"kind": "keras", "layers": [describe(part) for part in self.layers], "shape": self.shape_in}


class Model(KerasNet, graphs.Model):
    """A graph from input variables to output variables.

    Args:
        input: An Input(shape=...), or a list.
        output: A variable, or a list.
    """

    signature = signed("input", "output", jvalue=None, name=None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        samples = [node.sample for node in self.inputs]  # type: ignore[attr-defined]
        answers = [node.sample for node in self.outputs]  # type: ignore[attr-defined]
        self.shape_in = shape_of(samples[0] if len(samples) == 1 else samples)
        self.shape_out = shape_of(answers[0] if len(answers) == 1 else answers)
        starts = [node.layer for node in self.inputs]  # type: ignore[attr-defined]
        self.layers = [*(layer for layer in starts if layer not in self.parts), *self.parts]

    def _made(self, arguments: dict[str, Any]) -> nn.Module:
        return graphs.Model._made(self, {"inputs": arguments["input"], "outputs": arguments["output"]})

    def definition(self, describe: Any) -> dict[str, Any]:
        """Return the model's definition for a file."""
        shapes = [shape_of(node.sample) for node in self.inputs]  # type: ignore[attr-defined]
        parts = [describe(part) for part in self.parts]
        return {"kind": "keras", "class": "Model", "layers": parts, "graph": self.steps(), "shapes": shapes}


class GraphNet(graphs.Model):
    """A graph of `bigdl.nn.layer` that may be a layer of the Keras-style API."""

    def predict(self, x: Any, batch_per_thread: int = 4, distributed: bool = True) -> Any:  # type: ignore[override]
        """Return the outputs: an RDD of arrays where Spark is up and distributed is true, else arrays."""
        return answers_of(self, _paired(x, None), batch_per_thread, distributed)

    def to_keras(self) -> KerasLayerWrapper:
        """Return the graph as a layer of the Keras-style API; the weights are the same."""
        return KerasLayerWrapper(self)


def graph_net(model: Layer) -> Layer:
    """Return a graph of `bigdl.nn.layer` as a GraphNet; other layers unchanged."""
    if type(model) is graphs.Model:
        model.__class__ = GraphNet
    return model


# Shapes.


def shape_of(sample: Any) -> Any:
    """Return the shape of a tensor without its rows, or a list of shapes."""
    return [shape_of(part) for part in sample] if isinstance(sample, list | tuple) else tuple(sample.shape[1:])


def zeros(shape: Any) -> Any:
    """Return zeros of a shape, or of several."""
    return [zeros(part) for part in shape] if isinstance(shape, list) else torch.zeros(ROWS, *shape)


def shown(shape: Any) -> Any:
    """Return a shape as users see it, with None for the rows."""
    return [shown(part) for part in shape] if isinstance(shape, list) else (None, *shape)


def _tupled(shape: Any) -> Any:
    """Return a shape from a file, where tuples are lists, as tuples; a list is several shapes."""
    if shape is None or (isinstance(shape, list) and all(isinstance(size, int) for size in shape)):
        return None if shape is None else tuple(shape)
    return [_tupled(part) for part in shape]


def _shape(shape: Any, what: str) -> Any:
    if isinstance(shape, list) and shape and isinstance(shape[0], list | tuple):
        return [_shape(part, what) for part in shape]
    sizes = (shape,) if isinstance(shape, int) else tuple(shape or ())
    if any(not isinstance(size, int | np.integer) or size < 1 for size in sizes):
        raise ArgumentError(
            f"{what} needs the shape of a row in whole numbers; got {shape!r}. Pass for example (28, 28)."
        )
    return tuple(int(size) for size in sizes)


def _without_rows(shape: Any) -> Any:
    """Return a shape without the None that may stand for its rows."""
    return shape[1:] if isinstance(shape, list | tuple) and shape and shape[0] is None else shape


def _given_shape(signature: inspect.Signature, arguments: dict[str, Any]) -> Any:
    """Return the shape of a row: input_shape, or those of input_length and input_dim that are given."""
    shape, names = arguments.get("input_shape"), ["input_length", "input_dim"]
    if shape is None:  # a required input_dim is the number of indices of a table
        sizes = [
            arguments.get(name) for name in names if name in arguments and signature.parameters[name].default is None
        ]
        shape = [size for size in sizes if size is not None] or None
    return None if shape is None else _shape(shape, "input_shape")


# Data.


def answers_of(layer: Layer, data: Any, batch_per_thread: int, distributed: bool) -> Any:
    """Return the outputs for arrays or Samples; on Spark if it is up and `distributed` is true."""
    from orca_classic.bigdl.training import backend_now, is_rdd, predicted

    if hasattr(data, "predicted_by"):
        return data.predicted_by(layer, batch_per_thread)
    if distributed and not is_rdd(data) and backend_now() == "bigdl":
        from pyspark import SparkContext

        rows = list(zip(*data, strict=True)) if isinstance(data, tuple) else list(data)
        data = SparkContext.getOrCreate().parallelize(rows)
    return predicted(layer, data, batch_per_thread if is_rdd(data) else -1)


def _class_of(answers: Any) -> Any:
    """Return the class of the largest score; of a single score, whether it is at least 0.5."""
    if np.shape(answers)[-1:] == (1,):
        return (np.asarray(answers)[..., 0] >= 0.5).astype(np.int64)
    return np.argmax(answers, axis=-1)


def _columns(features: Any, labels: Any = None) -> dict[str, Any]:
    """Return the columns of a DataFrame as arguments of the Estimator, which has defaults of its own."""
    columns = {"feature_cols": features, "label_cols": labels}
    return {key: value for key, value in columns.items() if value is not None}


def _paired(x: Any, y: Any, transform: Any = None) -> Any:
    if transform is not None:
        if not hasattr(x, "transform") or hasattr(x, "columns"):
            raise ArgumentError(
                f"transform is a preprocessing of an ImageSet or TextSet; got data of {type(x).__name__}."
            )
        x = x.transform(transform)
    x = tuple(x) if _several(x) else x
    return x if y is None else (x, tuple(y) if _several(y) else np.asarray(y))


def _several(tree: Any) -> bool:
    return isinstance(tree, list | tuple) and bool(tree) and isinstance(tree[0], np.ndarray)


def _split(data: Any, share: float) -> tuple[Any, Any]:
    """Return arrays x and y as their first rows, and the given share of last rows."""
    if not isinstance(data, tuple) or len(data) != 2:
        raise ArgumentError("validation_split needs arrays x and y; pass validation_data for other kinds of data.")
    rows = rows_of(data)
    cut = rows - int(rows * share)
    if not 0 < cut < rows:
        raise ArgumentError(f"validation_split={share} of {rows} rows leaves none to train or none to validate with.")
    return cut_rows(data, slice(0, cut)), cut_rows(data, slice(cut, rows))
