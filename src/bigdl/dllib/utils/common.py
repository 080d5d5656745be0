"""Samples, tensors and the engine of BigDL, loaded on first use."""

from orca.bigdl.doors import COMMON
from orca.bigdl.doors import common as __getattr__

__all__ = COMMON
