"""Callbacks: functions on a list of callbacks, under the names that older releases gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orca.callbacks import MainCallback, TqdmCallback
from orca.frameworks.torch.hooks import TorchHooks


def make_only_mainCallback(callbacks: list[Any]) -> None:
    """Put a plain MainCallback first in a list that has none, or the one it has.

    Raises:
        ArgumentError: There are two, or something is no callback.
    """
    hooks = TorchHooks(callbacks)
    callbacks[:] = hooks.callbacks if hooks.main is not None else (MainCallback(), *hooks.callbacks)


def is_tqdm_exists(callbacks: Sequence[Any] | None) -> bool:
    """Say whether there is a TqdmCallback among them."""
    return any(isinstance(callback, TqdmCallback) for callback in callbacks or ())
