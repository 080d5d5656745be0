"""Datasets of images in Parquet, as zoo.orca.data.image.parquet_dataset names them."""

from orca_classic.data.image.parquet_dataset import *
from orca_classic.data.image.parquet_dataset import __all__ as names

__all__ = names
