"""Values: frozen classes that are a function with settings. Owns how a row of a table becomes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, make_dataclass
from functools import cache
from typing import Any


def value_class(base: type, name: str, function: Callable[..., Any], words: str) -> Any:
    """Return a frozen dataclass whose `function` is this one, and whose fields are its arguments but the first two.

    Args:
        base: The base class; the new class must be a name of its module, for pickles.
        name: The name of the class.
        function: The function.
        words: The docstring.
    """
    _, _, *own = inspect.signature(function).parameters.values()
    fields: list[Any] = [
        (each.name, Any) if each.default is each.empty else (each.name, Any, field(default=each.default))
        for each in own
    ]  # fmt: skip
    scope = {"__doc__": words, "function": staticmethod(function)}
    kind = make_dataclass(name, fields, bases=(base,), namespace=scope, frozen=True)
    kind.__module__ = base.__module__
    return kind


def computed(thing: Any, *inputs: Any) -> Any:
    """Return the result of a value's function for these inputs, and for the value's fields as arguments."""
    function = type(thing).function
    return function(*inputs, **{name: getattr(thing, name) for name in _settings(function)})


@cache  # a signature for every image takes longer than many steps
def _settings(function: Callable[..., Any]) -> list[str]:
    _, _, *names = inspect.signature(function).parameters
    return names
