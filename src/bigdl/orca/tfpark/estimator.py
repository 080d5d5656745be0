"""TFEstimator, as bigdl.orca.tfpark.estimator names it."""

from orca_classic.tf1.tfpark.estimator import TFEstimator, TFEstimatorSpec

__all__ = ["TFEstimator", "TFEstimatorSpec"]
