"""MovieLens."""

from orca_classic.bigdl.datasets import get_id_pairs, get_id_ratings
from orca_classic.bigdl.datasets import read_ratings as read_data_sets

__all__ = ["get_id_pairs", "get_id_ratings", "read_data_sets"]
