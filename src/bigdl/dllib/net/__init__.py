"""Models in files, and graphs."""

from orca.bigdl.net import GraphNet, Net

__all__ = ["GraphNet", "Net"]
