"""XShards: data of any Python kind, in shards over a cluster."""

from orca.xshards.shard import SparkXShards, XShards

__all__ = ["SparkXShards", "XShards"]
