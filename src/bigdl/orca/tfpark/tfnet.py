"""TFNet, as bigdl.orca.tfpark.tfnet names it."""

from orca_classic.tf1.tfpark.net import TFNet

__all__ = ["TFNet"]
