"""The main callback, as bigdl.orca.learn.pytorch.callbacks.maincallback names it."""

from orca.frameworks.torch.callbacks import MainCallback
from orca.frameworks.torch.callbacks.older import make_only_mainCallback

__all__ = ["MainCallback", "make_only_mainCallback"]
