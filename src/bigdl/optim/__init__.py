"""Training of BigDL."""

__all__: list[str] = []
