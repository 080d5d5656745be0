"""The Estimator of PyTorch models, as bigdl.orca.learn.pytorch.estimator names it."""

from orca.estimators import Estimator

__all__ = ["Estimator"]
