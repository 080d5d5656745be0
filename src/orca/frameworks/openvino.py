"""Openvino: models that only answer. Owns reading and writing model files, the shapes a model takes, and its batches.

A model travels as bytes and is compiled once in a process. Its requests run asynchronously: while some batches are
computed, the next one is copied in.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from orca.core.columns import single
from orca.core.engine import threads_asked_for
from orca.core.learner import Predictor, PredictorSpec
from orca.core.resources import cores
from orca.core.state import OutputSpec, State
from orca.errors import ArgumentError, DataError, near
from orca.rows.tree import flatten, map_tree, unflatten
from orca.storage.files import filesystem, is_local, replacing

# OpenVINO tells its maker over the network that it is imported, from a fork of the importing process. A worker has
# threads and sockets that no fork survives, and many workers would do so at once. Without this package it keeps silent.
_REPORTER = "openvino_telemetry"
_silent = not {"openvino", _REPORTER} & set(sys.modules)
if _silent:
    sys.modules[_REPORTER] = None  # type: ignore[assignment]
import openvino as ov  # noqa: E402

if _silent:
    del sys.modules[_REPORTER]

DEFAULT_BATCH = 4
DEVICE = "CPU"
_TYPES = ("f16", "f32", "f64", "boolean", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_TOLERANCE = 1e-4
_TRIAL_ROWS = (1, 3)  # rows that a converted model is tried with: a batch baked into it shows


# Model files


@dataclass(frozen=True)
class Graph:
    """A model on its way to a worker, in OpenVINO's own format.

    Attributes:
        topology: The bytes of the .xml file.
        weights: The bytes of the .bin file.
        batch: The fixed batch to give the model; 0 keeps its own.
    """

    topology: bytes
    weights: bytes
    batch: int = 0

    def open(self) -> ov.Model:
        """Return the model, reshaped to its batch where it has to be."""
        return _with_batch(_core().read_model(model=self.topology, weights=self.weights), self.batch)


def read_graph(path: str, batch: int = 0) -> tuple[Graph, ov.Model]:
    """Read a model from an OpenVINO .xml file (its .bin beside it) or an .onnx file, at any fsspec path.

    Returns:
        The model as it travels, and opened.
    """
    if not path.endswith((".xml", ".onnx")):
        raise ArgumentError(
            f"an OpenVINO model is an .xml file (with its .bin beside it) or an .onnx file; got {path!r}. Write other "
            "models in that form first, with openvino.convert_model and openvino.save_model.",
            code="not-an-openvino-file",
        )
    fs, place = filesystem(path)
    if not fs.isfile(place):
        raise ArgumentError(f"there is no model file at {path}. Check model_path.", code="missing-file")
    graph = _graph_of(_read_onnx(fs, place, path)) if path.endswith(".onnx") else _read_files(fs, place, path)
    try:
        model = graph.open()
    except RuntimeError as error:
        raise ArgumentError(
            f"{path} cannot be read as an OpenVINO model: {_words(error)} Is it complete, and its .bin the right one?",
            code="model-file-not-readable",
        ) from error
    try:
        return replace(graph, batch=batch), _with_batch(model, batch)
    except RuntimeError as error:
        raise ArgumentError(
            f"{path} cannot be given batch_size={batch}: {_words(error)} Leave it at 0.", code="bad-fixed-batch"
        ) from error


def _read_files(fs: Any, place: str, path: str) -> Graph:
    weights = place.removesuffix(".xml") + ".bin"
    if not fs.isfile(weights):
        raise ArgumentError(
            f"the weights of {path} are missing: there is no {path.removesuffix('.xml')}.bin. "
            "Copy the .bin file that was saved with it to the same folder.",
            code="missing-file",
        )
    return Graph(fs.cat_file(place), fs.cat_file(weights))


def _read_onnx(fs: Any, place: str, path: str) -> ov.Model:
    try:
        # By its path where that is possible: weights may lie in files beside it.
        return _core().read_model(place if is_local(fs) else fs.cat_file(place))
    except RuntimeError as error:
        raise ArgumentError(
            f"{path} cannot be read as an ONNX model: {_words(error)} Is it complete?", code="model-file-not-readable"
        ) from error


def _graph_of(model: ov.Model) -> Graph:
    with TemporaryDirectory(prefix="orca-openvino-") as folder:
        topology = Path(folder, "model.xml")
        ov.save_model(model, topology, compress_to_fp16=False)
        return Graph(topology.read_bytes(), topology.with_suffix(".bin").read_bytes())


def _with_batch(model: ov.Model, batch: int) -> ov.Model:
    if batch:
        shapes = {port: port.partial_shape for port in model.inputs}
        sizes = {
            port: [batch, *list(shape)[1:]] for port, shape in shapes.items() if shape.rank.is_static and len(shape)
        }
        model.reshape({port: ov.PartialShape(dims) for port, dims in sizes.items()})
    return model


def _write_graph(graph: Graph, path: str) -> None:
    """Write both files, whole or not at all: the .xml, which readers look for, comes last."""
    fs, place = filesystem(path)
    fs.makedirs(os.path.dirname(place), exist_ok=True)
    # The place named last is the first to be replaced.
    with replacing(fs, place) as topology, replacing(fs, place.removesuffix(".xml") + ".bin") as weights:
        fs.pipe_file(weights, graph.weights)
        fs.pipe_file(topology, graph.topology)


@cache
def _core() -> ov.Core:
    return ov.Core()


def _words(error: Exception) -> str:
    """Return the last line of OpenVINO's message, or that about unknown operations, without places in its sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("Exception from")]
    rules = [line.lstrip("- ") for line in lines if "No conversion rule found for operations" in line]
    return (*rules, *lines[-1:], type(error).__name__)[0].rstrip(".") + "."


