"""Names of zoo.pipeline.api."""

__all__: list[str] = []
