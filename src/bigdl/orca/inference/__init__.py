"""Trained models of any kind."""

from orca.bigdl.net import InferenceModel

__all__ = ["InferenceModel"]
