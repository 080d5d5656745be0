"""The low-level Estimator."""

from orca.bigdl.net import Estimator

__all__ = ["Estimator"]
