"""Optim methods, schedules, triggers, validation methods and Optimizer of BigDL."""

from orca.bigdl.optimizer import *
from orca.bigdl.optimizer import __all__ as NAMES

__all__ = NAMES
