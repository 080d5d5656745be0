"""Statistics of workers as one, as bigdl.orca.learn.pytorch.utils names it."""

from orca_classic.zoo.statistics import process_stats

__all__ = ["process_stats"]
