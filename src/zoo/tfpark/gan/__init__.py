"""Generative adversarial networks, as zoo.tfpark.gan names them."""

from orca.tfpark.gan import GANEstimator

__all__ = ["GANEstimator"]
