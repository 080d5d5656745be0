"""Sets of data."""

from orca_classic.bigdl.datasets import DataSet

__all__ = ["DataSet"]
