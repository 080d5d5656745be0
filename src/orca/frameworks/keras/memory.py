"""Memory: the part of a Keras fit that lives in its callbacks, as plain data. Owns which attributes a checkpoint keeps.

A callback has no method for its state: it keeps it in attributes, such as the best value so far. Its memory are the
attributes that it has changed since the fit began, as far as they are plain data: numbers, texts, arrays, and lists,
tuples, sets and dicts of them. Arguments of the callback do not change, so a resumed program may pass others.
"""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

_COMPARISONS = ("less", "greater")  # functions that Keras sets in a callback when it knows the better direction
_BY_NAME = "()"  # ends the name of an attribute that is kept as the name of such a function


class Memory:
    """The memory of a fit's callbacks.

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
            changes = {a for a, digest in _digests(callback).items() if self.start[name].get(a) != digest}
            memory[name] = {a: copy.deepcopy(value) for a, value in _plain_attributes(callback).items() if a in changes}
        return memory

    def restore(self, memory: dict[str, dict[str, Any]]) -> None:
        """Give callbacks the attributes that those of the same class and place had; others begin anew."""
        for name, attributes in memory.items():
            if name in self.callbacks:
                vars(self.callbacks[name]).update(
                    (attribute.removesuffix(_BY_NAME), _comparison(value) if attribute.endswith(_BY_NAME) else value)
                    for attribute, value in attributes.items()
                )


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


def _digests(callback: Any) -> dict[str, bytes]:
    """Return a digest of each attribute that is plain data."""
    return {name: hashlib.sha256(pickle.dumps(value)).digest() for name, value in _plain_attributes(callback).items()}


def _plain_attributes(callback: Any) -> dict[str, Any]:
    attributes = {}
    for name, value in vars(callback).items():
        if _is_comparison(value):
            attributes[name + _BY_NAME] = value.__name__
        elif _is_plain(value):
            attributes[name] = value
    return attributes


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(map(_is_plain, (*value, *value.values())))
    if kind in (list, tuple, set):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind not in "OSUMm" and not value.dtype.names
    return value is None or kind in (bool, int, float, str)


def _is_comparison(value: Any) -> bool:
    return getattr(value, "__name__", None) in _COMPARISONS and str(value.__module__).startswith("keras.")


def _comparison(name: str) -> Any:
    import keras

    return getattr(keras.ops, _COMPARISONS[_COMPARISONS.index(name)])
