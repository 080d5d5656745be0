"""Keras 1 on BigDL, which is refused."""

from orca_classic.bigdl.doors import BACKEND
from orca_classic.bigdl.doors import backend as __getattr__

__all__ = BACKEND
