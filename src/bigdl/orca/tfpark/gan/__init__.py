"""Generative adversarial networks, as bigdl.orca.tfpark.gan names them."""

from orca.tfpark.gan import GANEstimator

__all__ = ["GANEstimator"]
