"""Metrics, as zoo.orca.learn.metrics names them."""

from orca.core.metrics import Metric
from orca_classic.zoo.metrics import *
from orca_classic.zoo.metrics import AUC

__all__ = [
    "AUC", "MAE", "MSE", "ROC", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Metric", "Poisson", "Precision",
    "PrecisionRecallCurve", "Recall", "SparseCategoricalAccuracy", "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip
