"""Models of the Keras-style API, loaded on first use."""

from orca_classic.bigdl.doors import KERAS_MODELS
from orca_classic.bigdl.doors import keras_model as __getattr__

__all__ = KERAS_MODELS
