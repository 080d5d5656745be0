"""Optim methods, schedules, triggers, validation methods and Optimizer of BigDL, loaded on first use."""

from orca_classic.bigdl.doors import OPTIMIZER
from orca_classic.bigdl.doors import optimizer as __getattr__

__all__ = OPTIMIZER
