"""Data before training: XShards, frames, images, and files wherever they lie. Owns the names of its public parts."""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    "RayXShards": "orca.data.ray_shards",
    "SharedValue": "orca.data.shard",
    "SparkXShards": "orca.data.shard",
    "XShards": "orca.data.shard",
    "spark_df_to_pd_sparkxshards": "orca.data.shard",
    "spark_df_to_ray_dataset": "orca.data.shard",
}
_MODULES = ("file", "pandas", "ray_shards", "shard", "transformer")


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'orca.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_NAMES, *_MODULES])
