"""The reader of images, as zoo.pipeline.nnframes.nn_image_reader names it."""

from orca_classic.nnframes import NNImageReader

__all__ = ["NNImageReader"]
