"""Trained models of any kind."""

from orca_classic.bigdl.net import InferenceModel

__all__ = ["InferenceModel"]
