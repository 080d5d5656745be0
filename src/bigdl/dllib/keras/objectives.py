"""Losses of the Keras-style API, loaded on first use."""

from orca.bigdl.doors import OBJECTIVES
from orca.bigdl.doors import objective as __getattr__

__all__ = OBJECTIVES
