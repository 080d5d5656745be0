"""TFOptimizer, as zoo.tfpark.tf_optimizer names it."""

from orca_classic.tf1.tfpark.optimizer import TFOptimizer

__all__ = ["TFOptimizer"]
