"""XShards, as bigdl.orca.data.shard names them."""

from orca.data.shard import SharedValue, SparkXShards, XShards, spark_df_to_ray_dataset

__all__ = ["SharedValue", "SparkXShards", "XShards", "spark_df_to_ray_dataset"]
