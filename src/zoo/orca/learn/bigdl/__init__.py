"""The Estimator of BigDL models."""

from orca.classic.zoo import Estimator

__all__ = ["Estimator"]
