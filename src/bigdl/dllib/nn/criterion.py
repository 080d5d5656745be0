"""Criterions of BigDL, loaded on first use."""

from orca.bigdl.doors import CRITERIONS
from orca.bigdl.doors import criterion as __getattr__

__all__ = CRITERIONS
