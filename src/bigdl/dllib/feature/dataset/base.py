"""Files from the network."""

from orca.bigdl.datasets import maybe_download

__all__ = ["maybe_download"]
