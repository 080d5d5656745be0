"""Datasets that BigDL's programs read."""

__all__: list[str] = []
