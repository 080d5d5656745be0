"""ZooOptimizer, as zoo.tfpark.zoo_optimizer names it."""

from orca_classic.tf1.tfpark import ZooOptimizer

__all__ = ["ZooOptimizer"]
