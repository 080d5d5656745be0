"""TFPark: TensorFlow 1 programs of Analytics Zoo and BigDL. Names load on first use; `tf1` turns graph mode on."""

from __future__ import annotations

import importlib
from typing import Any

from orca.frameworks.tfgraph.optimizers import ZooOptimizer
from orca.tfpark.dataset import TFDataset
from orca.tfpark.estimator import TFEstimator, TFEstimatorSpec
from orca.tfpark.model import KerasModel
from orca.tfpark.net import TFNet
from orca.tfpark.optimizer import TFOptimizer
from orca.tfpark.predictor import TFPredictor

__all__ = [
    "KerasModel", "TFDataset", "TFEstimator", "TFEstimatorSpec", "TFNet", "TFOptimizer", "TFPredictor", "ZooOptimizer",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "tf1":
        raise AttributeError(f"module 'orca.tfpark' has no attribute {name!r}")
    return importlib.import_module("orca.tfpark.tf1")
