"""The Estimator of PyTorch models with the forms of both older systems."""

from orca.estimators.torch import TorchEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderTorchEstimator(OlderForms, TorchEstimator):
    """The Estimator of PyTorch models with the older forms."""
