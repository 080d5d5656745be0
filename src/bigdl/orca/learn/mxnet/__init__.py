"""The Estimator of MXNet models, as bigdl.orca.learn.mxnet names it."""

from orca_classic.mxnet import create_config
from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator", "create_config"]
