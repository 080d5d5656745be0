"""KerasModel, as zoo.tfpark.model names it."""

from orca.tfpark.model import KerasModel

__all__ = ["KerasModel"]
