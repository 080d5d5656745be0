"""The Estimator of TensorFlow 2 and Keras models, as zoo.orca.learn.tf2 names it."""

from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator"]
