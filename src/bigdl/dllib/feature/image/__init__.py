"""Steps on images and sets of them, as bigdl.dllib.feature.image names them."""

from orca.bigdl.featuresets import DistributedImageSet, ImageSet, LocalImageSet
from orca.feature.image import *
from orca.feature.image import __all__ as STEPS

__all__ = ["DistributedImageSet", "ImageSet", "LocalImageSet", *STEPS]
