"""Stages of Spark ML, as bigdl.dlframes.dl_classifier names them."""

from orca_classic.nnframes.dlframes import DLClassifier, DLClassifierModel, DLEstimator, DLModel

__all__ = ["DLClassifier", "DLClassifierModel", "DLEstimator", "DLModel"]
