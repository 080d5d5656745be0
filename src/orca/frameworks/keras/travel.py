"""Travel: a Keras model as something that pickles. Owns which parts of a model, and of the code it refers to, travel.

A model is one of two families: "keras" (Keras 3) or "tf_keras" (the Keras 2 that TensorFlow had before).
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import tempfile
import types
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import h5py
import numpy as np

from orca.errors import ArgumentError, MissingDependency
from orca.frameworks.keras.optimizers import (
    OptimizerState,
    assign,
    optimizer_states,
    optimizers_of,
    set_optimizer_states,
)

FAMILIES = ("keras", "tf_keras")
_INSTEAD = "Pass model_creator, a function that builds and compiles the model on each worker, instead."
_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_OLD_WEIGHTS = "variables.h5"  # tf_keras calls it so
# Objects of these packages hold nothing that a model's config names.
_OPAQUE = {"builtins", "numpy", "tensorflow", "h5py", "threading", "weakref", "collections", "inspect", "jax", "torch"}


def family_of(model: Any) -> str:
    """Return "keras" or "tf_keras"."""
    family = _family(model)
    if family is not None:
        return family
    raise ArgumentError(
        f"a Keras model is needed (of keras or tf_keras); got {model!r} of type {type(model).__name__}.",
        code="bad-model",
    )


def is_model(thing: Any) -> bool:
    """Say whether something is a Keras model, of either family."""
    return _family(thing) is not None


def _family(thing: Any) -> str | None:
    packages = (kind.__module__.split(".", 1)[0] for kind in type(thing).__mro__ if kind.__name__ == "Model")
    return next((package for package in packages if package in FAMILIES), None)


def library(family: str) -> Any:
    """Import and return the package of a family."""
    try:
        return importlib.import_module(family)
    except ImportError as error:
        raise MissingDependency.of(family, "tf1" if family == "tf_keras" else "keras", f"a {family} model") from error


def pack(model: Any) -> PackedModel:
    """Return a model, compiled or not, as something that can be pickled (with cloudpickle) and rebuilt elsewhere.

    The classes and functions of the user's that the model refers to travel with it, those of their __main__ by value.
    """
    family = family_of(model)
    if not model.built and not isinstance(model, library(family).Sequential):
        raise ArgumentError(
            f"the model {model.name!r} ({type(model).__name__}) is not built: it has no weights that could travel to "
            f"the workers. Call it once on a batch of data, or build(input_shape). {_INSTEAD}",
            code="model-not-built",
        )
    archive, config, custom = _described(model, family)
    compiling = config.pop("compile_config", None) if is_compiled(model) else None
    is_mixed = family == "keras" and model.dtype_policy.name == "mixed_float16"
    if compiling and is_mixed and not hasattr(model.optimizer, "inner_optimizer"):
        compiling["auto_scale_loss"] = False  # not part of Keras's own compile config
    parcel = PackedModel(
        family=family,
        archive=without_optimizer(archive),
        custom=custom,
        compiling=json.dumps(compiling) if compiling else None,
        policy=_policy_of(model, family),
        trainable=tuple(bool(layer.trainable) for layer in model._flatten_layers()),
        optimizers=optimizer_states(model) if compiling else {},
    )
    if any(isinstance(thing, type) for thing in custom.values()):
        _check_that_it_comes_back(parcel, model)
    return parcel


def _described(model: Any, family: str) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """Return a model as a `.keras` file, the config in it, and the classes and functions that the config names."""
    things = _things_of(model)
    try:
        with _naming_functions(model, family, things) as functions:
            archive = _archive(model, family)
    except Exception as error:  # any error of the user's get_config, or of json for its result
        raise ArgumentError(
            f"the model {model.name!r} ({type(model).__name__}) cannot be described by its config: "
            f"{type(error).__name__}: {_in_short(error)}. {_INSTEAD}",
            code="model-not-describable",
        ) from error
    config = json.loads(_members(archive)[_CONFIG])
    names, strings = _names_in(config)
    by_name = {name: function for name, function in functions.items() if name in strings}
    return archive, config, {**by_name, **_custom_objects(things, names, strings, family)}


def is_compiled(model: Any) -> bool:
    """Say whether a model was compiled."""
    return bool(model.compiled if family_of(model) == "keras" else model._is_compiled)


def weights_of(model: Any) -> list[np.ndarray]:
    """Return all weights of a model, BatchNorm's statistics among them, in the order of `model.weights`."""
    return [np.array(array) for array in model.get_weights()]


