"""The context of Ray, as bigdl.orca.ray.raycontext names it."""

from orca.cluster.ray import OrcaRayContext

__all__ = ["OrcaRayContext"]
