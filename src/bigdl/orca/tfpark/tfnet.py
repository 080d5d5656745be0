"""TFNet, as bigdl.orca.tfpark.tfnet names it."""

from orca.tfpark.net import TFNet

__all__ = ["TFNet"]
