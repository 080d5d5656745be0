"""Initialisation methods of BigDL."""

from orca_classic.bigdl.initial import *

__all__ = [
    "BilinearFiller", "ConstInitMethod", "InitializationMethod", "MsraFiller", "Ones", "RandomNormal",
    "RandomUniform", "Xavier", "Zeros",
]  # fmt: skip
