"""Samples, tensors and the engine of BigDL."""

from orca.bigdl.engine import *
from orca.bigdl.engine import __all__ as NAMES

__all__ = NAMES
