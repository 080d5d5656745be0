"""Loading: libraries that do not get along by themselves. Owns the order of loading them, and warnings not shown."""

from __future__ import annotations

import importlib
import sys
import warnings
from contextlib import suppress


def triton_first() -> None:
    """Load triton, where there is one, before TensorFlow is loaded.

    Both bring an LLVM with them. Where triton's comes second the process aborts, and torch loads it with the first
    optimizer: a program that uses both frameworks would die there.
    """
    if "tensorflow" not in sys.modules:
        with suppress(ImportError):
            importlib.import_module("triton")


def hush_pyspark() -> None:
    """Keep pyspark from warning about pandas 3 whenever Arrow is used: nothing here goes through pandas.

    A filter for good, for that one text: filters that are put back afterwards are not safe with threads.
    """
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
