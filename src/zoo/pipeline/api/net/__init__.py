"""Models in files, graphs, and nets of TensorFlow."""

from orca_classic.bigdl.net import GraphNet, Net
from orca_classic.tf1.tfpark import TFDataset, TFNet, TFOptimizer, TFPredictor

__all__ = ["GraphNet", "Net", "TFDataset", "TFNet", "TFOptimizer", "TFPredictor"]