# Inputs and outputs


@dataclass(frozen=True)
class Port:
    """An input or output: its shape with None for free dimensions, or None where even their number is free."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    @classmethod
    def of(cls, port: Any, default: str) -> Port:
        """Describe a port of a model."""
        name = min(port.names, default=default, key=lambda name: (len(name), name))
        kind, shape = port.element_type, port.partial_shape
        dims = None if shape.rank.is_dynamic else tuple(d.get_length() if d.is_static else None for d in shape)
        if dims == ():
            raise ArgumentError(
                f"{name!r} of this model is a single number, not one for each row: its shape must begin with a batch.",
                code="input-not-rows",
            )
        if kind.get_type_name() not in _TYPES:
            raise ArgumentError(
                f"{name!r} of this model is of type {kind.get_type_name()}, which numpy has no numbers of. "
                "Convert it to f32 with openvino.preprocess.PrePostProcessor and save the model again.",
                code="bad-input-type",
            )
        return cls(name, np.dtype(kind.to_dtype()).name, dims)

    def __str__(self) -> str:
        dims = "any" if self.shape is None else "[" + ", ".join("?" if d is None else str(d) for d in self.shape) + "]"
        return f"{self.name!r} {self.dtype} {dims}"


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, and the fixed batch if it has one."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batch: int | None

    @classmethod
    def of(cls, model: ov.Model) -> Signature:
        """Describe a model."""
        inputs = tuple(Port.of(port, f"input {i}") for i, port in enumerate(model.inputs))
        outputs = tuple(Port.of(port, f"output {i}") for i, port in enumerate(model.outputs))
        batches = {port.shape[0] for port in inputs if port.shape and port.shape[0] is not None}
        if not inputs or len(batches) > 1:
            raise ArgumentError(
                "all inputs of a model must begin with the same batch dimension; "
                f"got {', '.join(map(str, inputs)) or 'none'}.",
                code="batch-dimensions-differ",
            )
        return cls(inputs, outputs, batches.pop() if batches else None)

    def output(self) -> OutputSpec | None:
        """Return the form of the model's output; None where its shape is not known before it has run."""
        rows = [port.shape[1:] if port.shape else (None,) for port in self.outputs]
        if any(None in row for row in rows):
            return None
        heads = tuple((port.dtype, tuple(d or 0 for d in row)) for port, row in zip(self.outputs, rows, strict=True))
        return OutputSpec(heads, flatten(single(list(self.outputs)))[1])

    def arrange(self, x: Any, nested: bool) -> tuple[list[np.ndarray], tuple[int, ...]]:
        """Return an array of rows for each input, and the leading dimensions that its answers get.

        Args:
            x: An array, or a list or tuple of them in the order of the inputs, or a dict by their names.
            nested: Whether arrays may have one dimension more: batches of rows instead of rows.
        """
        arrays = self._in_order(x)
        pairs = [self._fit(port, array, nested) for port, array in zip(self.inputs, arrays, strict=True)]
        leads = {lead for _, lead in pairs}
        if len(leads) > 1:
            raise DataError(
                f"all inputs must have the same rows; got leading dimensions {sorted(leads)}.{self._takes()}",
                code="row-counts-differ",
            )
        return [array for array, _ in pairs], leads.pop()

    def check_names(self, x: Mapping[str, Any]) -> None:
        """Check that arrays by name have the names of the inputs."""
        names = [port.name for port in self.inputs]
        if set(x) != set(names):
            raise DataError(
                f"the model's inputs are called {names}; the data has {list(x)}.{self._takes()}",
                code="input-names-differ",
            )

    def _in_order(self, x: Any) -> list[np.ndarray]:
        names = [port.name for port in self.inputs]
        if isinstance(x, dict):
            self.check_names(x)
            x = [x[name] for name in names]
        arrays = [np.asarray(leaf) for leaf in flatten(x)[0]]
        if len(arrays) != len(names):
            raise DataError(
                f"the model has {len(names)} input(s), but the data has {len(arrays)} array(s) or feature column(s)."
                f"{self._takes()}",
                code="input-count",
            )
        return arrays

    def _fit(self, port: Port, array: np.ndarray, nested: bool) -> tuple[np.ndarray, tuple[int, ...]]:
        """Return an array as rows of a port's shape, and its leading dimensions."""
        if array.dtype.kind not in "biuf":
            kind = "text" if array.dtype.kind in "OUST" else str(array.dtype)
            raise DataError(
                f"input {port.name!r} takes numbers; got {kind}. Turn it into numbers first.{self._takes()}",
                code="not-numbers",
            )
        shape = array.shape
        want = shape[1:] if port.shape is None else port.shape[1:]
        if _matches(shape[1:], want):
            return array, shape[:1]
        if nested and len(shape) == len(want) + 2 and _matches(shape[2:], want):
            if self.batch and shape[1] > self.batch:
                raise DataError(
                    f"batches of {shape[1]} rows do not fit a model with a fixed batch of {self.batch}; got shape "
                    f"{shape}. Pass rows, {['n', *shape[2:]]}, or batches of at most {self.batch}.",
                    code="batch-too-large",
                )
            return array.reshape(shape[0] * shape[1], *shape[2:]), shape[:2]
        if not shape[0]:  # an empty column does not know the length of its lists
            return np.zeros((0, *(size or 0 for size in want)), port.dtype), shape[:1]
        if (
            None not in want
            and prod(shape[1:]) == prod(want)
            and (len(shape) <= 2 or _solid(shape[1:]) == _solid(want))
        ):
            return array.reshape(shape[0], *want), shape[:1]
        raise DataError(
            f"input {port.name!r} does not take an array of shape {shape}.{self._takes()}", code="bad-input-shape"
        )

    def _takes(self) -> str:
        return f" The model takes {'; '.join(map(str, self.inputs))} (the first dimension is the rows)."


