"""Files from the network."""

from orca_classic.bigdl.datasets import maybe_download

__all__ = ["maybe_download"]
