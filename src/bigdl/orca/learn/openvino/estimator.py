"""The Estimator of OpenVINO models, as bigdl.orca.learn.openvino.estimator names it."""

from orca.classic.bigdl import Estimator
from orca.estimators.openvino import OpenvinoEstimator

__all__ = ["Estimator", "OpenvinoEstimator"]
