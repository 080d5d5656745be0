"""The Estimator of PyTorch models, as zoo.orca.learn.pytorch names it."""

from orca.classic.zoo import Estimator

__all__ = ["Estimator"]
