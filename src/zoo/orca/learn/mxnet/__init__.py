"""The Estimator of MXNet models, as zoo.orca.learn.mxnet names it."""

from orca_classic.mxnet import create_config
from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator", "create_config"]
