"""Columns of images, as zoo.pipeline.nnframes.nn_image_schema names them."""

from orca_classic.nnframes import with_origin_column

__all__ = ["with_origin_column"]
