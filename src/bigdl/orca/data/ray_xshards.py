"""XShards in Ray, as bigdl.orca.data.ray_xshards names them."""

from orca.data.ray_shards import RayXShards

__all__ = ["RayXShards"]
