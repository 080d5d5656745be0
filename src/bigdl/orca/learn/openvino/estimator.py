"""The Estimator of OpenVINO models, as bigdl.orca.learn.openvino.estimator names it."""

from orca.estimators.openvino import OpenvinoEstimator
from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator", "OpenvinoEstimator"]
