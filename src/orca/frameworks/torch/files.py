"""Files: how a torch state is kept. Owns the formats: a folder of safetensors and JSON, or one torch file.

Loading never runs code from a file unless the caller says weights_only=False.
"""

from __future__ import annotations

import json
import pickle
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from io import BytesIO
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file, save_file
from torch import nn

from orca.core.files import filesystem, here, write
from orca.core.learner import OutputSpec, State
from orca.errors import ArgumentError

TORCH_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".model", ".tar")
_FORMAT = 1
_FILES = {"weights.safetensors", "optimizer.safetensors", "state.json"}
_KIND = "orca.kind"  # the key of a dict that stands for something else
_NUMBERS = (bool, int, float, complex, str, bytes)
_FACTORIES = {"": None} | {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)}
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda of: np.dtype(of[0]).type(of[1]),
    "array": lambda of: of.numpy(),
    "unsigned": lambda of: of[1].numpy().view(of[0]),
    "counter": Counter,
    "ordered": OrderedDict,
    "defaultdict": lambda of: defaultdict(_FACTORIES[of[0]], of[1]),
    "deque": lambda of: deque(*of),
    "set": set,
    "frozenset": frozenset,
    "bytes": b64decode,
    "complex": lambda of: complex(*of),
}
# What torch.load of any version reads without running code, and so a torch file holds as it is: for those who read it
# without Orca.
_TORCH_READS = (Counter, OrderedDict)


def save_state(state: State, path: str) -> None:
    """Write a state: one torch file for `.pt`-style paths, weights alone for `.safetensors`, else a folder."""
    if path.endswith(TORCH_SUFFIXES):
        about = {"epoch": state.epoch, "steps": state.steps, "position": state.position, **state.payload}
        write(path, {"": _torch_bytes(_plain(about, _TORCH_READS))}, _FILES)
    elif path.endswith(".safetensors"):
        write(path, {"": _tensor_file(state.payload["models"][0], {"epoch": str(state.epoch)})}, _FILES)
    else:
        write(path, _folder(state), _FILES)


def save_module(net: nn.Module, path: str) -> None:
    """Write a whole module, code references included; it is loaded with weights_only=False."""
    write(path, {"": _torch_bytes(net)}, _FILES)


def load_state(path: str, weights_only: bool = True, mapped: bool = False) -> tuple[State, nn.Module | None]:
    """Read a state, and the module where the file holds a whole one.

    Args:
        path: Any path that fsspec knows.
        weights_only: Whether to refuse what would run code.
        mapped: Whether to leave the tensors of a folder in their files, and read of them what is used. What lies on
            another machine is copied to the disk of this one.

    Raises:
        ArgumentError: There is nothing there, it is no model file, or reading it would run code.
    """
    fs, place = filesystem(path)
    if not fs.exists(place):
        raise ArgumentError(f"there is no saved model at {path}. Check the path given to save().")
    if fs.isdir(place):
        return _load_folder(fs, place, path, mapped), None
    if path.endswith(".safetensors"):
        return State(payload={"models": [_tensors(fs, place, path)], "optimizers": [], "schedulers": []}), None
    content = _torch_load(fs.cat_file(place), path, weights_only)
    if isinstance(content, nn.Module):
        return State(payload={"models": [content.state_dict()], "optimizers": [], "schedulers": []}), content
    if isinstance(content, dict) and "models" in content:
        payload = {"optimizers": [], "schedulers": []} | _restored(content)
        epoch, steps, position = (payload.pop(name, None) for name in ("epoch", "steps", "position"))
        return State(int(epoch or 0), int(steps or 0), payload, position=position), None
    if isinstance(content, dict):
        return State(payload={"models": [content], "optimizers": [], "schedulers": []}), None
    raise ArgumentError(f"{path} holds a {type(content).__name__}, not a model's weights. Was it written by save()?")


def _folder(state: State) -> dict[str, Any]:
    weights = {f"{i}/{k}": v for i, model in enumerate(state.payload["models"]) for k, v in model.items()}
    others: dict[str, torch.Tensor] = {}
    rest = {k: v for k, v in state.payload.items() if k != "models"}
    specs = {
        name: (spec.heads, _pack(spec.structure, others)) if spec else None
        for name, spec in (("input", state.input), ("output", state.output))
    }
    about = {
        "format": _FORMAT,
        "epoch": state.epoch,
        "steps": state.steps,
        "models": len(state.payload["models"]),
        "position": _pack(_plain(state.position), others),
        "rest": _pack(_plain(rest), others),
    }
    return {
        "weights.safetensors": _tensor_file(weights),
        "optimizer.safetensors": _tensor_file(others),
        "state.json": json.dumps(about | specs).encode(),
    }


def _load_folder(fs: Any, place: str, path: str, mapped: bool) -> State:
    if not fs.exists(f"{place}/state.json"):
        raise ArgumentError(f"the folder {path} holds no saved model: there is no state.json in it.")
    try:
        about = json.loads(fs.cat_file(f"{place}/state.json"))
        names = (f"{place}/weights.safetensors", f"{place}/optimizer.safetensors")
        weights, others = (_tensors(fs, name, path, mapped) for name in names)
    except (ValueError, FileNotFoundError) as error:
        raise ArgumentError(f"the model in the folder {path} is not complete: {error}. Save it again.") from error
    models: list[dict[str, torch.Tensor]] = [{} for _ in range(about["models"])]
    for key, value in weights.items():
        number, name = key.split("/", 1)
        models[int(number)][name] = value
    specs: dict[str, Any] = {
        name: OutputSpec(tuple((dtype, tuple(shape)) for dtype, shape in told[0]), _unpack(told[1], others))
        for name in ("input", "output")
        if (told := about.get(name))
    }
    payload = {"models": models, **_restored(_unpack(about["rest"], others))}
    position = _restored(_unpack(about.get("position"), others))
    return State(about["epoch"], about["steps"], payload, position=position, **specs)


