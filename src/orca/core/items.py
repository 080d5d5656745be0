"""Items: what ranks tell each other, as JSON and the bytes of arrays. Owns which values travel, and their form.

Nothing that another rank sent is unpickled, evaluated or imported. An item is a value of plain Python (None, bool, int,
float, complex, str, bytes, and lists, tuples, dicts and sets of such values), a numpy array or scalar, a dense torch
tensor, or of one of our dataclasses that are marked with `travels`. Subclasses of them arrive as the plain kind, and
other things that numpy can make an array of as that array.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import sys
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np

from orca.errors import ArgumentError
from orca.monitor.protocol import Malformed

_LENGTH = struct.Struct("<Q")  # of the JSON, which comes first; then the bytes of all arrays
_DTYPE = re.compile(r"[<>|=]([biufc]\d+|[SU][1-9]\d*)|[<>|=][mM]8(\[\d*\w+\])?")
_FEWER_BITS = re.compile(r"bfloat16|float[468]_\w+|u?int[24]")  # the types of ml_dtypes
_JSON_INTEGERS = 1 << 63  # larger ones go as hexadecimal texts: reading them takes no longer than their length
_TRAVELS: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {}

Class = TypeVar("Class", bound=type[Any])


class Unsendable(ArgumentError):
    """A value that ranks cannot tell each other."""


def travels(kind: Class) -> Class:
    """Let the instances of a dataclass be part of items: field by field, made again by its constructor."""
    names = [field.name for field in dataclasses.fields(kind)]
    travels_as(kind, lambda value: {name: getattr(value, name) for name in names}, lambda values: kind(**values))
    return kind


def travels_as(kind: type, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    """Let the instances of a class be part of items, as an item that `write` returns and `read` makes one of again."""
    _TRAVELS[kind.__name__] = (kind, write, read)


def encode(item: Any) -> bytes:
    """Return an item as bytes.

    Raises:
        Unsendable: Something in it is none of the values that travel.
    """
    buffers: list[bytes] = []
    try:
        text = json.dumps(_plain(item, buffers)).encode()
    except RecursionError:
        raise Unsendable("a value for the other ranks is nested too deeply, or holds itself.") from None
    return b"".join((_LENGTH.pack(len(text)), text, *buffers))


def decode(data: bytes | memoryview) -> Any:
    """Return the item that these bytes stand for.

    Raises:
        Malformed: They are no item. Nothing larger than they are is ever made of them.
    """
    try:
        view = memoryview(data).cast("B")
        (length,) = _LENGTH.unpack_from(view)
        start = _LENGTH.size + length
        if start > len(view):
            raise ValueError("it is cut off")
        reader = _Reader(view[start:])
        item = reader.value(json.loads(bytes(view[_LENGTH.size : start])))
        if reader.rest:
            raise ValueError(f"it has {len(reader.rest)} bytes too many")
        return item
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RuntimeError, struct.error) as error:
        raise Malformed(f"an item is malformed ({type(error).__name__}: {str(error)[:200]})") from None


def _plain(value: Any, buffers: list[bytes]) -> Any:
    """Return a value as JSON: lists are tagged by what they stand for; the bytes of arrays go to the buffers."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain_array(value, buffers)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < _JSON_INTEGERS else ["int", hex(value)]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        buffers.append(bytes(value))
        return ["bytes", len(value)]
    if isinstance(value, dict):
        return ["dict", *([_plain(key, buffers), _plain(entry, buffers)] for key, entry in value.items())]
    if isinstance(value, list | tuple | set | frozenset):
        tag = next(tag for tag, kind in _SEQUENCES.items() if isinstance(value, kind))
        return [tag, *(_plain(entry, buffers) for entry in value)]
    name = type(value).__name__
    if name in _TRAVELS and _TRAVELS[name][0] is type(value):
        return ["data", name, _plain(_TRAVELS[name][1](value), buffers)]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _plain_tensor(value, buffers, torch)
    if hasattr(value, "__array__"):  # tensors of other libraries
        return _plain_array(np.asarray(value), buffers)
    raise Unsendable(
        f"ranks cannot tell each other a value of type {type(value).__module__}.{name}: plain values, numpy arrays and "
        "torch tensors travel, in lists, tuples, dicts and sets. Turn it into those."
    )


