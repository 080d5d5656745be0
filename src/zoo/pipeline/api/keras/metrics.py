"""Metrics of the Keras-style API."""

from orca.bigdl.keras.objectives import AUC
from orca.classic.metrics import *

__all__ = [
    "AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy",
    "Top5Accuracy",
]  # fmt: skip
