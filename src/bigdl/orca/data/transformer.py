"""Transformers of columns of XShards, as bigdl.orca.data.transformer names them."""

from orca.data.transformer import MinMaxScaler, StandardScaler, StringIndex, StringIndexer

__all__ = ["MinMaxScaler", "StandardScaler", "StringIndex", "StringIndexer"]
