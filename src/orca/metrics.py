"""Metrics: the public names. `from orca.metrics import Accuracy`."""

# ruff: noqa: F405
from orca.core.metrics import *  # noqa: F403

__all__ = [
    "AUC", "MAE", "MSE", "ROC", "Accuracy", "BinaryAccuracy", "BinaryCrossEntropy", "CategoricalAccuracy",
    "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Metric", "Poisson", "Precision",
    "PrecisionRecallCurve", "Recall", "SparseCategoricalAccuracy", "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
