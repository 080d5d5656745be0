"""Architecture: a module's classes and settings as plain values. Owns saving a whole model without pickles.

A module is told by the names of its classes, its plain attributes, its children, and the shapes of its tensors; the
tensors themselves are its state dict. It is made again without its constructor: reading one imports the classes and
functions that it names, and calls none of them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import nn

from orca.errors import ArgumentError

_OWN = frozenset(nn.Module().__dict__) - {"training"}  # torch's own attributes
_REPLACED = ("forward", "train", "eval")  # methods that programs put functions in place of; loading calls none of them
_KIND = "orca.kind"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_INSTEAD = "Or keep its state dict, and give load the module: load(path, model=...)."


def describe(net: nn.Module, what: str = "the model", instead: str = _INSTEAD) -> dict[str, Any]:
    """Return a module as plain values, without its tensors.

    Args:
        net: The module.
        what: Its name in an error.
        instead: The remedy that the error names.

    Raises:
        ArgumentError: It cannot be told so: a class that nobody can import, a hook, an attribute of another kind.
    """
    try:
        return _module(net, "", {}, what)
    except ArgumentError as error:
        raise ArgumentError(f"{error} {instead}".rstrip(), code="module-not-describable") from error


def build(about: dict[str, Any]) -> nn.Module:
    """Return the module that `describe` told of; its tensors hold anything until a state dict is loaded.

    Raises:
        ArgumentError: A class of it cannot be imported here.
    """
    return _made(about, {})


def _module(net: nn.Module, place: str, names: dict[int, str], what: str) -> dict[str, Any]:
    if id(net) in names:
        return {"same": names[id(net)]}
    names[id(net)] = f"module {place}"
    name = f"{place or what} ({type(net).__name__})"
    hooks = [key for key in _OWN if "hooks" in key and getattr(net, key, None) and not key.startswith("_is")]
    if hooks:
        raise ArgumentError(
            f"{name} has hooks ({', '.join(sorted(hooks))}), which are code: take them off.", code="module-has-hooks"
        )
    state = net.__getstate__() if _has_own_state(net) else net.__dict__
    tensors = {id(tensor): key for part in (net._parameters, net._buffers) for key, tensor in part.items()}
    attributes = {
        key: _plain(value, f"the attribute {key} of {name}", tensors) for key, value in state.items() if key not in _OWN
    }
    inside = f"{place}." if place else ""
    return {
        "class": reference(type(net), name),
        "attributes": attributes,
        "parameters": {key: _tensor(value, f"{inside}{key}", names) for key, value in net._parameters.items()},
        "buffers": {
            key: _tensor(value, f"{inside}{key}", names, whole=key in net._non_persistent_buffers_set)
            for key, value in net._buffers.items()
        },
        "passing": sorted(net._non_persistent_buffers_set),
        "children": {
            key: None if child is None else _module(child, f"{inside}{key}", names, what)
            for key, child in net._modules.items()
        },
    }


def _has_own_state(net: nn.Module) -> bool:
    return any("__getstate__" in kind.__dict__ for kind in type(net).__mro__ if kind not in (nn.Module, object))


def _tensor(tensor: torch.Tensor | None, place: str, names: dict[int, str], whole: bool = False) -> Any:
    """Return a description of a tensor; the tensor itself where no state dict holds it."""
    if tensor is None:
        return None
    if id(tensor) in names:
        return {"same": names[id(tensor)]}  # tied weights
    names[id(tensor)] = f"tensor {place}"
    if whole:
        return {"value": tensor.detach()}
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "trained": tensor.requires_grad}


def _plain(value: Any, what: str, tensors: dict[int, str]) -> Any:
    """Return an attribute as plain values; references and torch's own small things are marked dicts."""
    if type(value) in _PLAIN:
        return value
    if id(value) in tensors:
        return {_KIND: "own", "name": tensors[id(value)]}
    if isinstance(value, torch.dtype | torch.device):
        return {_KIND: type(value).__name__, "name": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        return value.detach()
    if isinstance(value, Enum):
        return {_KIND: "enum", "class": reference(type(value), what), "name": value.name}
    if isinstance(value, partial):
        parts = [value.func, list(value.args), value.keywords]
        return {_KIND: "partial", "parts": [_plain(part, what, tensors) for part in parts]}
    if isinstance(value, type) or inspect.isroutine(value):
        return {_KIND: "name", "name": reference(value, what)}
    if isinstance(value, list | tuple | set | frozenset):
        kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(value, kind))
        return kind(_plain(item, what, tensors) for item in value)
    if isinstance(value, dict):
        return {_plain(key, what, tensors): _plain(item, what, tensors) for key, item in value.items()}
    raise ArgumentError(
        f"{what} is a {type(value).__name__}, which cannot be written as JSON.", code="module-not-describable"
    )


