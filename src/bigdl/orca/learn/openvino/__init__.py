"""The Estimator of OpenVINO models, as bigdl.orca.learn.openvino names it."""

from orca.classic.bigdl import Estimator

__all__ = ["Estimator"]
