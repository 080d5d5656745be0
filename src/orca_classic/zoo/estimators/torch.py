"""The Estimator of PyTorch models with the forms of both older systems."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

from orca.core.source import DataSpec
from orca.estimators.torch import TorchEstimator
from orca_classic.zoo.estimators.older import OlderForms
from orca_classic.zoo.results import as_results


class OlderTorchEstimator(OlderForms, TorchEstimator):
    """The Estimator of PyTorch models with the older forms.

    Numbers of its statistics have the methods of tensors, and a column of numbers in a Ray Dataset has the shape
    (rows, 1) as a model's input.
    """

    @wraps(TorchEstimator.fit)
    def fit(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Train, as TorchEstimator.fit does."""
        return as_results(super().fit(*args, **options))

    @wraps(TorchEstimator.evaluate)
    def evaluate(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Evaluate, as TorchEstimator.evaluate does."""
        return as_results(super().evaluate(*args, **options))

    def _spec(self, *args: Any, **options: Any) -> DataSpec:
        return replace(super()._spec(*args, **options), unit_columns=True)
