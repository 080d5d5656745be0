"""The Estimator of OpenVINO models with the forms of both older systems."""

from orca.estimators.openvino import OpenvinoEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderOpenvinoEstimator(OlderForms, OpenvinoEstimator):
    """The Estimator of OpenVINO models with the older forms."""
