"""Models of BigDL's Keras-style API, loaded on first use."""

from orca.bigdl.doors import KERAS_MODELS
from orca.bigdl.doors import keras_model as __getattr__

__all__ = KERAS_MODELS
