"""Stages of Spark ML, as bigdl.dllib.nnframes names them."""

from orca_classic.nnframes import *

__all__ = [
    "HasBatchSize", "HasOptimMethod", "HasSamplePreprocessing", "HasThreshold", "NNClassifier", "NNClassifierModel",
    "NNEstimator", "NNImageReader", "NNModel", "with_origin_column",
]  # fmt: skip
