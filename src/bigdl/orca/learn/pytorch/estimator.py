"""The Estimator of PyTorch models, as bigdl.orca.learn.pytorch.estimator names it."""

from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator"]
