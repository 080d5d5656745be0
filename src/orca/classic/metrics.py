"""Metrics: those of pytorch_metrics, as programs of BigDL Orca know them. Owns what differs from ours."""

# ruff: noqa: F405
from __future__ import annotations

from orca.core.metrics import MeanMetric as AccuracyMetric
from orca.core.metrics import Metric as PytorchMetric
from orca.metrics import *  # noqa: F403
from orca.metrics import AUC

__all__ = [
    "AUROC", "MAE", "MSE", "ROC", "Accuracy", "AccuracyMetric", "BinaryAccuracy", "BinaryCrossEntropy",
    "CategoricalAccuracy", "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Poisson",
    "Precision", "PrecisionRecallCurve", "PytorchMetric", "Recall", "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip


class AUROC(AUC):
    """The exact area under the ROC curve, of any scores: AUC without thresholds."""

    def __init__(self) -> None:
        super().__init__(threshold_num=None)