def _matches(shape: tuple[int, ...], want: tuple[int | None, ...]) -> bool:
    return len(shape) == len(want) and all(w is None or w == g for g, w in zip(shape, want, strict=True))


def _solid(shape: tuple[int | None, ...]) -> list[int | None]:
    """Return a shape without its dimensions of one."""
    return [size for size in shape if size != 1]


# Answering


def threads() -> int:
    """Return how many threads this process may use: clusters tell their tasks by OMP_NUM_THREADS."""
    return min(threads_asked_for() or cores(), cores())


def check_config(config: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Return a compile configuration by property names."""
    if not isinstance(config or {}, Mapping):
        raise ArgumentError(f"config must be a dict of OpenVINO properties; got {config!r}.", code="bad-config")
    properties = {str(key() if callable(key) else key): value for key, value in (config or {}).items()}
    names = list(_core().get_property(DEVICE, "SUPPORTED_PROPERTIES"))
    for name in properties:
        if name not in names:
            hint = near(name.upper(), names)
            raise ArgumentError(
                f"config: OpenVINO has no property {name!r} for the {DEVICE}.{hint}", code="unknown-property"
            )
    return properties


class OpenvinoSpec(PredictorSpec):
    """An OpenVINO model and how it predicts.

    Args:
        signature: The inputs and outputs of the model.
        batch_size: Rows of one request; a model with a fixed batch keeps that.
        config: OpenVINO's compile configuration, on top of ours.
        nested: Whether data may come as batches of rows, with one dimension more.
    """

    def __init__(
        self,
        signature: Signature,
        batch_size: int = DEFAULT_BATCH,
        config: Mapping[str, Any] | None = None,
        nested: bool = False,
    ) -> None:
        self.signature, self.batch_size, self.config, self.nested = signature, batch_size, dict(config or {}), nested

    @classmethod
    def of(cls, path: str, batch: int = 0) -> tuple[OpenvinoSpec, State]:
        """Read a model file; return its description, and the state that it predicts with."""
        graph, model = read_graph(path, batch)
        signature = Signature.of(model)
        return cls(signature), State(payload={"models": [graph]}, output=signature.output())

    def with_options(self, batch_size: int, config: Mapping[Any, Any] | None, nested: bool) -> OpenvinoSpec:
        """Return the same model with these options."""
        return OpenvinoSpec(self.signature, batch_size, check_config(config), nested)

    def open_predictor(self, state: State, gpu: str | None = None) -> OpenvinoPredictor:
        """Compile the model for the threads that this process may use."""
        return OpenvinoPredictor(self, state)


class OpenvinoPredictor(Predictor):
    """An OpenVINO model that predicts, compiled for the threads that this process may use.

    Args:
        spec: The model's signature and options.
        state: Has the model.

    Raises:
        ArgumentError: OpenVINO cannot compile it.
    """

    def __init__(self, spec: OpenvinoSpec, state: State) -> None:
        self.signature, self.batch_size, self.nested = spec.signature, spec.batch_size, spec.nested
        self.compiled_model = _compiled(state.payload["models"][0], spec.config)
        self.queue = self._new_queue()

    def takes(self, x: Any) -> bool:
        """Return whether these may be the model's inputs: they are as many."""
        return len(flatten(x)[0]) == len(self.signature.inputs)

    def predict(self, x: Any) -> Any:
        """Return the outputs for a block of rows: an array, or a list of arrays where the model has several outputs."""
        arrays, lead = self.signature.arrange(x, self.nested)
        rows = prod(lead)
        outputs = [
            _joined(port, parts) for port, parts in zip(self.signature.outputs, self._run(arrays, rows), strict=True)
        ]
        return single([output.reshape(*lead, *output.shape[1:]) for output in outputs])

    def _run(self, arrays: list[np.ndarray], rows: int) -> list[list[np.ndarray]]:
        """Return each output's parts in the order of the rows."""
        batch_rows = self.signature.batch
        size = batch_rows or self.batch_size
        starts = range(0, rows, size)
        answers: list[list[np.ndarray]] = [[] for _ in starts]
        try:
            for number, start in enumerate(starts):
                batch = {i: _padded(array[start : start + size], batch_rows) for i, array in enumerate(arrays)}
                self.queue.start_async(batch, (answers, number))
            self.queue.wait_all()
        except RuntimeError as error:
            self.queue = self._new_queue()  # the old one keeps its error
            shapes = [("n", *array.shape[1:]) for array in arrays]
            raise DataError(
                f"the OpenVINO model failed on rows of shapes {shapes}: {_words(error)}", code="model-failed"
            ) from error
        columns: list[list[np.ndarray]] = [[] for _ in self.signature.outputs]
        for start, outputs in zip(starts, answers, strict=True):
            count = min(size, rows - start)
            for port, column, output in zip(self.signature.outputs, columns, outputs, strict=True):
                if output.shape[:1] != (batch_rows or count,):
                    raise DataError(
                        f"output {port.name!r} has the shape {output.shape} for a batch of {batch_rows or count} rows: "
                        "it does not have one answer for each row. Save the model without this output.",
                        code="output-not-rows",
                    )
                column.append(output[:count])
        return columns

    def _new_queue(self) -> Any:
        # Twice as many as run at a time: one is filled while another is computed.
        queue = ov.AsyncInferQueue(
            self.compiled_model, 2 * self.compiled_model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        )
        queue.set_callback(_keep)
        return queue


def _compiled(graph: Graph, config: Mapping[str, Any]) -> Any:
    width = threads()
    # f32: processors with bf16 would use that by default and predict with two digits. Threads of several tasks on
    # one machine must not be pinned: all of them would sit on its first cores.
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": width,
        "ENABLE_CPU_PINNING": width == os.cpu_count(),
    }
    try:
        return _core().compile_model(graph.open(), DEVICE, settings | dict(config))
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f"OpenVINO cannot compile the model with config={config}: {_words(error)}", code="model-not-compilable"
        ) from error


