"""The Estimator of BigDL models with the forms of both older systems."""

from __future__ import annotations

from typing import Any

from orca.core.metrics import metrics_of
from orca_classic.bigdl.estimator import BigdlEstimator
from orca_classic.zoo.estimators.older import OlderForms

_BIGDL_NAMES = {"Accuracy": "Top1Accuracy"}  # of metrics of orca.learn.metrics


class OlderBigdlEstimator(OlderForms, BigdlEstimator):
    """The Estimator of BigDL models with the older forms. Its metrics have the names they had in BigDL."""

    @staticmethod
    def _methods(methods: Any) -> Any:
        if methods is None:
            return None
        metrics = metrics_of(BigdlEstimator._methods(methods))
        return [metric.named(_BIGDL_NAMES.get(metric.name, metric.name)) for metric in metrics]

    def get_validation_summary(self, tag: str | None = None) -> Any:
        """Return [step, value, time] of a metric of the validation, by its name here or in BigDL."""
        return super().get_validation_summary(_BIGDL_NAMES.get(tag or "", tag))
