"""Preprocessing, as zoo.feature.common names it."""

from orca.bigdl.featuresets import FeatureSet, Relation, Relations
from orca.feature.preprocessing import *

__all__ = [
    "ArrayToTensor", "BigDLAdapter", "ChainedPreprocessing", "FeatureLabelPreprocessing", "FeatureSet",
    "FeatureToTupleAdapter", "MLlibVectorToTensor", "Preprocessing", "Relation", "Relations", "SampleToMiniBatch",
    "ScalarToTensor", "SeqToMultipleTensors", "SeqToTensor", "TensorToSample", "ToTuple",
]  # fmt: skip
