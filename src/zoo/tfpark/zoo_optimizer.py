"""ZooOptimizer, as zoo.tfpark.zoo_optimizer names it."""

from orca.tfpark import ZooOptimizer

__all__ = ["ZooOptimizer"]
