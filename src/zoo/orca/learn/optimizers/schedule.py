"""Learning rate schedules, as zoo.orca.learn.optimizers.schedule names them."""

from orca_classic.bigdl.optimizers.schedules import (
    Default,
    Exponential,
    MultiStep,
    Plateau,
    Poly,
    Scheduler,
    Step,
    Warmup,
)
from orca_classic.bigdl.optimizers.schedules import SequentialSchedule as SequentialSchedule

__all__ = [
    "Default", "Exponential", "MultiStep", "Plateau", "Poly", "Scheduler", "SequentialSchedule", "Step", "Warmup",
]  # fmt: skip