_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def _plain_array(value: np.ndarray | np.generic, buffers: list[bytes]) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise Unsendable("ranks cannot tell each other a masked array. Fill it (array.filled()), and send its mask.")
    tag, value = "array" if isinstance(value, np.ndarray) else "scalar", np.asarray(value)
    kind = value.dtype  # of an array, as the one of an empty text has no bytes
    if kind.kind in "OT":  # objects, and texts of any length
        array = np.asarray(value, object)
        return ["objects", list(array.shape), *(_plain(cell, buffers) for cell in array.reshape(-1))]
    name = kind.name if _FEWER_BITS.fullmatch(kind.name) else kind.str
    if name != kind.name and not _DTYPE.fullmatch(name):
        raise Unsendable(f"ranks cannot tell each other an array of type {kind}. Send its columns, or plain numbers.")
    buffers.append(value.tobytes())
    return [tag, name, list(value.shape)]


def _plain_tensor(value: Any, buffers: list[bytes], torch: Any) -> Any:
    if value.layout is not torch.strided or value.is_quantized:
        raise Unsendable(f"ranks cannot tell each other a tensor that is not dense ({value.layout}). Send it dense.")
    whole = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    buffers.append(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]


class _Reader:
    """The values of one item; `rest` are the bytes of arrays that none has taken yet."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def value(self, plain: Any) -> Any:
        """Return the value that a piece of JSON stands for."""
        if not isinstance(plain, list):
            if isinstance(plain, dict):
                raise ValueError("a dict is not tagged")
            return plain
        tag, *parts = plain
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](map(self.value, parts))
        read: Callable[..., Any] = _READERS[tag]
        return read(self, *parts)

    def take(self, size: int) -> memoryview:
        """Return the next bytes."""
        if not 0 <= size <= len(self.rest):
            raise ValueError(f"it says that it holds {size} bytes more, and has {len(self.rest)}")
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def octets(self, size: int) -> bytes:
        return self.take(size).tobytes()

    def dict(self, *pairs: Any) -> dict[Any, Any]:
        return {self.value(key): self.value(entry) for key, entry in pairs}

    def data(self, name: str, value: Any) -> Any:
        _, _, read = _TRAVELS[name]
        parts = self.value(value)
        try:
            return read(parts)
        except Exception as error:  # a library's own
            raise ValueError(f"{type(error).__name__}: {error}") from None

    def array(self, name: str, shape: list[int]) -> np.ndarray:
        return _filled(self.take, _dtype(name), _checked(shape))

    def scalar(self, name: str, shape: list[int]) -> Any:
        return self.array(name, shape)[()]

    def objects(self, shape: list[int], *cells: Any) -> np.ndarray:
        if prod(_checked(shape)) != len(cells):
            raise ValueError(f"an array of shape {shape} has {len(cells)} cells")
        array = np.empty(len(cells), object)
        for number, cell in enumerate(cells):
            array[number] = self.value(cell)
        return array.reshape(shape)

    def tensor(self, name: str, shape: list[int]) -> Any:
        import torch

        kind = getattr(torch, name)
        if not isinstance(kind, torch.dtype):
            raise ValueError(f"{name!r} is no type of tensors")
        numbers = _filled(self.take, np.dtype(np.uint8), [prod(_checked(shape)) * kind.itemsize])
        return torch.from_numpy(numbers).view(kind).reshape(shape) if len(numbers) else torch.empty(shape, dtype=kind)


_READERS: dict[str, Callable[..., Any]] = {
    "int": lambda _, text: int(text, 16),
    "complex": lambda _, real, imaginary: complex(real, imaginary),
    "bytes": _Reader.octets,
    "dict": _Reader.dict,
    "data": _Reader.data,
    "array": _Reader.array,
    "scalar": _Reader.scalar,
    "objects": _Reader.objects,
    "tensor": _Reader.tensor,
}


def _dtype(name: str) -> np.dtype[Any]:
    if _FEWER_BITS.fullmatch(name):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is no type of arrays")
    return np.dtype(name)


def _checked(shape: list[int]) -> list[int]:
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"{shape!r} is no shape")
    return shape


def _filled(take: Callable[[int], memoryview], kind: np.dtype[Any], shape: list[int]) -> np.ndarray:
    """Return a writable array of the next bytes."""
    data = take(prod(shape) * kind.itemsize)
    if not data:  # numpy reads no array out of nothing
        return np.empty(shape, kind)
    return np.frombuffer(bytearray(data), kind).reshape(shape)
