"""Files: torch files. Owns how a state, or a module, is one file; a folder is that of `storage/states.py`.

Loading never runs code from a file unless the caller says weights_only=False.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter, OrderedDict
from contextlib import suppress
from copy import copy
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import nn

from orca.core.state import State
from orca.errors import ArgumentError
from orca.storage.checkpoints import DATED_PREFIX, METHOD
from orca.storage.files import filesystem, write
from orca.storage.states import FILES, MAKERS, load_state, load_tensors, parts_of, readable, save_state, tensor_file

TORCH_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".model", ".tar")
_REST = "orca_state"  # the attribute of a state dict that holds the rest of the state
_KIND = "orca.kind"  # the key of a dict that stands for something else
# Types that torch.load of any version reads without running code, and so a torch file holds as they are: for readers
# without Orca.
_TORCH_READS = (Counter, OrderedDict)


def write_method(optimizer: Any, stepper: torch.optim.Optimizer, path: str) -> None:
    """Write the optim method beside a checkpoint that is named as BigDL names them; its state is in the checkpoint.

    Args:
        optimizer: The user's argument. An optim method of BigDL is written with its arguments, for its `load`.
        stepper: The torch optimizer that was made of it, whose name is written for any other.
        path: The path of the checkpoint.
    """
    folder, _, name = path.rpartition("/")
    prefix, _, steps = name.partition(".")
    if prefix != DATED_PREFIX or not steps.isdigit():
        return
    kind = type(stepper)
    method, about = kind.__name__, {"method": f"{kind.__module__}.{kind.__name__}"}
    with suppress(AttributeError, ArgumentError):  # a torch optimizer, or one that a TorchOptim wraps
        method, about = type(optimizer).__name__, optimizer.as_json()
    write(f"{folder}/{METHOD}{method}.{steps}", {"": json.dumps(about).encode()}, None)


def save_file(state: State, path: str, form: str = "") -> None:
    """Write a state: weights alone for `.safetensors`, one torch file for `.pt`-style paths, else a folder.

    Args:
        state: The state.
        path: Any path that fsspec knows.
        form: "state" for one torch file whatever the path; "weights" for one that holds the model's own state dict,
            to which all else is attached, as torch attaches its _metadata.
    """
    if path.endswith(".safetensors"):
        write(path, {"": tensor_file(state.payload["models"][0], {"epoch": str(state.epoch)})}, FILES)
    elif form or path.endswith(TORCH_SUFFIXES):
        about = _plain({"epoch": state.epoch, "steps": state.steps, "position": state.position, **state.payload})
        if form == "weights" and len(about["models"]) == 1:
            (weights,) = about.pop("models")
            about, rest = OrderedDict(weights), about
            vars(about).update({**vars(weights), _REST: rest} if isinstance(weights, OrderedDict) else {_REST: rest})
        write(path, {"": _torch_bytes(about)}, FILES)
    else:
        save_state(state, path, "torch")


def save_module(net: nn.Module | list[nn.Module], path: str) -> None:
    """Write a whole module (or several), code references included; it is loaded with weights_only=False."""
    write(path, {"": _torch_bytes(net)}, FILES)


def load_file(path: str, weights_only: bool = True) -> tuple[State, nn.Module | list[nn.Module] | None]:
    """Read a file with a state or with weights, or with a whole module or several.

    Args:
        path: Any path that fsspec knows.
        weights_only: Whether to refuse a file that would run code.
    """
    fs, place = filesystem(path)
    if not fs.isfile(place):
        return load_state(path, "torch"), None
    if path.endswith(".safetensors"):
        return _weights([load_tensors(fs, place, path)]), None
    content = _torch_load(fs.cat_file(place), path, weights_only)
    with readable(path):
        return _state_of(content, path)


def _state_of(content: Any, path: str) -> tuple[State, nn.Module | list[nn.Module] | None]:
    """Return what a file of torch's holds."""
    nets = content if isinstance(content, list) else [content]
    if nets and all(isinstance(net, nn.Module) for net in nets):
        return _weights([net.state_dict() for net in nets]), content
    if hasattr(content, _REST):
        content = {"models": [content], **vars(content).pop(_REST)}
    if isinstance(content, dict) and "models" in content:
        payload = {"optimizers": [], "schedulers": []} | _restored(content)
        epoch, steps, position = (payload.pop(name, None) for name in ("epoch", "steps", "position"))
        return State(int(epoch or 0), int(steps or 0), payload, position=position), None
    if isinstance(content, dict):
        return _weights([content]), None
    raise ArgumentError(
        f"{path} holds a {type(content).__name__}, not a model's weights. Was it written by save()?",
        code="not-a-weights-file",
    )


def _weights(state_dicts: list[dict[str, Any]]) -> State:
    return State(payload={"models": state_dicts, "optimizers": [], "schedulers": []})


def _torch_load(data: bytes, path: str, weights_only: bool) -> Any:
    try:
        return torch.load(BytesIO(data), map_location="cpu", weights_only=weights_only)
    except Exception as error:  # other files fail in many ways
        if weights_only and isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise ArgumentError(
                f"{path} holds more than tensors (a whole pickled module, perhaps): loading it would run code from "
                "the file. If you trust it, call load(path, weights_only=False).",
                code="file-holds-code",
            ) from None
        if not weights_only and isinstance(error, AttributeError | ImportError):
            raise ArgumentError(
                f"{path} holds a whole pickled module, whose class is not here: {error}. Define or import the class "
                "first, under the same name in the same module (__main__ is the program itself); or save without "
                "entire=True, and load into an Estimator of the model.",
                code="class-not-importable",
            ) from None
        # Not in torch's words by default: they advise weights_only=False for any file.
        words = type(error).__name__ if weights_only else f"{type(error).__name__}: {error}"
        raise ArgumentError(
            f"{path} cannot be read as a torch file ({words}). Is it complete?", code="model-file-not-readable"
        ) from None


def _torch_bytes(thing: Any) -> bytes:
    buffer = BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    """Return a tree of types that torch.load reads without running code: the rest as dicts that tell its kind."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    parts = None if type(value) in _TORCH_READS else parts_of(value)
    if parts is not None:
        return {_KIND: parts[0], "of": _plain(parts[1])}
    if type(value) not in (dict, *_TORCH_READS):
        return value
    plain = copy(value)  # with the attributes that a state dict has
    plain.clear()
    for key, item in value.items():
        plain[key.item() if isinstance(key, np.generic) else key] = _plain(item)  # finds the same
    return plain


def _restored(value: Any) -> Any:
    """Return the tree that `_plain` was given; changes the one it is given."""
    if type(value) in (list, tuple):
        return type(value)(map(_restored, value))
    if type(value) not in (dict, OrderedDict):
        return value
    for key, item in value.items():
        value[key] = _restored(item)
    if _KIND not in value:
        return value
    if value[_KIND] not in MAKERS:
        raise ArgumentError(
            f"the saved model holds a value of the kind {value[_KIND]!r}. Load it with the orca that saved it.",
            code="unknown-saved-value",
        )
    return MAKERS[value[_KIND]](value["of"])
