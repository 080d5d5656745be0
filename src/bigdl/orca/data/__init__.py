"""XShards, as bigdl.orca.data names them."""

from orca.data.shard import SparkXShards, XShards

__all__ = ["SparkXShards", "XShards"]
