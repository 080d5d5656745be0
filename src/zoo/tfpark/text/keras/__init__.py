"""Taggers of texts, as zoo.tfpark.text.keras names them."""

from orca.tfpark.text.taggers import NER, IntentEntity, SequenceTagger, TextKerasModel

__all__ = ["NER", "IntentEntity", "SequenceTagger", "TextKerasModel"]
