"""The estimator of a model function, as bigdl.orca.learn.tf.tf_estimator names it."""

from orca.tfpark.estimator import TFEstimator

__all__ = ["TFEstimator"]
