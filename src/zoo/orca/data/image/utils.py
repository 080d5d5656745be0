"""The schema of a dataset of images, as zoo.orca.data.image.utils names them."""

from orca.data.image.schema import *
from orca.data.image.schema import __all__ as names

__all__ = names
