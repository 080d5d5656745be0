"""Sentences."""

from orca_classic.bigdl.datasets import read_localfile, sentence_tokenizer, sentences_split

__all__ = ["read_localfile", "sentence_tokenizer", "sentences_split"]
