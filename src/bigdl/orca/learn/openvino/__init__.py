"""The Estimator of OpenVINO models, as bigdl.orca.learn.openvino names it."""

from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator"]
