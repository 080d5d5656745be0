"""XShards, as zoo.orca.data names them."""

from orca.data.ray_shards import RayXShards
from orca.data.shard import SharedValue, SparkXShards, XShards, spark_df_to_ray_dataset
from orca_classic.data.image.reading import read_images

__all__ = ["RayXShards", "SharedValue", "SparkXShards", "XShards", "read_images", "spark_df_to_ray_dataset"]
