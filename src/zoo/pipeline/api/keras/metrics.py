"""Metrics of the Keras-style API."""

from orca.classic.metrics import *
from orca.classic.metrics import KerasAUC as AUC

__all__ = [
    "AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy",
    "Top5Accuracy",
]  # fmt: skip
