"""The Estimator of OpenVINO models, as bigdl.orca.learn.openvino.estimator names it."""

from orca.estimator import Estimator
from orca.faces.openvino import OpenvinoEstimator

__all__ = ["Estimator", "OpenvinoEstimator"]
