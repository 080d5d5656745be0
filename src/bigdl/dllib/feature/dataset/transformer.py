"""Steps on Samples."""

from orca.bigdl.datasets import normalizer

__all__ = ["normalizer"]
