"""The Estimator of BigDL models with the forms of both older systems."""

from __future__ import annotations

from functools import wraps
from typing import Any

from orca_classic.bigdl.estimator import BigdlEstimator
from orca_classic.zoo.estimators.older import OlderForms

_BIGDL_NAMES = {"Accuracy": "Top1Accuracy"}  # of metrics of orca.learn.metrics


class OlderBigdlEstimator(OlderForms, BigdlEstimator):
    """The Estimator of BigDL models with the older forms. Its evaluations have BigDL's names of metrics."""

    @wraps(BigdlEstimator.evaluate)
    def evaluate(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """Evaluate, as BigdlEstimator.evaluate does."""
        statistics = super().evaluate(*args, **options)
        return {_BIGDL_NAMES.get(key, key): value for key, value in statistics.items()}