def _keep(request: Any, place: tuple[list[list[np.ndarray]], int]) -> None:
    answers, number = place
    answers[number] = [tensor.data.copy() for tensor in request.output_tensors]


def _padded(rows: np.ndarray, batch: int | None) -> np.ndarray:
    """Return rows filled up to a fixed batch with copies of the last one."""
    gap = (batch or 0) - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], gap, axis=0)]) if gap > 0 else rows


def _joined(port: Port, parts: list[np.ndarray]) -> np.ndarray:
    if not parts:
        return np.zeros((0, *(size or 0 for size in (port.shape or (0,))[1:])), port.dtype)
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise DataError(
            f"the rows of output {port.name!r} differ in shape from batch to batch: {shapes[0]} and {shapes[-1]}. "
            "Save the model with an output of one shape.",
            code="predictions-differ-in-shape",
        )
    return np.concatenate(parts)


# Converting


def convert(model: Any, sample: Any, path: str) -> str:
    """Write a torch module or a Keras model as an OpenVINO model that takes any number of rows.

    The sample is one row, and the path that of the .xml file, as for `to_openvino` of an Estimator.
    """
    arrays = [np.asarray(leaf) for leaf in flatten(sample)[0]]
    if not arrays or any(array.shape[:1] != (1,) for array in arrays):
        shapes = [array.shape for array in arrays]
        raise ArgumentError(
            f"sample must be one row: arrays with a first dimension of 1; got shapes {shapes}.", code="bad-sample"
        )
    with _answering(model) as (answer, translate), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated ways of tracing, which OpenVINO takes and the user did not
        try:
            answer(sample)
        except Exception as error:
            raise ArgumentError(
                f"this {type(model).__name__} does not take the sample ({_form(sample)}): {type(error).__name__}: "
                f"{_words(error)} Pass one row in the form that the model is called with.",
                code="bad-sample",
            ) from error
        graph = _graph_of(_translated(model, sample, translate))
        for rows in _TRIAL_ROWS:
            trial = _trial(sample, rows)
            _check_agreement(graph, trial, answer(trial))
    place = path if path.endswith(".xml") else f"{path}.xml"
    _write_graph(graph, place)
    return place