def set_weights(model: Any, arrays: Sequence[np.ndarray]) -> None:
    """Give a model its weights, in the order of `weights_of`.

    Raises:
        ArgumentError: Their number or a shape is not the model's.
    """
    assign(model.weights, arrays, f"the model {model.name!r}", "weight")


def without_optimizer(archive: bytes) -> bytes:
    """Return the bytes of a `.keras` file without the optimizer's variables, not compiled."""
    members = _members(archive)
    config = json.loads(members[_CONFIG])
    config.pop("compile_config", None)
    members[_CONFIG] = json.dumps(config).encode()
    for name in (_WEIGHTS, _OLD_WEIGHTS):
        if name in members:
            members[name] = _without_group(members[name], "optimizer")
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name, data in members.items():
            target.writestr(name, data)
    return buffer.getvalue()


@dataclass(frozen=True)
class PackedModel:
    """A model on its way to another process.

    Attributes:
        family: "keras" or "tf_keras".
        archive: A `.keras` file: architecture, weights and assets.
        custom: The classes and functions that the architecture names.
        compiling: The arguments of compile as JSON; None for a model that was not compiled.
        policy: The dtype policy under which the model was made.
        trainable: For each layer whether it learns, in the order of the library's own walk.
        optimizers: The states of its optimizers.
    """

    family: str
    archive: bytes = field(repr=False)
    custom: Mapping[str, Any] = field(default_factory=dict)
    compiling: str | None = field(default=None, repr=False)
    policy: Any = None
    trainable: tuple[bool, ...] = field(default=(), repr=False)
    optimizers: Mapping[str, OptimizerState] = field(default_factory=dict, repr=False)

    @property
    def class_name(self) -> str:
        """The name of the model's class."""
        return str(json.loads(_members(self.archive)[_CONFIG])["class_name"])

    def unpack(self) -> Any:
        """Rebuild the model."""
        _register_again(self.custom, self.family)
        with ExitStack() as scopes:
            scopes.enter_context(_under_policy(self.family, self.policy))
            scopes.enter_context(library(self.family).utils.custom_object_scope(dict(self.custom)))
            scopes.enter_context(_quiet())
            try:
                model = _read_archive(self.archive, self.family)
                _set_trainable(model, self.trainable)
                if self.compiling is not None:
                    model.compile_from_config(json.loads(self.compiling))
            except Exception as error:  # from_config and build are the user's code
                raise ArgumentError(
                    f"the model cannot be rebuilt from its config: {type(error).__name__}: {_in_short(error)}. "
                    f"Give each custom class a get_config() with all arguments of its __init__. {_INSTEAD}",
                    code="model-not-describable",
                ) from error
        if self.compiling is not None and not is_compiled(model):
            raise ArgumentError(
                f"the model {model.name!r} has a compile() of its own, which cannot be repeated on a worker. Give "
                f"{type(model).__name__} the methods get_compile_config() and compile_from_config(config). {_INSTEAD}",
                code="model-not-describable",
            )
        optimizers = optimizers_of(model)  # without those that neither its config nor its compile tells of
        set_optimizer_states(model, {name: state for name, state in self.optimizers.items() if name in optimizers})
        return model


# References of a model.


