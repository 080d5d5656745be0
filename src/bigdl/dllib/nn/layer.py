"""Layers of BigDL, loaded on first use."""

from orca_classic.bigdl.doors import LAYERS
from orca_classic.bigdl.doors import layer as __getattr__

__all__ = LAYERS
