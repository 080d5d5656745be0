"""Runners of mmcv, as bigdl.orca.learn.pytorch.experimential.mmcv names them."""

__all__: list[str] = []
