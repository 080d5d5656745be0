"""KerasModel, as bigdl.orca.tfpark.model names it."""

from orca.tfpark.model import KerasModel

__all__ = ["KerasModel"]
