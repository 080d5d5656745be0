"""Generative adversarial networks, as zoo.tfpark.gan names them."""

from orca_classic.tf1.tfpark.gan import GANEstimator

__all__ = ["GANEstimator"]