def _things_of(model: Any) -> list[Any]:
    """Return the functions and objects that a model refers to and its config may name."""
    things: list[Any] = []
    ids: set[int] = set()
    stack: list[Any] = [model, getattr(getattr(model, "_compile_config", None), "config", None)]
    while stack:
        thing = stack.pop()
        if id(thing) in ids or thing is None or isinstance(thing, str | bytes | int | float | types.ModuleType):
            continue
        ids.add(id(thing))
        if isinstance(thing, Mapping):
            stack.extend(thing.values())
        elif isinstance(thing, list | tuple | set | frozenset):
            stack.extend(thing)
        elif isinstance(thing, types.MethodType):
            stack.extend([thing.__self__, thing.__func__])
        elif isinstance(thing, functools.partial):
            stack.extend([thing.func, *thing.args, *thing.keywords.values()])
        elif isinstance(thing, types.FunctionType | type):
            things.append(thing)
        elif _package(type(thing)) not in _OPAQUE:
            things.append(thing)
            # An attribute that hides a method of its class is Keras's wrapper of it, which holds the whole object.
            inside = vars(thing) if hasattr(thing, "__dict__") else {}
            stack.extend(value for name, value in inside.items() if not _is_method(type(thing), name, value))
    return things


def _is_method(kind: type, name: str, value: Any) -> bool:
    return isinstance(value, types.FunctionType | types.MethodType) and callable(getattr(kind, name, None))


def _custom_objects(things: Sequence[Any], names: set[str], strings: set[str], family: str) -> dict[str, Any]:
    """Return the classes and functions of things that a config names and that are not the library's own."""
    registered_name = library(family).saving.get_registered_name
    custom: dict[str, Any] = {}
    for thing in things:
        code = thing if isinstance(thing, types.FunctionType | type) else type(thing)
        if _package(code) in FAMILIES:
            continue
        for name in dict.fromkeys([registered_name(code), code.__name__]):
            if name not in strings:
                continue
            other = custom.setdefault(name, code)
            if other is not code and name in names and isinstance(code, type):
                raise ArgumentError(
                    f"the model refers to two different classes of the name {name!r} ({other.__module__}."
                    f"{other.__qualname__} and {code.__module__}.{code.__qualname__}), which its config cannot tell "
                    "apart. Rename one of them, or register it under a package of its own with "
                    "register_keras_serializable(package=...).",
                    code="duplicate-class-names",
                )
    return custom


def _names_in(config: Any) -> tuple[set[str], set[str]]:
    """Return the names of classes and functions in a config, and all its strings."""
    names: set[str] = set()
    strings: set[str] = set()
    stack = [config]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            strings.add(value)
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            if "class_name" in value:
                names |= {
                    value[key] for key in ("class_name", "registered_name", "config") if isinstance(value.get(key), str)
                }
            stack.extend(value.values())
    return names, strings


