"""The Estimator of OpenVINO models, as zoo.orca.learn.openvino names it."""

from orca.classic.zoo import Estimator

__all__ = ["Estimator"]
