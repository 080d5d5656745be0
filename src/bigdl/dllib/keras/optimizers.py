"""Optim methods of the Keras-style API."""

from orca.optimizers.methods import AdamWeightDecay
from orca.optimizers.methods import KerasAdam as Adam

__all__ = ["Adam", "AdamWeightDecay"]
