"""Layers of BigDL, loaded on first use."""

from orca.bigdl.doors import LAYERS
from orca.bigdl.doors import layer as __getattr__

__all__ = LAYERS
