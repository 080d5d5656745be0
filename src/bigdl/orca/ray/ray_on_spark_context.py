"""The context of a Ray on Spark, as bigdl.orca.ray.ray_on_spark_context names it."""

from orca_classic.zoo.ray import RayOnSparkContext

__all__ = ["RayOnSparkContext"]
