"""The Keras-style API of BigDL."""

__all__: list[str] = []
