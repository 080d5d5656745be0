"""TFPark: TensorFlow 1 programs of Analytics Zoo and BigDL. Names load on first use; `tf1` turns graph mode on."""

from __future__ import annotations

import importlib
from typing import Any

from orca_classic.tf1.graph.optimizers import ZooOptimizer
from orca_classic.tf1.tfpark.dataset import TFDataset
from orca_classic.tf1.tfpark.estimator import TFEstimator, TFEstimatorSpec
from orca_classic.tf1.tfpark.lost_names import put_back
from orca_classic.tf1.tfpark.model import KerasModel
from orca_classic.tf1.tfpark.net import TFNet
from orca_classic.tf1.tfpark.optimizer import TFOptimizer
from orca_classic.tf1.tfpark.predictor import TFPredictor

__all__ = [
    "KerasModel", "TFDataset", "TFEstimator", "TFEstimatorSpec", "TFNet", "TFOptimizer", "TFPredictor", "ZooOptimizer",
]  # fmt: skip

put_back()


def __getattr__(name: str) -> Any:
    if name != "tf1":
        raise AttributeError(f"module 'orca_classic.tf1.tfpark' has no attribute {name!r}")
    return importlib.import_module("orca_classic.tf1.tfpark.tf1")
