"""TFPredictor, as zoo.tfpark.tf_predictor names it."""

from orca.tfpark.predictor import TFPredictor

__all__ = ["TFPredictor"]
