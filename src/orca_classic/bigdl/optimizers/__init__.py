"""Optim methods and learning rate schedules with BigDL's arguments and update rules, over torch's optimizers."""

from orca_classic.bigdl.optimizers.methods import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamWeightDecay,
    Ftrl,
    KerasAdam,
    OptimMethod,
    ParallelAdam,
    RMSprop,
)
from orca_classic.bigdl.optimizers.wrapped import TorchOptim

__all__ = [
    "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamWeightDecay", "Adamax", "Ftrl", "KerasAdam", "OptimMethod",
    "ParallelAdam", "RMSprop", "TorchOptim",
]  # fmt: skip
