"""States: the one format of a training state on disk, for all frameworks: a folder of safetensors and JSON.

The arrays of a state (torch tensors or numpy arrays) lie in safetensors files, named by their place in the payload:
`weights.safetensors` has those of the models, `optimizer.safetensors` all others. `state.json` has everything else, and
is written last. Loading runs no code from a file.

Not torch.distributed.checkpoint: it unpickles its metadata and holds a second copy of the state in memory.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file, save_file

from orca.errors import ArgumentError, OrcaError
from orca.storage.files import MARKER, filesystem, here, write
from orca.storage.state import OutputSpec, State

WEIGHTS, OTHERS = "weights.safetensors", "optimizer.safetensors"
FILES = {WEIGHTS, OTHERS, MARKER}
_FORMAT = 2
_CHECKSUM = "checksum"
_INSTEAD = "Leave it out; a torch model may be saved to a path that ends in .pt."
_MOST_STEPS = 1 << 53
_LARGEST_ROW = 1 << 36  # bytes of a head of a model, for a row
# The errors of a content that is not what it should be.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, FileNotFoundError, ArithmeticError, RecursionError)
_NUMBERS = (bool, int, float, complex, str, bytes)
_FACTORIES = {"": None} | {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda of: _dtype(of[0]).type(of[1]),
    "array": lambda of: of[1].numpy().view(_dtype(of[0])),
    "counter": Counter,
    "ordered": OrderedDict,
    "defaultdict": lambda of: defaultdict(_FACTORIES[of[0]], of[1]),
    "deque": lambda of: deque(*of),
    "set": set,
    "frozenset": frozenset,
    "bytes": b64decode,
    "complex": lambda of: complex(*of),
}


def save_state(state: State, path: str, framework: str) -> None:
    """Write a state as a folder, at any path that fsspec knows, whole or not at all.

    Args:
        state: The state.
        path: The folder to write.
        framework: The framework that can read it.

    Raises:
        ArgumentError: It holds something that cannot be written as arrays and JSON, or others' files are in the folder.
    """
    arrays: dict[str, dict[str, torch.Tensor]] = {WEIGHTS: {}, OTHERS: {}}
    about = {
        "format": _FORMAT,
        "framework": framework,
        "epoch": state.epoch,
        "steps": state.steps,
        "position": _pack(state.position, arrays[OTHERS], "position"),
        "payload": {
            name: _pack(value, arrays[WEIGHTS if name == "models" else OTHERS], "" if name == "models" else name)
            for name, value in state.payload.items()
        },
    }
    for name, spec in (("input", state.input), ("output", state.output)):
        about[name] = spec and (spec.heads, _pack(spec.structure, arrays[OTHERS], name))
    contents: dict[str, Any] = {name: tensor_file(tensors) for name, tensors in arrays.items()}
    checksum = zlib.crc32(json.dumps(about).encode())
    write(path, contents | {MARKER: json.dumps({_CHECKSUM: checksum, **about}).encode()}, FILES)


def is_state(path: str) -> bool:
    """Say whether a path holds a saved state."""
    fs, place = filesystem(path)
    return bool(fs.exists(f"{place}/{MARKER}"))


def load_state(path: str, framework: str, mapped: bool = False) -> State:
    """Read a state that save_state wrote.

    Args:
        path: Its folder.
        framework: The framework that reads it.
        mapped: Whether to leave the arrays in their files, and read only the used parts. A state on another machine
            is copied to the disk of this one.
    """
    fs, place = filesystem(path)
    if not fs.exists(place):
        raise ArgumentError(
            f"there is no saved model at {path}. Check the path given to save().", code="missing-saved-model"
        )
    if not fs.exists(f"{place}/{MARKER}"):
        raise ArgumentError(
            f"the folder {path} holds no saved model: there is no {MARKER} in it.", code="missing-saved-model"
        )
    with readable(path):
        about = json.loads(fs.cat_file(f"{place}/{MARKER}"))
        checksum = about.pop(_CHECKSUM, None)  # older states have none
        if checksum is not None and checksum != zlib.crc32(json.dumps(about).encode()):
            raise _damaged(f"{path}/{MARKER}")
        if about["format"] != _FORMAT:
            raise ArgumentError(
                f"{path} was saved in format {about['format']}. Load it with the orca that saved it.",
                code="saved-by-other-version",
            )
        for name in ("epoch", "steps"):
            if type(about[name]) is not int or not 0 <= about[name] < _MOST_STEPS:
                raise ValueError(f"{name} is {about[name]!r:.80}, which is no number of {name}")
        if about["framework"] != framework:
            raise ArgumentError(
                f"{path} holds a model of {about['framework']}, not of {framework}. Load it with the Estimator that "
                "saved it.",
                code="saved-by-other-framework",
            )
        weights, others = (load_tensors(fs, f"{place}/{name}", path, mapped) for name in (WEIGHTS, OTHERS))
        payload = {
            name: _unpack(value, weights if name == "models" else others) for name, value in about["payload"].items()
        }
        specs: dict[str, Any] = {
            name: OutputSpec(tuple(_head(*head) for head in spec[0]), _unpack(spec[1], others))
            for name in ("input", "output")
            if (spec := about[name])
        }
        return State(about["epoch"], about["steps"], payload, position=_unpack(about["position"], others), **specs)


def load_tensors(fs: Any, place: str, path: str, mapped: bool = False) -> dict[str, torch.Tensor]:
    """Read a file of safetensors.

    Args:
        fs: Its filesystem.
        place: Its place in that file system.
        path: The path to name in errors.
        mapped: Whether the tensors stay in the file.
    """
    try:
        if not mapped:
            content = fs.cat_file(place)
            loaded: dict[str, torch.Tensor] = load_bytes(content)
            about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__") or {}
            if about.get(_CHECKSUM, str(_checksum(loaded))) != str(_checksum(loaded)):
                raise _damaged(f"{path}/{place.rpartition('/')[2]}")
            return loaded
        with here(fs, place) as file:
            tensors: dict[str, torch.Tensor] = load_file(file)  # mapped: the file may lose its name
            return tensors
    except SafetensorError as error:
        raise ArgumentError(
            f"{path} cannot be read as safetensors: {error}. Is it complete?", code="model-file-not-readable"
        ) from error


def tensor_file(tensors: dict[str, torch.Tensor], about: dict[str, str] | None = None) -> Callable[[str], None]:
    """Return a function that writes tensors to a file of this machine, without another copy of them in memory."""

    def write_to(file: str) -> None:
        try:
            pieces = _contiguous(tensors)
            save_file(pieces, file, (about or {}) | {_CHECKSUM: str(_checksum(pieces))})
        except KeyError as error:
            raise _unwritten(error.args[0]) from error

    return write_to


def _checksum(tensors: dict[str, torch.Tensor]) -> int:
    """Return a checksum of names, types, shapes and bytes: safetensors itself only checks lengths."""
    total = 0
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.reshape(-1).view(torch.uint8).cpu().numpy().data, total)
    return total


def _damaged(path: str) -> ArgumentError:
    return ArgumentError(
        f"{path} is damaged: its content is not what was written. Take another checkpoint or copy.",
        code="damaged-state",
    )


def _unwritten(kind: Any) -> ArgumentError:
    return ArgumentError(
        f"a tensor of type {kind} cannot be written as safetensors. {_INSTEAD}", code="state-not-writable"
    )


def parts_of(value: Any) -> tuple[str, Any] | None:
    """Return the kind of a value and the parts from which MAKERS make it again; None for other values."""
    match value:
        case np.generic():
            plain = value.item()
            kind = value.dtype.name if value.dtype.kind == "V" else value.dtype.str  # bfloat16 and the like have no str
            return ("numpy", [kind, plain]) if type(plain) in _NUMBERS and not isinstance(value, np.void) else None
        case np.ndarray():
            return _array_parts(value)
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


def _array_parts(array: np.ndarray) -> tuple[str, Any] | None:
    """Return an array as its type and a tensor of its bits; None for texts, objects, dates, and masked values."""
    if array.dtype.kind in "OSUMm" or array.dtype.type is np.void or isinstance(array, np.ma.MaskedArray):
        return None
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # torch has no other order of bytes
    kind = array.dtype
    try:
        bits = array if kind.kind in "bifc" or kind == np.uint8 else array.view(f"i{kind.itemsize}")
        return "array", [kind.name, torch.from_numpy(bits.copy())]
    except (TypeError, ValueError):  # torch lacks a few types, such as long doubles
        return None


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # bfloat16 and the like; the framework whose arrays have them brings it

        return np.dtype(getattr(ml_dtypes, name))


def _head(dtype: Any, shape: Any) -> tuple[str, tuple[int, ...]]:
    """Return the type and the shape of a head, after a look whether a row of it fits into memory."""
    sizes = tuple(shape)
    bytes_each = 1 if dtype == "object" else _dtype(dtype).itemsize
    if not all(type(size) is int and size >= 0 for size in sizes) or prod(sizes) * bytes_each > _LARGEST_ROW:
        raise ValueError(f"a row of {dtype!r:.80} and shape {shape!r:.80} is none")
    return str(dtype), sizes


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Report whatever is wrong with the content of a saved model as an error that names it."""
    try:
        yield
    except OrcaError:
        raise
    except _DAMAGE as error:
        words = f"{type(error).__name__}: {str(error)[:500]}"
        raise ArgumentError(
            f"the model at {path} is damaged or not complete: {words}. Save it again.", code="incomplete-saved-model"
        ) from error


