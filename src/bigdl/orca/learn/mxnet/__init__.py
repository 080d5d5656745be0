"""The Estimator of MXNet models, as bigdl.orca.learn.mxnet names it."""

from orca.classic.bigdl import Estimator
from orca.mxnet import create_config

__all__ = ["Estimator", "create_config"]
