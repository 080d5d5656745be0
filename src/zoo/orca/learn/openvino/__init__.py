"""The Estimator of OpenVINO models, as zoo.orca.learn.openvino names it."""

from orca.estimators import Estimator

__all__ = ["Estimator"]
