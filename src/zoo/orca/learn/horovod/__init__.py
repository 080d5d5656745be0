"""Functions on workers that meet in Horovod, as zoo.orca.learn.horovod names them."""

from orca_classic.zoo.horovod import HorovodRayRunner

__all__ = ["HorovodRayRunner"]
