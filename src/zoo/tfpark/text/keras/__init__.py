"""Taggers of texts, as zoo.tfpark.text.keras names them."""

from orca_classic.tf1.tfpark.text.taggers import NER, IntentEntity, SequenceTagger, TextKerasModel

__all__ = ["NER", "IntentEntity", "SequenceTagger", "TextKerasModel"]
