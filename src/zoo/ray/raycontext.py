"""The context of Ray, as zoo.ray.raycontext names it."""

from orca.classic.ray import RayContext

__all__ = ["RayContext"]
