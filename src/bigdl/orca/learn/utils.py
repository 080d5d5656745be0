"""Checkpoints, as bigdl.orca.learn.utils names what looks for them."""

from orca_classic.zoo.checkpoints import find_latest_checkpoint

__all__ = ["find_latest_checkpoint"]
