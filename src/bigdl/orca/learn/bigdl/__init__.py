"""The Estimator of BigDL models."""

from orca.classic.bigdl import Estimator

__all__ = ["Estimator"]
