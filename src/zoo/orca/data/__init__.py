"""XShards, as zoo.orca.data names them."""

from orca.xshards import SparkXShards, XShards

__all__ = ["SparkXShards", "XShards"]
