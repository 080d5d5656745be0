"""Images: datasets in Parquet, TFRecord files, and images as XShards; the public names."""

from orca_classic.data.image.parquet_dataset import (
    ParquetDataset,
    read_parquet,
    write_from_directory,
    write_mnist,
    write_parquet,
    write_voc,
)
from orca_classic.data.image.reading import read_coco, read_images, read_voc
from orca_classic.data.image.schema import DType, FeatureType, SchemaField
from orca_classic.data.image.tfrecord import read_tfrecord, write_tfrecord

__all__ = [
    "DType", "FeatureType", "ParquetDataset", "SchemaField", "read_coco", "read_images", "read_parquet",
    "read_tfrecord", "read_voc", "write_from_directory", "write_mnist", "write_parquet", "write_tfrecord", "write_voc",
]  # fmt: skip
