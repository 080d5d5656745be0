"""GANEstimator, as zoo.tfpark.gan.gan_estimator names it."""

from orca_classic.tf1.tfpark.gan import GANEstimator

__all__ = ["GANEstimator"]
