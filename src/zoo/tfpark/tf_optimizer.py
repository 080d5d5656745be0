"""TFOptimizer, as zoo.tfpark.tf_optimizer names it."""

from orca.tfpark.optimizer import TFOptimizer

__all__ = ["TFOptimizer"]
