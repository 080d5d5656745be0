"""Steps on images and frames of them."""

from orca_classic.bigdl.vision import *
from orca_classic.bigdl.vision import __all__ as NAMES

__all__ = NAMES
