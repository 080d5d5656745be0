"""The Estimator of BigDL models."""

from orca_classic.zoo.bigdl import Estimator

__all__ = ["Estimator"]
