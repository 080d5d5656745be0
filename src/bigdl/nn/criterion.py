"""Criterions of BigDL, loaded on first use."""

from orca_classic.bigdl.doors import CRITERIONS
from orca_classic.bigdl.doors import criterion as __getattr__

__all__ = CRITERIONS
