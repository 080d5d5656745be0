"""The Estimator of graphs of TensorFlow 1 with the forms of both older systems."""

from orca_classic.tf1.estimators.graph import GraphEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderGraphEstimator(OlderForms, GraphEstimator):  # type: ignore[misc]
    """The Estimator of graphs of TensorFlow 1 with the older forms."""
