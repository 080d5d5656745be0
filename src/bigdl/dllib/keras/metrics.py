"""Metrics of the Keras-style API."""

from orca.metrics import *

__all__ = [
    "AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy",
    "Top5Accuracy",
]  # fmt: skip
