"""Checkpoints, as bigdl.orca.learn.pytorch.callbacks.model_checkpoint names them."""

from orca.callbacks import ModelCheckpoint

__all__ = ["ModelCheckpoint"]
