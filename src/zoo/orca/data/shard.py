"""XShards, as zoo.orca.data.shard names them."""

from orca.xshards import SparkXShards, XShards

__all__ = ["SparkXShards", "XShards"]
