"""The contexts of Ray, as bigdl.orca.ray names them."""

from orca.classic.ray import RayOnSparkContext
from orca.cluster.ray import OrcaRayContext

__all__ = ["OrcaRayContext", "RayOnSparkContext"]
