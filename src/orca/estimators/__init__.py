"""Estimators: what users hold. One file a framework, with the arguments of its verbs; the rest is shared."""

from orca.estimators.estimator import Estimator

__all__ = ["Estimator"]
