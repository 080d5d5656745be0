"""Import paths of older programs: every name of names.txt imports."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def absent() -> frozenset[str]:
    lines = Path(__file__).with_name("names.txt").read_text().splitlines()
    parts = [line.partition(":") for line in lines if not line.startswith("#")]
    assert len(parts) == 147
    return frozenset(name for module, _, names in parts for name in lacking(module, names.split(",")))


def lacking(module: str, names: list[str]) -> Iterator[str]:
    """Yield a module that does not import, or those of its names that it lacks."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert error.name and f"{module}.".startswith(f"{error.name}."), error  # it is there, and lacks something else
        yield module
        return
    for name in filter(None, map(str.strip, names)):
        scope: dict[str, object] = {}
        try:
            exec(f"from {module} import {name}", scope)
        except ImportError:
            yield f"{module}:{name}"
        else:
            assert name != "*" or set(scope) - {"__builtins__"} == set(importlib.import_module(module).__all__)


def test_every_name_imports() -> None:
    assert sorted(absent()) == []
