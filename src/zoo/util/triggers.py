"""Triggers, as zoo.util.triggers names them."""

# ruff: noqa: F405
from orca.core.triggers import *

__all__ = [
    "EveryEpoch", "MaxEpoch", "MaxIteration", "MaxScore", "MinLoss", "SeveralIteration", "TriggerAnd", "TriggerOr",
]  # fmt: skip
