"""Metrics, as zoo.orca.learn.metrics names them."""

from orca.classic.metrics import *
from orca.classic.metrics import AUC
from orca.core.metrics import Metric

__all__ = [
    "AUC", "MAE", "MSE", "ROC", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Metric", "Poisson", "Precision",
    "PrecisionRecallCurve", "Recall", "SparseCategoricalAccuracy", "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip
