"""Metrics of the Keras-style API."""

from orca_classic.zoo.metrics import *
from orca_classic.zoo.metrics import KerasAUC as AUC

__all__ = [
    "AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy",
    "Top5Accuracy",
]  # fmt: skip
