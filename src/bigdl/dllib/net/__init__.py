"""Models in files, and graphs."""

from orca_classic.bigdl.net import GraphNet, Net

__all__ = ["GraphNet", "Net"]
