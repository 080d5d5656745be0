"""TFDataset, as zoo.tfpark.tf_dataset names it."""

from orca.tfpark.dataset import TFDataset, TensorMeta

__all__ = ["TFDataset", "TensorMeta"]
