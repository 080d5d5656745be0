"""Paths and Samples, as zoo.common names them."""

from orca.bigdl.datasets import set_core_number
from orca.classic.paths import convert_to_safe_path
from orca.classic.sample import Sample

__all__ = ["Sample", "convert_to_safe_path", "set_core_number"]