def _translated(model: Any, sample: Any, translate: Translate) -> ov.Model:
    try:
        graph = translate(sample)
        _name_inputs(graph, _input_names(model, sample))
        return graph
    except ArgumentError:
        raise
    except Exception as error:  # tracing runs the user's code, which fails in many ways
        raise ArgumentError(
            f"OpenVINO cannot convert this {type(model).__name__}: {type(error).__name__}: {_words(error)}",
            code="model-not-convertible",
        ) from error


def _trial(sample: Any, rows: int) -> Any:
    """Return rows like the sample, with numbers that show an input in another's place; whole numbers may be indices."""
    draw = np.random.default_rng(rows)

    def drawn(leaf: Any) -> np.ndarray:
        array = np.repeat(leaf, rows, axis=0)
        return draw.random(array.shape).astype(array.dtype) if array.dtype.kind == "f" else array

    return map_tree(drawn, sample)


def _input_names(model: Any, sample: Any) -> list[str]:
    """Return the name of each input: its key where the sample is a dict, else its name in the model."""
    if isinstance(sample, dict):
        return [name for key, part in sample.items() for name in _paths(str(key), part)]
    count = len(flatten(sample)[0])
    if hasattr(model, "forward"):
        parameters = inspect.signature(model.forward).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    else:
        names = [str(getattr(port, "name", "")).split(":")[0] for port in getattr(model, "inputs", None) or ()]
        names = names if len(names) == count and all(names) else []
    return names[:count] if len(names) >= count else []


