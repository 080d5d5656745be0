"""The Estimator of PyTorch models, as bigdl.orca.learn.pytorch.estimator names it."""

from orca.classic.bigdl import Estimator

__all__ = ["Estimator"]
