"""Memory: the part of a Keras fit that lives in its callbacks, as plain data. Owns which attributes a checkpoint keeps.

A callback has no method for its state: it keeps it in attributes, such as the best value so far. Its memory are the
attributes that it has changed since the fit began, as far as they are plain data: numbers, texts, arrays, and lists,
tuples and dicts of them. Arguments of the callback do not change, so a resumed program may pass others.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

_COMPARISONS = ("less", "greater")  # functions that Keras sets in a callback when it knows what is better


class Memory:
    """The callbacks of a fit, seen as what they remember.

    Args:
        callbacks: The callbacks, right after their `on_train_begin`.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self.start = {name: _digests(callback) for name, callback in self.callbacks.items()}

    def kept(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of each callback that have changed, copied."""
        memory = {}
        for name, callback in self.callbacks.items():
            changed = [a for a, digest in _digests(callback).items() if self.start[name].get(a) != digest]
            memory[name] = {attribute: copy.deepcopy(vars(callback)[attribute]) for attribute in changed}
        return memory

    def restore(self, memory: dict[str, dict[str, Any]]) -> None:
        """Give callbacks the attributes that those of the same class and place had; others begin anew."""
        for name, attributes in memory.items():
            if name in self.callbacks:
                vars(self.callbacks[name]).update(attributes)


def encode(tree: Any) -> tuple[Any, list[np.ndarray]]:
    """Return plain data as (JSON, arrays).

    Raises:
        TypeError: A part of it is no plain data.
    """
    arrays: list[np.ndarray] = []
    return _encoded(tree, arrays), arrays


def decode(plain: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return the data that was encoded."""
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    if kind == "array":
        return arrays[content]
    if kind == "scalar":
        return arrays[content][()]
    if kind == "comparison":
        import keras

        return getattr(keras.ops, _COMPARISONS[_COMPARISONS.index(content)])
    if kind == "dict":
        return {decode(key, arrays): decode(value, arrays) for key, value in content}
    return {"list": list, "tuple": tuple, "set": set}[kind](decode(item, arrays) for item in content)


def plain_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs as numbers, texts and lists of them, with the entries of dicts in them; other kinds are left out."""
    plain: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            plain |= plain_logs(value)
        else:
            with suppress(TypeError, ValueError):
                # TensorFlow's own conversion to an array fails for one bfloat16.
                array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
                plain[name] = _plain(array.tolist())
    return plain


def continue_logs(callbacks: Sequence[Any], epoch: int) -> None:
    """Let loggers of a resumed fit append to their files; remove the lines of epochs that are trained again."""
    for callback in callbacks:
        if any(kind.__name__ == "CSVLogger" for kind in type(callback).__mro__) and not callback.append:
            callback.append = True
            if os.path.exists(callback.filename):
                with open(callback.filename) as file:
                    lines = file.readlines()
                with open(callback.filename, "w") as file:
                    file.writelines(line for line in lines if not _is_from(line, callback.sep, epoch))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):  # as TensorFlow has texts
        return value.decode(errors="replace")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is no plain data")


def _is_from(line: str, separator: str, epoch: int) -> bool:
    number = line.split(separator)[0]
    return number.isdigit() and int(number) >= epoch


def _names(callbacks: Sequence[Any]) -> list[str]:
    """Return a name for each callback: its class, and its number among those of the class."""
    counts: Counter[str] = Counter()
    names = []
    for callback in callbacks:
        kind = type(callback).__name__
        names.append(f"{kind}-{counts[kind]}")
        counts[kind] += 1
    return names


def _digests(callback: Any) -> dict[str, str]:
    """Return a digest of each attribute that is plain data."""
    digests = {}
    for name, value in vars(callback).items():
        try:
            plain, arrays = encode(value)
        except TypeError:
            continue
        digest = hashlib.sha256(json.dumps(plain).encode())
        for array in arrays:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        digests[name] = digest.hexdigest()
    return digests


def _encoded(value: Any, arrays: list[np.ndarray]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (list, tuple, set):
        return {kind.__name__: [_encoded(item, arrays) for item in value]}
    if kind is dict:
        return {"dict": [[_encoded(key, arrays), _encoded(item, arrays)] for key, item in value.items()]}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSUMm" and not value.dtype.names:
        arrays.append(np.asarray(value))
        return {"array" if kind is np.ndarray else "scalar": len(arrays) - 1}
    name = getattr(value, "__name__", None)
    if name in _COMPARISONS and str(getattr(value, "__module__", "")).startswith("keras."):
        return {"comparison": name}
    raise TypeError(f"{kind.__name__} is no plain data")
