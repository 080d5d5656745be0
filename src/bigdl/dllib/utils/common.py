"""Samples, tensors and the engine of BigDL, loaded on first use."""

from orca_classic.bigdl.doors import COMMON
from orca_classic.bigdl.doors import common as __getattr__

__all__ = COMMON
