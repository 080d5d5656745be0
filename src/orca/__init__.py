"""Orca: train, evaluate and serve standard models on a laptop or a cluster with one Estimator.

Names load on first use: `import orca` loads no pyspark, ray, torch or tensorflow. An `import mxnet` that comes after it
finds the numpy that MXNet was made for.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orca.core.imports import ImportHook

ImportHook.install()

_NAMES = {
    "Estimator": "orca.estimators",
    "OrcaContext": "orca.cluster.context",
    "init_orca_context": "orca.cluster.context",
    "stop_orca_context": "orca.cluster.context",
    "XShards": "orca.data.shard",
    "set_verbosity": "orca.monitor.verbosity",
}
_MODULES = ("callbacks", "data", "errors", "metrics", "operator", "triggers")

__all__ = [
    *("Estimator", "OrcaContext", "XShards", "__version__", "init_orca_context", "set_verbosity", "stop_orca_context"),
]

try:
    __version__ = version("orca-dl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"orca.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'orca' has no attribute {name!r}")
    return getattr(importlib.import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
