"""Losses of the Keras-style API, loaded on first use."""

from orca_classic.bigdl.doors import OBJECTIVES
from orca_classic.bigdl.doors import objective as __getattr__

__all__ = OBJECTIVES
