"""Images, as zoo.orca.data.image names them."""

from orca.data.image import *
from orca.data.image import __all__ as names

__all__ = names