@contextmanager
def _naming_functions(model: Any, family: str, things: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Give functions names by which a config can tell them apart, while the model is described; yield them by name.

    Keras writes a lambda down as bytecode, which knows no globals elsewhere, and other functions by their bare name.
    Under a name of their own all of them are only named, and travel like other custom objects.
    """
    functions: dict[str, Any] = {}
    registered_name = library(family).saving.get_registered_name
    names = [thing.__name__ for thing in things if isinstance(thing, types.FunctionType)]
    with ExitStack() as undo:
        for thing in things:
            if not isinstance(thing, types.FunctionType) or _package(thing) in FAMILIES:
                continue
            if thing.__name__ == "<lambda>" or (
                names.count(thing.__name__) > 1 and registered_name(thing) == thing.__name__
            ):
                _swap(undo, thing, "__name__", _named(functions, thing))
        # A Lambda layer of tf_keras writes down bytecode for any function: let it name its functions instead.
        lambdas = library(family).layers.Lambda if family == "tf_keras" else ()
        for layer in model._flatten_layers():
            for attribute in ("function", "_output_shape", "mask") if isinstance(layer, lambdas) else ():
                function = getattr(layer, attribute)
                if isinstance(function, types.FunctionType):
                    _swap(undo, layer, attribute, _StandIn(_named(functions, function)))
        yield functions


def _named(functions: dict[str, Any], function: Any) -> str:
    """Return the name of a function; one that has none yet gets one."""
    name = next((name for name, other in functions.items() if other is function), None)
    name = name or f"function_{len(functions)}_of_{function.__module__.rsplit('.', 1)[-1]}"
    functions[name] = function
    return name


def _swap(undo: ExitStack, thing: Any, attribute: str, value: Any) -> None:
    undo.callback(setattr, thing, attribute, getattr(thing, attribute))
    setattr(thing, attribute, value)


class _StandIn:
    """A callable that has a name and is no function."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("only a name")


def _register_again(custom: Mapping[str, Any], family: str) -> None:
    """Register classes and functions as in their own process, so that saving the model here names them the same way."""
    saving = library(family).saving
    registry = saving.get_custom_objects()
    for name, thing in custom.items():
        package, mark, short = name.partition(">")
        if mark and registry.get(name) is not thing:
            registry.pop(name, None)  # of an earlier unpacking: the registered one would win over the new one
            saving.register_keras_serializable(package, short)(thing)


# The archive.


def _archive(model: Any, family: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder, _quiet():
        path = os.path.join(folder, "model.keras")
        library(family).models.save_model(model, path)
        with open(path, "rb") as file:
            return file.read()


def _read_archive(archive: bytes, family: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="orca-keras-") as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(archive)
        return library(family).models.load_model(path, compile=False, safe_mode=False)


def _members(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(archive)) as source:
        return {name: source.read(name) for name in source.namelist()}


def _without_group(data: bytes, name: str) -> bytes:
    buffer = BytesIO()
    with h5py.File(BytesIO(data), "r") as source:
        if name not in source:
            return data
        with h5py.File(buffer, "w") as target:
            target.attrs.update(source.attrs)
            for key in source:
                if key != name:
                    source.copy(key, target)
    return buffer.getvalue()


def _check_that_it_comes_back(parcel: PackedModel, model: Any) -> None:
    """Rebuild a model with classes of the user's here, where the user sees errors, and compare the weights."""
    copy = parcel.unpack()
    ours, theirs = weights_of(model), weights_of(copy)
    same = len(ours) == len(theirs) and all(
        one.shape == other.shape and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        for one, other in zip(ours, theirs, strict=True)
    )
    if not same:
        raise ArgumentError(
            f"the model {model.name!r} ({type(model).__name__}) does not get its weights back when it is rebuilt from "
            f"its config: {len(ours)} weights before, {len(theirs)} after, not all equal. Make its layers attributes "
            f"in __init__ and create their weights in build(). {_INSTEAD}",
            code="model-not-describable",
        )


# Trainable and policy.


def _set_trainable(model: Any, flags: Sequence[bool]) -> None:
    """Freeze the layers that were frozen; a config tells it of layers, but not of those a subclass makes itself."""
    layers = list(model._flatten_layers())
    if len(layers) != len(flags):
        return  # a model that builds its layers later; those have not been frozen
    for _ in layers:  # setting a layer sets those in it too: until nothing changes
        wrong = [(layer, flag) for layer, flag in zip(layers, flags, strict=True) if bool(layer.trainable) != flag]
        if not wrong:
            return
        for layer, flag in wrong:
            layer.trainable = flag


def _policy_of(model: Any, family: str) -> Any:
    policy = model.dtype_policy
    return library(family).dtype_policies.serialize(policy) if family == "keras" else policy.name


@contextmanager
def _under_policy(family: str, policy: Any) -> Iterator[None]:
    """Let layers that a subclass makes in its __init__ get the dtype policy they had."""
    keras = library(family)
    if family == "keras":
        before, setter = keras.config.dtype_policy(), keras.config.set_dtype_policy
        setter(keras.dtype_policies.deserialize(policy))
    else:
        before, setter = keras.mixed_precision.global_policy(), keras.mixed_precision.set_global_policy
        setter(policy)
    try:
        yield
    finally:
        setter(before)


def _package(code: Any) -> str:
    return str(getattr(code, "__module__", None) or "").split(".", 1)[0]


def _in_short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " ..."


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide Keras' advice about saving: the user did not save."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
