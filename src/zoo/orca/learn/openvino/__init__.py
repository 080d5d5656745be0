"""The Estimator of OpenVINO models, as zoo.orca.learn.openvino names it."""

from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator"]
