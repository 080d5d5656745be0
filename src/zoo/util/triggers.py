"""Triggers, as zoo.util.triggers names them."""

from orca.core.triggers import *

__all__ = [
    "EveryEpoch", "MaxEpoch", "MaxIteration", "MaxScore", "MinLoss", "SeveralIteration", "TriggerAnd", "TriggerOr",
]  # fmt: skip
