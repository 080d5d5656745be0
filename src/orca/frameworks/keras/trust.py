"""Trust: what a model file may name. Owns the judgement of its parsed configuration before any loader sees it.

The loaders of Keras differ in what they resolve: the one of Keras 2 imports any module that a file names. So a file is
judged here, the same way for every format and version: each class and function that it names must be Keras' own, found
in modules that are loaded already, or one that the program registered or passed as custom_objects.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import types
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import h5py
import numpy as np

from orca.errors import ArgumentError, OrcaError
from orca.frameworks.keras.travel import FAMILIES, library

_METADATA = "keras_metadata.pb"
_CODE = {"__lambda__"}
# Values, not classes, to the loaders; with a module beside it, a loader would look for a class of such a name.
_VALUES = {
    *("__tensor__", "__numpy__", "__bytes__", "__slice__", "__ellipsis__", "__keras_tensor__", "__tuple__"),
    *("TensorShape", "TypeSpec", "CompositeTensor"),
}
# The classes whose subclasses in Keras make up models. Callbacks and data loaders are not among them.
_BASES = (
    *("Operation", "layers.Layer", "metrics.Metric", "losses.Loss", "optimizers.Optimizer", "random.SeedGenerator"),
    *("optimizers.legacy.Optimizer", "optimizers.schedules.LearningRateSchedule", "initializers.Initializer"),
    *("regularizers.Regularizer", "constraints.Constraint", "dtype_policies.DTypePolicy", "mixed_precision.Policy"),
    *("dtype_policies.DTypePolicyMap", "mixed_precision.LossScaleOptimizer", "quantizers.Quantizer"),
    *("quantizers.QuantizationConfig",),
)
# Layers of Keras that run what is in a file: pickles of torch, and SavedModels at a path that the file tells.
_RUNNING = {"TorchModuleWrapper", "TFSMLayer", "ReloadedLayer"}
_FUNCTIONS = ("activations", "constraints", "initializers", "losses", "metrics", "ops", "random", "regularizers")
_NO_FUNCTIONS = {"get", "serialize", "deserialize"}
# What Keras 2 may make layers of: TensorFlow's functions that only compute.
_TENSORFLOW = set(
    "__operators__ audio bitwise dtypes image linalg math nn quantization ragged random sets signal sparse strings"
    " abs acos acosh add add_n argmax argmin argsort as_string asin asinh atan atan2 atanh bitcast boolean_mask"
    " broadcast_to cast clip_by_norm clip_by_value complex concat constant convert_to_tensor cos cosh cumsum divide"
    " dynamic_partition dynamic_stitch einsum ensure_shape equal exp expand_dims eye fill floor gather gather_nd"
    " greater greater_equal identity less less_equal linspace logical_and logical_not logical_or matmul maximum"
    " meshgrid minimum multiply negative norm not_equal one_hot ones ones_like pad pow range rank realdiv reduce_all"
    " reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum repeat reshape reverse"
    " reverse_sequence roll round saturate_cast scalar_mul scatter_nd searchsorted sequence_mask shape sigmoid sign sin"
    " sinh size slice sort split sqrt square squeeze stack stop_gradient strided_slice subtract tan tanh"
    " tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min tensor_scatter_nd_sub tensor_scatter_nd_update"
    " tensordot tile transpose truediv truncatediv truncatemod unique unstack where zeros zeros_like".split()
)
_OPS_OF_CHECKPOINTS = {"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename"}
_OPS_OUTSIDE = (  # parts of the names of TensorFlow's operations that touch files, other processes or Python
    *("File", "PyFunc", "Print", "Debug", "Dump", "Dataset", "Reader", "Summary", "Remote", "Rpc", "Restore", "Save"),
    *("Checkpoint", "ImportEvent", "DataService", "Lmdb", "LMDB", "Sql", "LoadAndRemap", "GenerateVocab"),
    *("Write", "ImmutableConst", "FixedUnigram", "DecodeProto", "EncodeProto", "Abort"),
)


def check_file(
    place: str, path: str, family: str, custom_objects: Mapping[str, Any] | None, compile: bool = True
) -> None:
    """Refuse a file of a model that names more than Keras and the program hold.

    Args:
        place: The `.keras` or `.h5` file, or the folder of a SavedModel, on this machine.
        path: What the user calls it.
        family: The Keras that will load it.
        custom_objects: Classes and functions that the caller passed, by name.
        compile: Whether the loader will read how the model was compiled, too.

    Raises:
        ArgumentError: Naming the path, the name in it, and the remedy.
    """
    judge = _Judge(path, family, custom_objects or {})
    with _complete(path):
        if os.path.isdir(place):
            _check_saved_model(judge, place, compile)
            return
        if zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                config = _parsed(archive.read("config.json"), path)
            if isinstance(config, dict) and not compile:
                config.pop("compile_config", None)
            judge.config(config)
        else:
            with h5py.File(place, "r") as file:
                for name in ("model_config", "training_config")[: 2 if compile else 1]:
                    if name in file.attrs:
                        judge.config(_parsed(file.attrs[name], path))
    check_storage(place, path)


def check_storage(place: str, path: str) -> None:
    """Refuse a `.keras` or `.h5` file that holds a member twice, pickles, or arrays that lie in other files."""
    with _complete(path):
        if not zipfile.is_zipfile(place):
            with h5py.File(place, "r") as file:
                _refuse_other_files(file, path)
            return
        with zipfile.ZipFile(place) as archive:
            names = archive.namelist()
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ArgumentError(
                    f"{path} holds {twice!r} twice, so what it says is not certain. Save the model again.",
                    code="ambiguous-archive",
                )
            for name in names:
                if name.endswith(".h5"):
                    with h5py.File(BytesIO(archive.read(name)), "r") as file:
                        _refuse_other_files(file, path)
                elif name.endswith(".npz"):  # some versions of Keras unpickle the objects in it
                    _refuse_pickles(archive.read(name), path)


def would_run_code(path: str, what: str = "a lambda, perhaps") -> ArgumentError:
    """Return the error of a file that holds code."""
    return ArgumentError(
        f"{path} holds code ({what}): loading it would run code from the file. If you trust it, pass "
        "safe_mode=False; or use a named function, registered with register_keras_serializable, instead of the lambda.",
        code="file-holds-code",
    )


@dataclass(frozen=True)
class _Judge:
    path: str
    family: str
    custom_objects: Mapping[str, Any]
    inert: bool = False  # whether a name that nobody knows does nothing: layers of a SavedModel have their graph

    def config(self, config: Any) -> None:
        """Refuse a configuration if anything anywhere in it names what is neither Keras' nor the program's."""
        stack = [config]
        while stack:
            value = stack.pop()
            if isinstance(value, list):
                stack.extend(value)
            elif isinstance(value, dict):
                if "class_name" in value:
                    self._object(value)
                stack.extend(value.values())

    def _object(self, config: dict[str, Any]) -> None:
        name, module, registered = (config.get(key) for key in ("class_name", "module", "registered_name"))
        if not isinstance(name, str) or not all(isinstance(text, str | None) for text in (module, registered)):
            raise self._malformed(config)
        if name in _CODE:
            raise would_run_code(self.path)
        if name == "function":
            self._function(config)
        elif name == "__typespec__":
            self._typespec(config)
        elif name not in _VALUES or module is not None:
            self._class(name, module, config.get("registered_name", name))
            if name in _RUNNING and not self._replaced(name, config):
                raise would_run_code(self.path, f"in a {name}")
            inner = config.get("config")
            if isinstance(inner, dict) and not self._replaced(name, config):
                self._arguments(name, inner)

    def _class(self, name: str, module: str | None, registered: str | None) -> None:
        """Refuse a class: loaders find it by its registered name, by its module, or by its bare name."""
        code = self._known(registered)
        by_name = self._known(name) is not None or name in _class_names(self.family) or _name_of(code) == name
        by_module = module is None or code is not None or _loaded(module, name, self.family) is _OWN_CLASS
        if not by_module or not (by_name or (self.inert and module is None)):
            raise self._unknown(name if registered is None else registered, module)

    def _replaced(self, name: str, config: dict[str, Any]) -> bool:
        """Return whether every loader takes a class of the program for this name: old ones look at nothing else."""
        return self._known(name) is not None and self._known(config.get("registered_name", name)) is not None

    def _function(self, config: dict[str, Any]) -> None:
        module = config.get("module")
        names = [config.get("config"), config.get("registered_name")]
        texts = [name for name in names if name is not None]
        if not texts or not all(isinstance(name, str) for name in texts):
            raise self._malformed(config)
        for name in texts:
            if name == "function" == names[1] and len(texts) == 2:  # of Keras 3.6 and older
                continue
            own = name in _functions(self.family) if module in (None, "builtins") else False
            if not own and self._known(name) is None and _loaded(module, name, self.family) is not _OWN_FUNCTION:
                raise self._unknown(name, module)

    def _typespec(self, config: dict[str, Any]) -> None:
        """Refuse a kind of tensors that is not one of TensorFlow's, loaded already."""
        import tensorflow as tf

        module, name = config.get("module"), config.get("spec_name")
        code = _held(str(module), str(name))
        own = isinstance(code, type) and issubclass(code, tf.TypeSpec) and str(module).startswith("tensorflow.")
        if not own or config.get("registered_name") is not None:
            raise self._unknown(str(name), str(module))

    def _arguments(self, name: str, config: dict[str, Any]) -> None:
        """Refuse arguments by which a class of Keras runs code, calls functions of TensorFlow or reads a file."""
        if name == "Lambda":
            self._lambda(config)
        elif name in ("TFOpLambda", "SlicingOpLambda"):
            symbol = str(config.get("function")).removeprefix("compat.v1.")
            if symbol.split(".")[0] not in _TENSORFLOW or "unigram" in symbol:
                raise would_run_code(self.path, f"a call of tensorflow's {symbol}")
        elif name in ("ClassMethod", "InstanceMethod", "InstanceProperty"):
            self._method(str(config.get("cls_symbol", "Tensor")), config.get("method_name", config.get("attr_name")))
        elif name == "TensorFlowOpLayer":
            raise would_run_code(self.path, "an operation of TensorFlow")
        if isinstance(config.get("vocabulary"), str):
            raise ArgumentError(
                f"{self.path} would read the file {config['vocabulary']!r} of this machine, as the vocabulary of a "
                f"{name}. Give the layer a list of words and save the model again; if you trust it, pass "
                "safe_mode=False.",
                code="file-names-other-file",
            )

    def _lambda(self, config: dict[str, Any]) -> None:
        for part in ("function", "output_shape", "mask"):
            value = config.get(part)
            coded = isinstance(value, list) and any(isinstance(item, str) for item in value)
            if config.get(f"{part}_type") == "lambda" or coded or (isinstance(value, dict) and "code" in value):
                raise would_run_code(self.path)
            if isinstance(value, str) and self._known(value) is None and value not in _functions(self.family):
                raise self._unknown(value, None)

    def _method(self, owner: str, method: Any) -> None:
        """Refuse a method of anything but tensors."""
        import tensorflow as tf

        kinds = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
        known = any(hasattr(kind, str(method)) for kind in kinds) and not str(method).startswith("_")
        if owner not in {kind.__name__ for kind in kinds} or not known:
            raise would_run_code(self.path, f"a call of tensorflow's {owner}.{method}")

    def _known(self, name: str | None) -> Any:
        """Return what the program passed or registered under a name."""
        return None if name is None else library(self.family).saving.get_registered_object(name, self.custom_objects)

    def _unknown(self, name: str, module: str | None) -> ArgumentError:
        hint = f" Modules that a file names are not imported (here {module!r})." if module else ""
        return ArgumentError(
            f"{self.path} names {name!r}, a class or function that is not known here. Pass "
            f"custom_objects={{{name!r}: ...}}, or register it with register_keras_serializable.{hint}",
            code="unknown-class",
        )

    def _malformed(self, config: dict[str, Any]) -> ArgumentError:
        return ArgumentError(
            f"{self.path} is no model of Keras: one of its classes or functions has no plain name, in "
            f"{str(config)[:200]}. Save the model again.",
            code="not-a-keras-file",
        )


