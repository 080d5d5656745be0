"""The Estimator of MXNet models, as zoo.orca.learn.mxnet names it."""

from orca.classic.zoo import Estimator
from orca.mxnet import create_config

__all__ = ["Estimator", "create_config"]
