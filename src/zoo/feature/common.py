"""Preprocessing, as zoo.feature.common names it."""

from orca.feature.preprocessing import *
from orca.feature.preprocessing import Preprocessing

__all__ = [
    "ArrayToTensor", "BigDLAdapter", "ChainedPreprocessing", "FeatureLabelPreprocessing", "FeatureToTupleAdapter",
    "MLlibVectorToTensor", "Preprocessing", "SampleToMiniBatch", "ScalarToTensor", "SeqToMultipleTensors",
    "SeqToTensor", "TensorToSample", "ToTuple",
]  # fmt: skip
