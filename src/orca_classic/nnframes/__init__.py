"""NNFrames: deep learning as stages of Spark ML. stages.py, images.py (NNImageReader), wrappers.py (torch's models)."""

from orca_classic.nnframes.images import NNImageReader, with_origin_column
from orca_classic.nnframes.stages import (
    HasBatchSize,
    HasOptimMethod,
    HasSamplePreprocessing,
    HasThreshold,
    NNClassifier,
    NNClassifierModel,
    NNEstimator,
    NNModel,
)

__all__ = [
    "HasBatchSize", "HasOptimMethod", "HasSamplePreprocessing", "HasThreshold", "NNClassifier", "NNClassifierModel",
    "NNEstimator", "NNImageReader", "NNModel", "with_origin_column",
]  # fmt: skip
