"""Loading: libraries that tolerate each other only in one order. Owns that order."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress


def triton_first() -> None:
    """Load triton, where there is one, before TensorFlow is loaded.

    Both bring an LLVM with them. Where triton's comes second the process aborts, and torch loads it with the first
    optimizer: a program that uses both frameworks would die there.
    """
    if "tensorflow" not in sys.modules:
        with suppress(ImportError):
            importlib.import_module("triton")
