"""Estimators and what they need, as bigdl.orca.learn names them."""

__all__: list[str] = []
