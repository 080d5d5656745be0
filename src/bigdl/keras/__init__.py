"""Keras 1 on BigDL."""

__all__: list[str] = []
