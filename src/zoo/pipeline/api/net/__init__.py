"""Models in files, graphs, and nets of TensorFlow."""

from orca.bigdl.net import GraphNet, Net
from orca.tfpark import TFDataset, TFNet, TFOptimizer, TFPredictor

__all__ = ["GraphNet", "Net", "TFDataset", "TFNet", "TFOptimizer", "TFPredictor"]
