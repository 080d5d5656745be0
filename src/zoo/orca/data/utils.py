"""Spark DataFrames as XShards, as zoo.orca.data.utils names it."""

from orca.data.shard import spark_df_to_pd_sparkxshards

__all__ = ["spark_df_to_pd_sparkxshards"]
