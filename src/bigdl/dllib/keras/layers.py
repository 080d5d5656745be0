"""Layers of the Keras-style API, loaded on first use."""

from orca_classic.bigdl.doors import KERAS_LAYERS
from orca_classic.bigdl.doors import keras_layer as __getattr__

__all__ = KERAS_LAYERS
