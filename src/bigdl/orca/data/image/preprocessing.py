"""Images as XShards, as bigdl.orca.data.image.preprocessing names them."""

from orca_classic.data.image.reading import read_coco, read_images, read_images_pil, read_images_spark, read_voc

__all__ = ["read_coco", "read_images", "read_images_pil", "read_images_spark", "read_voc"]
