"""Metrics, as zoo.orca.learn.metrics names them."""

# ruff: noqa: F405
from orca.core.metrics import *

__all__ = [
    "AUC", "MAE", "MSE", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Metric", "Poisson", "Precision",
    "Recall", "SparseCategoricalAccuracy", "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip
