"""What BigDL tried out, as bigdl.orca.learn.pytorch.experimential names it."""

__all__: list[str] = []
