"""The schema of a dataset of images, as bigdl.orca.data.image.utils names them."""

from orca_classic.data.image.schema import *
from orca_classic.data.image.schema import __all__ as names

__all__ = names
