"""MNIST."""

from orca_classic.bigdl.datasets import extract_images, extract_labels, load_data, read_data_sets

__all__ = ["extract_images", "extract_labels", "load_data", "read_data_sets"]
