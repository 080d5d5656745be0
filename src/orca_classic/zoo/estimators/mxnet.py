"""The Estimator of MXNet models with the forms of both older systems."""

from orca_classic.mxnet.estimator import MxnetEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderMxnetEstimator(OlderForms, MxnetEstimator):
    """The Estimator of MXNet models with the older forms."""
