"""The context of Ray, as zoo.ray names it."""

from orca_classic.zoo.ray import RayContext

__all__ = ["RayContext"]
