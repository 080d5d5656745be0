"""The pipeline API of Analytics Zoo."""

__all__: list[str] = []
