"""Sets of images."""

from orca_classic.bigdl.featuresets import DistributedImageSet, ImageSet, LocalImageSet

__all__ = ["DistributedImageSet", "ImageSet", "LocalImageSet"]
