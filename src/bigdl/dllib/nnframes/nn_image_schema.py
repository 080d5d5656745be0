"""Columns of images, as bigdl.dllib.nnframes.nn_image_schema names them."""

from orca_classic.nnframes import with_origin_column

__all__ = ["with_origin_column"]
