"""The main callback, as bigdl.orca.learn.pytorch.callbacks.maincallback names it."""

from orca.callbacks import MainCallback
from orca_classic.zoo.callbacks import make_only_mainCallback

__all__ = ["MainCallback", "make_only_mainCallback"]
