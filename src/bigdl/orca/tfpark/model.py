"""KerasModel, as bigdl.orca.tfpark.model names it."""

from orca_classic.tf1.tfpark.model import KerasModel

__all__ = ["KerasModel"]
