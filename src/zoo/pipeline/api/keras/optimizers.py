"""Optim methods of the Keras-style API."""

from orca_classic.bigdl.optimizers.methods import AdamWeightDecay
from orca_classic.bigdl.optimizers.methods import KerasAdam as Adam
from orca_classic.bigdl.optimizers.schedules import PolyEpochDecay

__all__ = ["Adam", "AdamWeightDecay", "PolyEpochDecay"]