def _contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors as safetensors takes them: each in one piece, and none in the memory of another (tied weights)."""
    places: set[int] = set()
    pieces = {}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_meta:
            raise _unwritten("meta" if tensor.is_meta else tensor.layout)
        tensor = tensor.resolve_conj().resolve_neg()  # which torch may only have noted
        place = tensor.untyped_storage().data_ptr()
        pieces[name] = tensor.contiguous().clone() if place in places else tensor.contiguous()
        places.add(place)
    return pieces


def _pack(value: Any, tensors: dict[str, torch.Tensor], name: str) -> Any:
    """Return a JSON-able tree; tensors move to `tensors` under the name that stands in their place."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        while name in tensors:  # keys of a dict may hold the slash that joins names
            name += "+"
        tensors[name] = value
        return {"tensor": name}
    parts = parts_of(value)
    if parts is not None:
        return {parts[0]: _pack(parts[1], tensors, name)}
    inside = f"{name}/" if name else ""
    # Subclasses come back as their base: a torch.Size as a tuple.
    if isinstance(value, list | tuple):
        items = [_pack(item, tensors, f"{inside}{number}") for number, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict):
        return {"map": [[_pack(k, tensors, name), _pack(v, tensors, f"{inside}{k}")] for k, v in value.items()]}
    if isinstance(value, int | float | str):
        return value
    raise ArgumentError(
        f"a state with a {type(value).__name__} in it cannot be written as arrays and JSON. {_INSTEAD}",
        code="state-not-writable",
    )


def _unpack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "map":
        return {_unpack(k, tensors): _unpack(v, tensors) for k, v in content}
    if kind == "tuple":
        return tuple(_unpack(content, tensors))
    if kind not in MAKERS:
        raise ArgumentError(
            f"the saved model holds a value of the kind {kind!r}. Load it with the orca that saved it.",
            code="unknown-saved-value",
        )
    return MAKERS[kind](_unpack(content, tensors))