def _torch_load(data: bytes, path: str, weights_only: bool) -> Any:
    try:
        return torch.load(BytesIO(data), map_location="cpu", weights_only=weights_only)
    except Exception as error:  # what is no torch file fails in many ways
        if weights_only and isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise ArgumentError(
                f"{path} holds more than tensors (a whole pickled module, perhaps): loading it would run code from "
                "the file. If you trust it, call load(path, weights_only=False)."
            ) from error
        # Not in torch's words by default: they advise weights_only=False for any file.
        words = type(error).__name__ if weights_only else f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{path} cannot be read as a torch file ({words}). Is it complete?") from error


def _tensors(fs: Any, place: str, path: str, mapped: bool = False) -> dict[str, torch.Tensor]:
    try:
        if not mapped:
            return load_tensors(fs.cat_file(place))
        with here(fs, place) as file:
            found: dict[str, torch.Tensor] = load_file(file)  # mapped: the file may lose its name
            return found
    except SafetensorError as error:
        raise ArgumentError(f"{path} cannot be read as safetensors: {error}. Is it complete?") from error


def _torch_bytes(thing: Any) -> bytes:
    buffer = BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def _tensor_file(tensors: dict[str, torch.Tensor], about: dict[str, str] | None = None) -> Callable[[str], None]:
    """Return what writes tensors to a file of this machine, without another copy of them in memory."""

    def write_to(file: str) -> None:
        try:
            save_file(_contiguous(tensors), file, about)
        except KeyError as error:
            raise ArgumentError(
                f"a tensor of type {error.args[0]} cannot be written as safetensors. Save to a path that ends in .pt."
            ) from error

    return write_to


def _contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors as safetensors takes them: each in one piece, and none in the memory of another (tied weights)."""
    seen: set[int] = set()
    packed = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        packed[name] = tensor.contiguous().clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return packed


def _plain(value: Any, native: tuple[type, ...] = ()) -> Any:
    """Return a tree of what JSON has, tuples, tensors and what is `native`: the rest as dicts that tell its kind."""
    if type(value) in (list, tuple):
        return type(value)(_plain(item, native) for item in value)
    parts = None if type(value) in native else _parts(value)
    if parts is not None:
        kind, content = parts
        return {_KIND: kind, "of": _plain(content, native)}
    if type(value) not in (dict, OrderedDict, Counter):
        return value
    made = copy(value)  # with the attributes that a state dict has
    made.clear()
    for key, item in value.items():
        made[key.item() if isinstance(key, np.generic) else key] = _plain(item, native)  # finds the same
    return made


def _parts(value: Any) -> tuple[str, Any] | None:
    """Return the kind of a value and what to make it of again; None for those that go as they are, or not at all."""
    match value:
        case np.generic():
            plain = value.item()
            return ("numpy", [value.dtype.str, plain]) if type(plain) in _NUMBERS else None
        case np.ndarray() if value.dtype.kind == "u" and value.itemsize > 1:  # older torch cannot write these
            return "unsigned", [value.dtype.str, torch.from_numpy(value.view(f"i{value.itemsize}").copy())]
        case np.ndarray():
            with suppress(TypeError, ValueError):  # torch does not have all types
                return "array", torch.from_numpy(value.copy())
        case Counter():
            return "counter", dict(value)
        case OrderedDict():
            return "ordered", dict(value)
        case defaultdict():
            name = getattr(value.default_factory, "__name__", "")
            return ("defaultdict", [name, dict(value)]) if _FACTORIES.get(name) is value.default_factory else None
        case deque():
            return "deque", [list(value), value.maxlen]
        case set() | frozenset():
            return type(value).__name__, list(value)
        case bytes():
            return "bytes", b64encode(value).decode()
        case complex():
            return "complex", [value.real, value.imag]
    return None


def _restored(value: Any) -> Any:
    """Return the tree that `_plain` was given; changes the one it is given."""
    if type(value) in (list, tuple):
        return type(value)(_restored(item) for item in value)
    if type(value) not in (dict, OrderedDict):
        return value
    for key, item in value.items():
        value[key] = _restored(item)
    if _KIND not in value:
        return value
    if value[_KIND] not in _MAKERS:
        raise ArgumentError(
            f"the saved model holds a value of the kind {value[_KIND]!r}, which is not known here. Load it with the "
            "version of orca that saved it."
        )
    return _MAKERS[value[_KIND]](value["of"])


def _pack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a JSON-able tree; tensors move to `tensors` under the name that stands in their place."""
    if isinstance(value, torch.Tensor):
        name = f"t{len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"map": [[_pack(k, tensors), _pack(v, tensors)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_pack(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_pack(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ArgumentError(
        f"a state with a {type(value).__name__} in it cannot be written as JSON. Save to a path that ends in .pt."
    )


def _unpack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_unpack(item, tensors) for item in content)
    return {_unpack(k, tensors): _unpack(v, tensors) for k, v in content}
