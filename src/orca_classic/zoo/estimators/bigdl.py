"""The Estimator of BigDL models with the forms of both older systems."""

from orca_classic.bigdl.estimator import BigdlEstimator
from orca_classic.zoo.estimators.older import OlderForms


class OlderBigdlEstimator(OlderForms, BigdlEstimator):
    """The Estimator of BigDL models with the older forms."""
