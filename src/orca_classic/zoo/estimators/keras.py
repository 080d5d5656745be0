"""The Estimator of Keras models with the forms of both older systems."""

from orca.estimators.keras import KerasEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderKerasEstimator(OlderForms, KerasEstimator):
    """The Estimator of Keras models with the older forms."""
