"""Operator: the public name, loaded on first use. `from orca.operator import TrainingOperator`."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["TrainingOperator"]  # noqa: F822 (it comes from __getattr__: torch is loaded with it)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"there is no name {name!r} in this module; it has {', '.join(__all__)}.")
    return getattr(importlib.import_module("orca.frameworks.torch.operator"), name)


def __dir__() -> list[str]:
    return __all__
