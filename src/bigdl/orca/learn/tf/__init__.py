"""Estimators of TensorFlow 1, as bigdl.orca.learn.tf names them."""

__all__: list[str] = []
