"""Preprocessing, as bigdl.dllib.feature.common names it."""

from orca_classic.bigdl.feature.preprocessing import *
from orca_classic.bigdl.featuresets import FeatureSet, Relation, Relations

__all__ = [
    "ArrayToTensor", "BigDLAdapter", "ChainedPreprocessing", "FeatureLabelPreprocessing", "FeatureSet",
    "FeatureToTupleAdapter", "MLlibVectorToTensor", "Preprocessing", "Relation", "Relations", "SampleToMiniBatch",
    "ScalarToTensor", "SeqToMultipleTensors", "SeqToTensor", "TensorToSample", "ToTuple",
]  # fmt: skip
