"""GANEstimator, as bigdl.orca.tfpark.gan.gan_estimator names it."""

from orca.tfpark.gan import GANEstimator

__all__ = ["GANEstimator"]
