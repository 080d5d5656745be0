"""The callback to derive from, as bigdl.orca.learn.pytorch.callbacks.base names it."""

from orca.callbacks import Callback

__all__ = ["Callback"]
