"""Triggers, as bigdl.orca.learn.trigger names them."""

from orca.core.triggers import EveryEpoch, SeveralIteration, Trigger

__all__ = ["EveryEpoch", "SeveralIteration", "Trigger"]
