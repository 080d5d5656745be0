"""Files: how a torch state is kept. Owns the formats: a folder of safetensors and JSON, or one torch file.

Loading never runs code from a file unless the caller says weights_only=False.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import fsspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from orca.core.learner import OutputSpec, State
from orca.errors import ArgumentError

TORCH_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".model", ".tar")
_FORMAT = 1
_FILES = {"weights.safetensors", "optimizer.safetensors", "state.json"}


def save_state(state: State, path: str) -> None:
    """Write a state: one torch file for `.pt`-style paths, weights alone for `.safetensors`, else a folder."""
    if path.endswith(TORCH_SUFFIXES):
        _write(path, {"": _torch_bytes({"epoch": state.epoch, "steps": state.steps, **state.payload})})
    elif path.endswith(".safetensors"):
        _write(path, {"": save_tensors(_contiguous(state.payload["models"][0]), {"epoch": str(state.epoch)})})
    else:
        weights = {f"{i}/{k}": v for i, model in enumerate(state.payload["models"]) for k, v in model.items()}
        others: dict[str, torch.Tensor] = {}
        rest = _pack({k: v for k, v in state.payload.items() if k != "models"}, others)
        specs = {
            name: (spec.heads, _pack(spec.structure, others)) if spec else None
            for name, spec in (("input", state.input), ("output", state.output))
        }
        about = {"format": _FORMAT, "epoch": state.epoch, "steps": state.steps, **specs}
        _write(
            path,
            {
                "weights.safetensors": save_tensors(_contiguous(weights)),
                "optimizer.safetensors": save_tensors(_contiguous(others)),
                "state.json": json.dumps(about | {"models": len(state.payload["models"]), "rest": rest}).encode(),
            },
        )


def save_module(net: nn.Module, path: str) -> None:
    """Write a whole module, code references included; it is loaded with weights_only=False."""
    _write(path, {"": _torch_bytes(net)})


def load_state(path: str, weights_only: bool = True) -> tuple[State, nn.Module | None]:
    """Read a state, and the module where the file holds a whole one.

    Raises:
        ArgumentError: There is nothing there, it is no model file, or reading it would run code.
    """
    fs, place = fsspec.core.url_to_fs(path)
    if not fs.exists(place):
        raise ArgumentError(f"there is no saved model at {path}. Check the path given to save().")
    if fs.isdir(place):
        return _load_folder(fs, place, path), None
    data = fs.cat_file(place)
    if path.endswith(".safetensors"):
        return State(payload={"models": [_tensors(data, path)], "optimizers": [], "schedulers": []}), None
    found = _torch_load(data, path, weights_only)
    if isinstance(found, nn.Module):
        return State(payload={"models": [found.state_dict()], "optimizers": [], "schedulers": []}), found
    if isinstance(found, dict) and "models" in found:
        payload = {key: found.get(key, []) for key in ("models", "optimizers", "schedulers")}
        return State(epoch=int(found.get("epoch", 0)), steps=int(found.get("steps", 0)), payload=payload), None
    if isinstance(found, dict):
        return State(payload={"models": [found], "optimizers": [], "schedulers": []}), None
    raise ArgumentError(f"{path} holds a {type(found).__name__}, not a model's weights. Was it written by save()?")


def _load_folder(fs: Any, place: str, path: str) -> State:
    if not fs.exists(f"{place}/state.json"):
        raise ArgumentError(f"the folder {path} holds no saved model: there is no state.json in it.")
    try:
        about = json.loads(fs.cat_file(f"{place}/state.json"))
        data, rest = fs.cat_file(f"{place}/weights.safetensors"), fs.cat_file(f"{place}/optimizer.safetensors")
    except (ValueError, FileNotFoundError) as error:
        raise ArgumentError(f"the model in the folder {path} is not complete: {error}. Save it again.") from error
    weights, others = _tensors(data, path), _tensors(rest, path)
    models: list[dict[str, torch.Tensor]] = [{} for _ in range(about["models"])]
    for key, value in weights.items():
        number, name = key.split("/", 1)
        models[int(number)][name] = value
    specs = {
        name: OutputSpec(tuple((dtype, tuple(shape)) for dtype, shape in told[0]), _unpack(told[1], others))
        for name in ("input", "output")
        if (told := about.get(name))
    }
    payload = {"models": models, **_unpack(about["rest"], others)}
    return State(epoch=about["epoch"], steps=about["steps"], payload=payload, **specs)


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


def _tensors(data: bytes, path: str) -> dict[str, torch.Tensor]:
    try:
        return load_tensors(data)
    except SafetensorError as error:
        raise ArgumentError(f"{path} cannot be read as safetensors: {error}. Is it complete?") from error


def _torch_bytes(thing: Any) -> bytes:
    buffer = BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def _contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors as safetensors takes them: each in one piece, and none in the memory of another (tied weights)."""
    seen: set[int] = set()
    packed = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        packed[name] = tensor.contiguous().clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return packed


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


def _write(path: str, files: dict[str, bytes]) -> None:
    """Write a file (one entry, named "") or a folder, whole or not at all."""
    fs, place = fsspec.core.url_to_fs(path)
    with _replacing(fs, place) as target:
        for name, data in files.items():
            spot = f"{target}/{name}" if name else target
            fs.makedirs(os.path.dirname(spot), exist_ok=True)
            fs.pipe_file(spot, data)


@contextmanager
def _replacing(fs: Any, place: str) -> Iterator[str]:
    """Give a path to write to, which takes the place of `place` when all went well."""
    if "file" not in (fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)):
        yield place  # object stores show a file only when it is complete
        return
    foreign = sorted(set(os.listdir(place)) - _FILES) if os.path.isdir(place) else []
    if foreign:
        raise ArgumentError(
            f"the folder {place} holds other things than a saved model, {foreign[0]!r} for example, and would be "
            "replaced. Save to a folder of its own."
        )
    draft, old = (f"{place}.{word}-{uuid.uuid4().hex[:8]}" for word in ("draft", "old"))
    try:
        yield draft
        if os.path.isdir(place) or (os.path.isdir(draft) and os.path.exists(place)):
            os.replace(place, old)
        os.replace(draft, place)
    except BaseException:
        if os.path.exists(old) and not os.path.exists(place):
            os.replace(old, place)
        raise
    finally:
        for left in (draft, old):
            if os.path.isdir(left):
                shutil.rmtree(left)
            elif os.path.exists(left):
                os.remove(left)
