"""The Estimator of Keras models with the forms of both older systems."""

from __future__ import annotations

from typing import Any

from orca.core.source import DataSpec, Source
from orca.errors import ArgumentError
from orca.estimators.keras import KerasEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderKerasEstimator(OlderForms, KerasEstimator):
    """The Estimator of Keras models with the older forms. One without a model waits for `load`."""

    def get_model(self, sample_input: Any = None, set_weights: bool = True) -> Any:
        """Return the model, as KerasEstimator.get_model does."""
        self._check_model()
        return super().get_model(sample_input, set_weights)

    def _source(self, data: Any, spec: DataSpec) -> Source:
        self._check_model()
        return super()._source(data, spec)

    def _check_model(self) -> None:
        if self.learner.creator is no_model:
            no_model({})


def no_model(config: dict[str, Any]) -> Any:
    """Refuse to make a model, in the place of a creator that was not given."""
    raise ArgumentError("the Estimator has no model yet. Call load(path) first, or pass model_creator= to from_keras.")
