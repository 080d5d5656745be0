"""TFPark, as zoo.tfpark names it; `tf1` is TensorFlow 1 in graph mode."""

from orca.tfpark import (
    KerasModel,
    TFDataset,
    TFEstimator,
    TFEstimatorSpec,
    TFNet,
    TFOptimizer,
    TFPredictor,
    ZooOptimizer,
    __getattr__,
)

__all__ = [
    "KerasModel",
    "TFDataset",
    "TFEstimator",
    "TFEstimatorSpec",
    "TFNet",
    "TFOptimizer",
    "TFPredictor",
    "ZooOptimizer",
]
