"""Metrics: those of learn.metrics and pytorch_metrics, as older programs know them. Owns the differences from ours."""

from __future__ import annotations

from typing import Any

from orca import metrics as ours
from orca.core.metrics import MeanMetric as AccuracyMetric
from orca.core.metrics import Metric as PytorchMetric
from orca.core.metrics import PositivesMetric
from orca.core.shapes import classes_last, largest
from orca.metrics import (
    MAE,
    MSE,
    ROC,
    BinaryCrossEntropy,
    CategoricalAccuracy,
    CategoricalCrossEntropy,
    CustomizedMetric,
    KLDivergence,
    Poisson,
    PrecisionRecallCurve,
    SparseCategoricalAccuracy,
    SparseCategoricalCrossEntropy,
    Top5Accuracy,
)

__all__ = [
    "AUROC", "MAE", "MSE", "ROC", "Accuracy", "AccuracyMetric", "BinaryAccuracy", "BinaryCrossEntropy",
    "CategoricalAccuracy", "CategoricalCrossEntropy", "CustomizedMetric", "F1Score", "KLDivergence", "Poisson",
    "Precision", "PrecisionRecallCurve", "PytorchMetric", "Recall", "SparseCategoricalAccuracy",
    "SparseCategoricalCrossEntropy", "Top5Accuracy",
]  # fmt: skip


class Accuracy(ours.Accuracy):
    """Accuracy that cuts outputs (n,) or (n, 1) at 0.5, whatever the loss."""

    def __init__(self, zero_based_label: bool = True, *, threshold: float = 0.5) -> None:
        super().__init__(zero_based_label, threshold=threshold)


class BinaryAccuracy(ours.BinaryAccuracy):
    """BinaryAccuracy that cuts at 0.5, whatever the loss."""

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__(threshold)

    def __call__(self, output: Any, target: Any, threshold: float | None = None) -> Any:
        """Count a batch, cut at the given threshold; return the value over this batch."""
        if threshold is None:
            return super().__call__(output, target)
        other = BinaryAccuracy(threshold)
        value = other(output, target)
        self.merge(other.state())
        return value


class AUC(ours.AUC):
    """The exact area under the ROC curve, of any scores: the number of thresholds is accepted, and not needed."""

    def __init__(self, threshold_num: int | None = 200) -> None:
        super().__init__(threshold_num=None)


class KerasAUC(ours.AUC):
    """The area under the ROC curve of the Keras-style API, at 200 thresholds unless told otherwise."""

    name = "AUC"

    def __init__(self, threshold_num: int | None = 200) -> None:
        super().__init__(threshold_num)


class AUROC(AUC):
    """AUC under the name of pytorch_metrics."""


class _ManyClassesMetric(PositivesMetric):
    """A metric that averages over all decisions of several classes, as torchmetrics did by default.

    It cuts single outputs at 0.5 unless it has another threshold, whatever the loss.
    """

    def _cut(self, output: Any) -> tuple[Any, Any]:
        return output > (0.5 if self.threshold is None else self.threshold), 0

    def tally(self, output: Any, target: Any) -> tuple[Any, ...]:
        """Return true positives, false positives and false negatives, added up over several classes."""
        if output.ndim < 2 or output.shape[1] < 2 or output.shape == target.shape:
            return super().tally(output, target)
        scores, labels = classes_last(self.name, output, target)
        right = (largest(scores) == labels).sum()
        return right, labels.numel() - right, labels.numel() - right, 0


class Precision(_ManyClassesMetric, ours.Precision):
    """Precision that takes several classes."""


class Recall(_ManyClassesMetric, ours.Recall):
    """Recall that takes several classes."""


class F1Score(_ManyClassesMetric, ours.F1Score):
    """F1Score that takes several classes."""
