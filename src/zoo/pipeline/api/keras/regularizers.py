"""Penalties on weights."""

from orca_classic.bigdl.datasets import l1, l1l2, l2

__all__ = ["l1", "l1l2", "l2"]
