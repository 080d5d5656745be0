"""The Estimator of OpenVINO models, as zoo.orca.learn.openvino.estimator names it."""

from orca.classic.zoo import Estimator
from orca.estimators.openvino import OpenvinoEstimator

__all__ = ["Estimator", "OpenvinoEstimator"]
