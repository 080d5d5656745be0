"""XShards, as zoo.orca.data.shard names them."""

from orca.data.shard import SparkXShards, XShards

__all__ = ["SparkXShards", "XShards"]
