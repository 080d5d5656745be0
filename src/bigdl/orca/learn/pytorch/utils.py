"""Statistics of workers as one, as bigdl.orca.learn.pytorch.utils names it."""

from orca.classic.statistics import process_stats

__all__ = ["process_stats"]
