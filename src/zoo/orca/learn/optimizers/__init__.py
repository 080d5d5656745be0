"""Optim methods, as zoo.orca.learn.optimizers names them."""

from orca_classic.bigdl.optimizers.methods import (
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    ParallelAdam,
    RMSprop,
)
from orca_classic.bigdl.optimizers.methods import OptimMethod as Optimizer

__all__ = [
    "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Optimizer", "ParallelAdam", "RMSprop",
]  # fmt: skip
