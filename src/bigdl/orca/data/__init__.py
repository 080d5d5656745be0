"""XShards, as bigdl.orca.data names them."""

from orca.data.image.reading import read_images
from orca.data.shard import SparkXShards, XShards

__all__ = ["SparkXShards", "XShards", "read_images"]
