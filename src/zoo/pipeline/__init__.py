"""The pipeline of Analytics Zoo."""

__all__: list[str] = []
