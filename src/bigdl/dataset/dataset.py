"""Sets of data."""

from orca.bigdl.datasets import DataSet

__all__ = ["DataSet"]
