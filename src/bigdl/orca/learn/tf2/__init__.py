"""The Estimator of TensorFlow 2 and Keras models, as bigdl.orca.learn.tf2 names it."""

from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator"]
