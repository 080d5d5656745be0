"""Estimator and TrainingOperator of PyTorch models, as bigdl.orca.learn.pytorch names them."""

from orca.classic.bigdl import Estimator
from orca.operator import __getattr__  # TrainingOperator, on first use

__all__ = ["Estimator", "TrainingOperator"]
