"""Sizes: how many rows a benchmark takes."""

from __future__ import annotations

quick = False
megabytes = 1000  # of the file of `tables`


def rows(count: int) -> int:
    """Return so many rows, or a tenth of them in a quick run."""
    return count // 10 if quick else count
