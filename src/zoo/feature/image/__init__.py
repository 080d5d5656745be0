"""Steps on images and sets of them, as zoo.feature.image names them."""

from orca_classic.bigdl.feature.image import *
from orca_classic.bigdl.feature.image import __all__ as STEPS
from orca_classic.bigdl.featuresets import DistributedImageSet, ImageSet, LocalImageSet

__all__ = ["DistributedImageSet", "ImageSet", "LocalImageSet", *STEPS]
