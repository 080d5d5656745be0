"""TFRecord files of images, as bigdl.orca.data.image.tfrecord_dataset names them."""

from orca_classic.data.image.tfrecord import get_filenames, read_imagenet, read_tfrecord, write_imagenet, write_tfrecord

__all__ = ["get_filenames", "read_imagenet", "read_tfrecord", "write_imagenet", "write_tfrecord"]
