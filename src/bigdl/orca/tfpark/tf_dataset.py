"""TFDataset, as bigdl.orca.tfpark.tf_dataset names it."""

from orca.tfpark.dataset import TensorMeta, TFDataset

__all__ = ["TFDataset", "TensorMeta"]
