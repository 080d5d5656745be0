"""Layers and criterions of BigDL."""

__all__: list[str] = []
