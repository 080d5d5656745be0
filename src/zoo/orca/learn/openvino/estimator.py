"""The Estimator of OpenVINO models, as zoo.orca.learn.openvino.estimator names it."""

from orca.estimators.openvino import OpenvinoEstimator
from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator", "OpenvinoEstimator"]
