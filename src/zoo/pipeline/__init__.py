"""Names of zoo.pipeline."""

__all__: list[str] = []