# Keras' own names.

_OWN_CLASS, _OWN_FUNCTION = "class", "function"


@functools.cache
def _classes(family: str) -> frozenset[type]:
    """Return Keras' own classes of which models are made."""
    classes: set[type] = set()
    stack = [_attribute(library(family), name) for name in _BASES]
    while stack:
        kind = stack.pop()
        if isinstance(kind, type) and kind not in classes and _is_of(kind, family):
            classes.add(kind)
            stack.extend(type.__subclasses__(kind))
    return frozenset(classes)


@functools.cache
def _class_names(family: str) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in _classes(family))


@functools.cache
def _functions(family: str) -> Mapping[str, list[Any]]:
    """Return Keras' own functions that models call, by name: they compute, and touch nothing else."""
    keras = library(family)
    modules = [_attribute(keras, name) for name in _FUNCTIONS]
    modules += [module for module in vars(_attribute(keras, "ops") or types).values() if _is_part(module, family)]
    functions: dict[str, list[Any]] = {}
    for module in modules:
        for name, code in vars(module or types).items():
            if callable(code) and not isinstance(code, type) and _is_of(code, family) and name not in _NO_FUNCTIONS:
                functions.setdefault(name, []).append(code)
    return functions


def _loaded(module: str | None, name: str, family: str) -> str | None:
    """Return which kind of Keras' own names this is in a module of Keras that is loaded already, if it is one."""
    if module is None or module.split(".", 1)[0] not in FAMILIES:
        return None
    home = module if module.split(".", 1)[0] == family else family + module[module.find(".") :] * ("." in module)
    code = _held(home, name)
    if isinstance(code, type):
        return _OWN_CLASS if code in _classes(family) else None
    return _OWN_FUNCTION if any(code is function for function in _functions(family).get(name, ())) else None


