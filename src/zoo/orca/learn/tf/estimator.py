"""The Estimator of TensorFlow 1, as zoo.orca.learn.tf.estimator names it."""

from orca_classic.zoo.tf1 import Estimator, save_model_dir

__all__ = ["Estimator", "save_model_dir"]
