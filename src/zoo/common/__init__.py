"""Paths, as zoo.common names them."""

from orca.classic.paths import convert_to_safe_path

__all__ = ["convert_to_safe_path"]
