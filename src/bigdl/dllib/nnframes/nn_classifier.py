"""Stages of Spark ML, as bigdl.dllib.nnframes.nn_classifier names them."""

from orca_classic.nnframes import *

__all__ = [
    "HasBatchSize", "HasOptimMethod", "HasSamplePreprocessing", "HasThreshold", "NNClassifier", "NNClassifierModel",
    "NNEstimator", "NNModel",
]  # fmt: skip
