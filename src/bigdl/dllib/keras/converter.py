"""Converters of Keras 1 models, which are refused."""

from orca_classic.bigdl.doors import CONVERTER
from orca_classic.bigdl.doors import converter as __getattr__

__all__ = CONVERTER
