"""Triggers, as bigdl.dllib.utils.triggers names them."""

from orca.core.triggers import *

__all__ = [
    "EveryEpoch", "MaxEpoch", "MaxIteration", "MaxScore", "MinLoss", "SeveralIteration", "TriggerAnd", "TriggerOr",
]  # fmt: skip
