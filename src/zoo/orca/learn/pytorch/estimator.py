"""The Estimator of PyTorch models, as zoo.orca.learn.pytorch.estimator names it."""

from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator"]