def _paths(name: str, part: Any) -> list[str]:
    if not isinstance(part, dict | tuple | list):
        return [name]
    members = part.items() if isinstance(part, dict) else enumerate(part)
    return [path for key, inner in members for path in _paths(f"{name}.{key}", inner)]


def _name_inputs(model: ov.Model, names: list[str]) -> None:
    if names and len(names) != len(model.inputs):
        raise ArgumentError(
            f"the model uses {len(model.inputs)} of its {len(names)} inputs {names}: OpenVINO leaves the others out. "
            "Let it take the inputs it uses alone.",
            code="unused-inputs",
        )
    for port, name in zip(model.inputs, names, strict=False):
        port.get_tensor().set_names({name})


def _form(sample: Any) -> str:
    if isinstance(sample, dict):
        return f"a dict of {list(sample)}"
    if isinstance(sample, tuple | list):
        return f"a {type(sample).__name__} of {len(sample)}"
    return f"an array of shape {np.shape(sample)}"


def _check_agreement(graph: Graph, x: Any, originals: list[np.ndarray]) -> None:
    """Raise where the converted model answers otherwise than its original."""
    predictor = OpenvinoPredictor(OpenvinoSpec(Signature.of(graph.open())), State(payload={"models": [graph]}))
    answers = flatten(predictor.predict(tuple(flatten(x)[0])))[0]
    if len(answers) == len(originals) and all(
        a.shape == e.shape and np.allclose(a, e, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        for a, e in zip(answers, originals, strict=True)
    ):
        return
    words = [[(output.shape, output.ravel()[:3].tolist()) for output in outputs] for outputs in (originals, answers)]
    raise ArgumentError(
        f"the converted model does not answer as the model does: (shape, first numbers) are {words[0]} for the model "
        f"and {words[1]} for OpenVINO's. A model that draws random numbers, or whose code fixes the batch, cannot be "
        "converted.",
        code="converted-model-differs",
    )


Answer = Callable[[Any], list[np.ndarray]]
Translate = Callable[[Any], ov.Model]


@contextmanager
def _answering(model: Any) -> Iterator[tuple[Answer, Translate]]:
    """Give (a function that answers with the model, one that translates it), with the model in evaluation mode."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            with torch.no_grad():
                yield lambda x: _answer_torch(model, x), lambda sample: _translate_torch(model, sample)
        finally:
            for module, mode in modes.items():
                module.training = mode
        return
    for library in ("keras", "tf_keras"):
        module = sys.modules.get(library)
        if module is not None and isinstance(model, module.Model):
            yield lambda x: _answer_keras(model, x), lambda sample: _translate_keras(model, sample)
            return
    raise ArgumentError(
        f"only torch modules and Keras models can be converted; got a {type(model).__name__}.",
        code="model-not-convertible",
    )


def _answer_torch(model: Any, x: Any) -> list[np.ndarray]:
    tensors = map_tree(_tensor_beside(model), x)
    output = model(*tensors) if isinstance(x, tuple | list) else model(tensors)
    return [leaf.cpu().numpy() for leaf in flatten(output)[0]]


def _translate_torch(model: Any, sample: Any) -> ov.Model:
    tensors = map_tree(_tensor_beside(model), tuple(sample) if isinstance(sample, list) else sample)
    leaves, structure = flatten(tensors)
    shapes = [ov.PartialShape([-1, *leaf.shape[1:]]) for leaf in leaves]
    if not isinstance(tensors, dict):
        return _converted(model, example_input=tensors, input=shapes)
    nn = sys.modules["torch"].nn

    class NamelessModel(nn.Module):  # type: ignore[misc, name-defined]
        """A model of a dict that takes its values one by one: OpenVINO would take the keys for its arguments."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return self.model(unflatten(structure, list(values)))

    return _converted(NamelessModel().eval(), example_input=tuple(leaves), input=shapes)


def _converted(model: Any, **arguments: Any) -> ov.Model:
    """Convert a model; the program's logging stays as it is: OpenVINO would leave it silent below errors."""
    root = logging.getLogger()
    level, filters, handlers = root.level, list(root.filters), list(root.handlers)
    try:
        return ov.convert_model(model, **arguments)
    finally:
        root.setLevel(level)
        root.filters[:], root.handlers[:] = filters, handlers


def _tensor_beside(model: Any) -> Callable[[Any], Any]:
    """Return a function that makes a tensor of an array, where the model's weights are."""
    torch = sys.modules["torch"]
    weight = next(iter(model.parameters()), None)
    if weight is None:
        return lambda leaf: torch.from_numpy(np.array(leaf))

    def tensor(leaf: Any) -> Any:
        array = torch.from_numpy(np.array(leaf)).to(weight.device)
        return array.to(weight.dtype) if array.is_floating_point() and weight.is_floating_point() else array

    return tensor


def _answer_keras(model: Any, x: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in flatten(model(_as_keras_takes(x), training=False))[0]]


def _translate_keras(model: Any, sample: Any) -> ov.Model:
    import tensorflow as tf

    # Not the model itself: OpenVINO would put several outputs in another order.
    arrays, structure = flatten(_as_keras_takes(sample))
    signature = [
        tf.TensorSpec((None, *a.shape[1:]), a.dtype, f"input_{i}") for i, a in enumerate(map(np.asarray, arrays))
    ]

    def call(*tensors: Any) -> Any:
        return tuple(flatten(model(unflatten(structure, list(tensors)), training=False))[0])

    return _converted(tf.function(call, input_signature=signature).get_concrete_function())


def _as_keras_takes(x: Any) -> Any:
    """Return a row tree as Keras takes it: lists of inputs, floats of the usual precision."""
    x = map_tree(lambda leaf: np.float32(leaf) if np.asarray(leaf).dtype == np.float64 else leaf, x)
    return list(x) if isinstance(x, tuple) else x
