"""Stages of Spark ML, as bigdl.dllib.nnframes.nn_classifier names them."""

from orca.nnframes import *

__all__ = [
    "HasBatchSize", "HasOptimMethod", "HasSamplePreprocessing", "HasThreshold", "NNClassifier", "NNClassifierModel",
    "NNEstimator", "NNModel",
]  # fmt: skip
