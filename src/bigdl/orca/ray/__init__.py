"""The contexts of Ray, as bigdl.orca.ray names them."""

from orca.cluster.ray import OrcaRayContext
from orca_classic.zoo.ray import RayOnSparkContext

__all__ = ["OrcaRayContext", "RayOnSparkContext"]
