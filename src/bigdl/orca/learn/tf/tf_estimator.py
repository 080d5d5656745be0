"""The estimator of a model function, as bigdl.orca.learn.tf.tf_estimator names it."""

from orca_classic.tf1.tfpark.estimator import TFEstimator

__all__ = ["TFEstimator"]