def reference(thing: Any, what: str) -> str:
    """Return the name by which a class or function can be imported.

    One of the program itself (`__main__`) is found by programs that define it, too.

    Args:
        thing: The class or function.
        what: The thing that needs it.

    Raises:
        ArgumentError: It cannot: it is part of another function, or has another name.
    """
    short = getattr(thing, "__name__", "")
    # Functions of torch's own do not tell where they can be found.
    names = [f"{thing.__module__}:{thing.__qualname__}", f"torch:{short}", f"torch.nn.functional:{short}"]
    if "<" not in thing.__qualname__:
        for name in names:
            try:
                if _found(name) is thing:
                    return name
            except (ImportError, AttributeError, ValueError):
                continue
        if thing.__module__ != "__main__":
            raise ArgumentError(
                f"{what} needs {thing.__qualname__}, which cannot be imported by its name.", code="class-not-importable"
            )
    raise ArgumentError(
        f"{what} needs {thing.__qualname__}, which is defined in the program itself or in a function, where no other "
        "program finds it. Put it into a module of its own.",
        code="class-not-importable",
    )


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    thing: Any = importlib.import_module(module)
    for part in path.split("."):
        thing = getattr(thing, part)
    return thing


def imported(name: str) -> Any:
    """Return the object that `reference` named.

    Raises:
        ArgumentError: It cannot be imported here.
    """
    try:
        return _found(name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(
            f"the saved model or stage needs {name.replace(':', '.')}, which cannot be imported here: {error}. Put the "
            "file that defines it where Python finds it, or give load the module: load(path, model=...).",
            code="class-not-importable",
        ) from error


def _made(about: dict[str, Any], things: dict[str, Any], place: str = "") -> nn.Module:
    if "same" in about:
        return things[about["same"]]  # type: ignore[no-any-return]
    kind = imported(about["class"])
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ArgumentError(
            f"the saved model names {about['class']}, which is no torch.nn.Module.", code="class-not-a-module"
        )
    net: nn.Module = kind.__new__(kind)
    nn.Module.__init__(net)
    things[f"module {place}"] = net
    inside = f"{place}." if place else ""
    for key, child in about["children"].items():
        net._modules[key] = None if child is None else _made(child, things, f"{inside}{key}")
    for key, tensor in about["parameters"].items():
        net._parameters[key] = _made_tensor(tensor, f"{inside}{key}", things, nn.Parameter)
    for key, tensor in about["buffers"].items():
        net._buffers[key] = _made_tensor(tensor, f"{inside}{key}", things, lambda data, requires_grad: data)
    net._non_persistent_buffers_set = set(about["passing"])
    _check_names(about["attributes"], about["class"])
    attributes = {key: _value(value, net) for key, value in about["attributes"].items()}
    if _has_own_state(net):
        net.__setstate__({**net.__dict__, **attributes})
    else:
        net.__dict__.update(attributes)
    return net


def _check_names(attributes: dict[str, Any], kind: str) -> None:
    """Check that a file puts nothing in the place of torch's hooks and methods: loading weights would call it."""
    for name in attributes:
        if name in _OWN or (name not in _REPLACED and callable(getattr(nn.Module, name, None))):
            raise ArgumentError(
                f"the saved model sets {name} of {kind.replace(':', '.')}, which is torch's own, and code. Load files "
                "alone that you saved, or give load the module: load(path, model=...).",
                code="file-holds-code",
            )


def _made_tensor(about: Any, place: str, things: dict[str, Any], kind: Callable[..., Any]) -> Any:
    if about is None or "same" in about:
        return about and things[about["same"]]
    if "value" in about:
        things[f"tensor {place}"] = about["value"]
    else:
        data = torch.zeros(about["shape"], dtype=getattr(torch, about["dtype"].removeprefix("torch.")))
        things[f"tensor {place}"] = kind(data, requires_grad=about["trained"])
    return things[f"tensor {place}"]


def _value(value: Any, net: nn.Module) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_value(item, net) for item in value)
    if not isinstance(value, dict):
        return value
    match value.get(_KIND):
        case None:
            return {_value(key, net): _value(item, net) for key, item in value.items()}
        case "own":
            return {**net._parameters, **net._buffers}[value["name"]]
        case "dtype":
            return getattr(torch, value["name"])
        case "device":
            return torch.device(value["name"])
        case "enum":
            return imported(value["class"])[value["name"]]
        case "name":
            return imported(value["name"])
        case "partial":
            function, args, keywords = (_value(part, net) for part in value["parts"])
            return partial(function, *args, **keywords)
    raise ArgumentError(
        f"the saved model holds a value of the kind {value[_KIND]!r}. Load it with the orca that saved it.",
        code="unknown-saved-value",
    )
