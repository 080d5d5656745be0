"""Layers with the arguments of Keras 2, loaded on first use."""

from orca_classic.bigdl.doors import KERAS2_LAYERS
from orca_classic.bigdl.doors import keras2_layer as __getattr__

__all__ = KERAS2_LAYERS
