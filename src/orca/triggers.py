"""Triggers: the public names. `from orca.triggers import EveryEpoch`."""

from orca.core.triggers import (
    And,
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    Moment,
    Or,
    SeveralIteration,
    Trigger,
    TriggerAnd,
    TriggerOr,
)

__all__ = [
    "And",
    "EveryEpoch",
    "MaxEpoch",
    "MaxIteration",
    "MaxScore",
    "MinLoss",
    "Moment",
    "Or",
    "SeveralIteration",
    "Trigger",
    "TriggerAnd",
    "TriggerOr",
]