def _held(module: str, name: str) -> Any:
    """Return what a module holds under a name, if it is loaded."""
    home = sys.modules.get(module)
    return None if home is None else vars(home).get(name)


def _attribute(thing: Any, path: str) -> Any:
    for name in path.split("."):
        thing = getattr(thing, name, None)
    return thing


def _is_part(module: Any, family: str) -> bool:
    return isinstance(module, types.ModuleType) and module.__name__.split(".", 1)[0] == family


def _is_of(code: Any, family: str) -> bool:
    return str(getattr(code, "__module__", None)).split(".", 1)[0] == family


def _name_of(code: Any) -> str | None:
    return getattr(code, "__name__", None)


# Files.


def _parsed(text: Any, path: str) -> Any:
    """Return the JSON of a configuration; one that says something twice could be understood in two ways."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is there twice")
        return dict(pairs)

    with _complete(path):
        if not isinstance(text, str | bytes):
            raise ValueError(f"its configuration is a {type(text).__name__}")
        return json.loads(text, object_pairs_hook=unique)


@contextmanager
def _complete(path: str) -> Iterator[None]:
    """Name the file in the errors of those who read it."""
    try:
        yield
    except OrcaError:
        raise
    except Exception as error:  # of zip files, HDF5, JSON and protocol buffers
        raise ArgumentError(
            f"{path} is no model of Keras: {type(error).__name__}: {error}. Is it complete?", code="not-a-keras-file"
        ) from error


def _refuse_other_files(file: h5py.File, path: str) -> None:
    """Refuse links to other files, and datasets whose numbers lie in others."""

    def link(name: str, target: Any) -> str | None:
        return name if isinstance(target, h5py.ExternalLink) else None

    def dataset(name: str, item: Any) -> str | None:
        return name if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual) else None

    name = file.visititems_links(link) or file.visititems(dataset)
    if name is not None:
        raise ArgumentError(
            f"{path} refers to another file of this machine at {name!r}, which is not read. Save the model again.",
            code="file-names-other-file",
        )


def _refuse_pickles(data: bytes, path: str) -> None:
    """Refuse arrays of objects, which are pickles."""
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        for name in arrays.files:
            try:
                arrays[name]
            except ValueError:
                raise would_run_code(path, f"a pickle in {name!r}") from None


def _check_saved_model(judge: _Judge, place: str, compile: bool) -> None:
    """Refuse a SavedModel by the configuration of each of its objects, and by the operations of its functions."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    library("tf_keras")
    from tf_keras.protobuf.saved_metadata_pb2 import SavedMetadata

    metadata, model = SavedMetadata(), SavedModel()
    for message, name in ((metadata, _METADATA), (model, "saved_model.pb")):
        with open(os.path.join(place, name), "rb") as file:
            message.ParseFromString(file.read())
    if not metadata.nodes:
        raise ArgumentError(
            f"{judge.path} holds no Keras model: its {_METADATA} is empty. Is it complete?", code="not-a-keras-file"
        )
    lenient = _Judge(judge.path, judge.family, judge.custom_objects, inert=True)
    for node in metadata.nodes:
        config = _parsed(node.metadata, judge.path)
        training = config.pop("training_config", None) if isinstance(config, dict) else None
        judge.config(training if compile else None)
        lenient.config(config)
    for graph in model.meta_graphs:
        _check_functions(graph, judge.path)


def _check_functions(graph: Any, path: str) -> None:
    """Refuse functions of a graph with operations that touch files, other processes or Python.

    Those that read and write its checkpoints are there in every SavedModel; no other function may call them.
    """
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    called = set(graph.object_graph_def.concrete_functions)
    for function in functions.values():
        for node in function.node_def:
            called.add(node.op)
            for value in node.attr.values():
                called.update(item.name for item in (value.func, *value.list.func))
    for name, function in functions.items():
        for node in function.node_def:
            is_function = node.op in functions and node.op.startswith("__")  # as no operation is called
            outside = not is_function and any(part in node.op for part in _OPS_OUTSIDE)
            if outside and not (node.op in _OPS_OF_CHECKPOINTS and name not in called):
                raise would_run_code(path, f"TensorFlow's operation {node.op}")
