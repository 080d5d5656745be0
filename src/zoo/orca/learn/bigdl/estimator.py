"""The Estimator of BigDL models."""

from orca_classic.zoo.zoo import Estimator

__all__ = ["Estimator"]
