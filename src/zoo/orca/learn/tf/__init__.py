"""Estimators of TensorFlow 1, as zoo.orca.learn.tf names them."""

__all__: list[str] = []
