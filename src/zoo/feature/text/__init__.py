"""Texts."""

from orca.bigdl.featuresets import (
    DistributedTextSet,
    LocalTextSet,
    Normalizer,
    SequenceShaper,
    TextFeature,
    TextFeatureToSample,
    TextSet,
    TextTransformer,
    Tokenizer,
    WordIndexer,
)  # fmt: skip

__all__ = [
    "DistributedTextSet", "LocalTextSet", "Normalizer", "SequenceShaper", "TextFeature", "TextFeatureToSample",
    "TextSet", "TextTransformer", "Tokenizer", "WordIndexer",
]  # fmt: skip
