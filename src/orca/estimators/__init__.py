"""Estimators: the objects that users hold. One file a framework, with the arguments of its verbs, and a shared part."""

from orca.estimators.estimator import Estimator

__all__ = ["Estimator"]
