"""Steps on images."""

__all__: list[str] = []
