"""Steps on images and frames of them."""

from orca.bigdl.vision import *
from orca.bigdl.vision import __all__ as NAMES

__all__ = NAMES
