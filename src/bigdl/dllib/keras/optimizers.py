"""Optim methods of the Keras-style API."""

from orca.optimizers.methods import AdamWeightDecay
from orca.optimizers.methods import KerasAdam as Adam
from orca.optimizers.schedules import PolyEpochDecay

__all__ = ["Adam", "AdamWeightDecay", "PolyEpochDecay"]
