"""The low-level Estimator."""

from orca_classic.bigdl.net import Estimator

__all__ = ["Estimator"]
