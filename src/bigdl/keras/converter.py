"""Converters of Keras 1 models, which are refused."""

from orca.bigdl.doors import CONVERTER
from orca.bigdl.doors import converter as __getattr__

__all__ = CONVERTER
