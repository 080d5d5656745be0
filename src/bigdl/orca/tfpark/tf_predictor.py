"""TFPredictor, as bigdl.orca.tfpark.tf_predictor names it."""

from orca_classic.tf1.tfpark.predictor import TFPredictor

__all__ = ["TFPredictor"]
