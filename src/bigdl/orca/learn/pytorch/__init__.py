"""Estimator and TrainingOperator of PyTorch models, as bigdl.orca.learn.pytorch names them."""

from orca.operator import __getattr__  # TrainingOperator, on first use
from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator", "TrainingOperator"]
