"""TFEstimator, as bigdl.orca.tfpark.estimator names it."""

from orca.tfpark.estimator import TFEstimator, TFEstimatorSpec

__all__ = ["TFEstimator", "TFEstimatorSpec"]
