"""Files of any file system, as bigdl.orca.data.file names them."""

from orca.data.file import *
from orca.data.file import __all__ as names

__all__ = names
