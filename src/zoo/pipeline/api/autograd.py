"""Arithmetic of variables, loaded on first use."""

from orca.bigdl.doors import AUTOGRAD
from orca.bigdl.doors import autograd as __getattr__

__all__ = AUTOGRAD
