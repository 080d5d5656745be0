"""Estimators and what they need, as zoo.orca.learn names them."""

__all__: list[str] = []
