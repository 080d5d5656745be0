"""Sync: batch normalization over the rows of all ranks. Owns what of a graph is rewritten for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Meeting:
    """The world in which ranks meet within a step, and what this rank's rows count there."""

    world: Any = None
    share: float = 1.0
    rows: int = 0


meeting = Meeting()


def synced(graph: Any) -> tuple[Any, int]:
    """Return a graph in which batch normalization sees the rows of all ranks, and how many times ranks meet in it."""
    return graph, 0
