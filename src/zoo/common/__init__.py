"""Paths and Samples, as zoo.common names them."""

from orca_classic.bigdl.datasets import set_core_number
from orca_classic.zoo.paths import convert_to_safe_path
from orca_classic.zoo.sample import Sample

__all__ = ["Sample", "convert_to_safe_path", "set_core_number"]
