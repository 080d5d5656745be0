"""The reader of images, as bigdl.dllib.nnframes.nn_image_reader names it."""

from orca_classic.nnframes import NNImageReader

__all__ = ["NNImageReader"]
