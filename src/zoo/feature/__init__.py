"""Names of zoo.feature."""

__all__: list[str] = []
