"""Resources: sizes of memory and processes, as `bigdl.orca.ray.utils` tells them."""

from __future__ import annotations

import re
from typing import Any

import psutil

from orca.errors import ArgumentError

__all__ = ["get_parent_pid", "is_local", "resource_to_bytes", "to_list"]
_UNITS = {"b": 1, "k": 1000, "m": 1000**2, "g": 1000**3}


def to_list(input: Any) -> list[Any]:
    """Return a list or tuple as a list, anything else as a list of one."""
    return list(input) if isinstance(input, list | tuple) else [input]


def resource_to_bytes(resource_str: str | None) -> int | str | None:
    """Return the bytes of a size such as "50b", "100k", "250m" or "30g"; nothing stays nothing."""
    if not resource_str:
        return resource_str
    match = re.fullmatch(r"(\d+)([bkmg])", resource_str.lower())
    if match is None:
        raise ArgumentError(f"a size is a whole number with b, k, m or g, as '30g'; got {resource_str!r}.")
    return int(match[1]) * _UNITS[match[2]]


def is_local(sc: Any) -> bool:
    """Return whether a SparkContext runs on this machine."""
    master = sc.getConf().get("spark.master")
    return master == "local" or master.startswith("local[")


def get_parent_pid(pid: int) -> int:
    """Return the process id of a process's parent."""
    return psutil.Process(pid).ppid()
