"""XShards as a dataset of TensorFlow, as zoo.orca.data.tf.data names them."""

from orca_classic.data.tf.data import Dataset

__all__ = ["Dataset"]
