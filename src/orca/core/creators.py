"""Creators: functions of the user's that make a model, a part of one, or data on the worker. Owns calling them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from orca.errors import ArgumentError


def call_creator(creator: Callable[..., Any] | None, *arguments: Any) -> Any:
    """Call a creator with as many of the arguments as it takes."""
    if not callable(creator):
        raise ArgumentError(
            f"expected an object or a creator function; got {type(creator).__name__} {creator!r}. "
            "Pass the object itself, or a function that makes it on the worker.",
            code="bad-creator",
        )
    if isinstance(creator, type):
        return creator(*arguments[: required(creator)])  # its defaults are not meant for a config
    parameters = inspect.signature(creator).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return creator(*arguments)
    places = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    return creator(*arguments[:places])


def create_data(creator: Callable[..., Any], config: dict[str, Any], size: int) -> Any:
    """Call a data creator with config and batch_size, whichever of them it takes."""
    parameters = inspect.signature(creator).parameters
    if "batch_size" in parameters or required(creator) > 1:
        return creator(config, size)
    if parameters:
        # The oldest creators read the batch size from their config.
        return creator({"batch_size": size, **config})
    return creator()


def required(function: Callable[..., Any]) -> int:
    """Return how many arguments a function must be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
