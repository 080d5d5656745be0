"""The Keras-style API with the arguments of Keras 2."""

__all__: list[str] = []
