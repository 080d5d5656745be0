"""The end after so many steps, as bigdl.orca.learn.pytorch.callbacks.maxsteps names it."""

from orca.callbacks import MaxstepsCallback

__all__ = ["MaxstepsCallback"]
