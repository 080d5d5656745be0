"""The Keras-style API."""

__all__: list[str] = []
