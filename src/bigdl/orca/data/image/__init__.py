"""Images, as bigdl.orca.data.image names them."""

from orca_classic.data.image import *
from orca_classic.data.image import __all__ as names

__all__ = names
