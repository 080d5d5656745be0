"""Estimator and TrainingOperator of PyTorch models, as zoo.orca.learn.pytorch names them."""

from orca.operator import __getattr__  # TrainingOperator, on first use
from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator", "TrainingOperator"]
