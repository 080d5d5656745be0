"""Sets of images."""

from orca.bigdl.featuresets import DistributedImageSet, ImageSet, LocalImageSet

__all__ = ["DistributedImageSet", "ImageSet", "LocalImageSet"]
