"""Metrics one can call, as zoo.orca.learn.pytorch.pytorch_metrics names them."""

from orca_classic.zoo.metrics import *

__all__ = [
    "AUROC", "MAE", "MSE", "ROC", "Accuracy", "AccuracyMetric", "BinaryAccuracy", "BinaryCrossEntropy",
    "CategoricalAccuracy", "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Poisson",
    "Precision", "PrecisionRecallCurve", "PytorchMetric", "Recall", "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip
