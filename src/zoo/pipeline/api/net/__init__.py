"""Nets of TensorFlow, as zoo.pipeline.api.net names them."""

from orca.tfpark import TFDataset, TFNet, TFOptimizer, TFPredictor

__all__ = ["TFDataset", "TFNet", "TFOptimizer", "TFPredictor"]
