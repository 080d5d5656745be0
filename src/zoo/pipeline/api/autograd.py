"""Arithmetic of variables, loaded on first use."""

from orca_classic.bigdl.doors import AUTOGRAD
from orca_classic.bigdl.doors import autograd as __getattr__

__all__ = AUTOGRAD
