"""TFDataset, as bigdl.orca.tfpark.tf_dataset names it."""

from orca_classic.tf1.tfpark.dataset import TensorMeta, TFDataset

__all__ = ["TFDataset", "TensorMeta"]
