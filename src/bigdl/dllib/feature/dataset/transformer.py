"""Steps on Samples."""

from orca_classic.bigdl.datasets import normalizer

__all__ = ["normalizer"]
