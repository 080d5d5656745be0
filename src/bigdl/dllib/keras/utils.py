"""Shapes of the Keras-style API."""

from orca_classic.bigdl.datasets import remove_batch, toMultiShape

__all__ = ["remove_batch", "toMultiShape"]
