"""Checkpoints, as zoo.orca.learn.utils names what looks for them."""

from orca.classic.checkpoints import find_latest_checkpoint

__all__ = ["find_latest_checkpoint"]
