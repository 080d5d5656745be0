"""Texts."""

from orca_classic.bigdl.featuresets import *

__all__ = [
    "DistributedTextSet", "LocalTextSet", "Normalizer", "SequenceShaper", "TextFeature", "TextFeatureToSample",
    "TextSet", "TextTransformer", "Tokenizer", "WordIndexer",
]  # fmt: skip
