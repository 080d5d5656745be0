"""Units: sizes and times as users write them. Owns which words mean how much, and what is said about the others."""

from __future__ import annotations

import re
from typing import Any

from orca.errors import ArgumentError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_of(given: Any, word: str, least: int = 1) -> int:
    """Return a size in bytes: an int, or a number with a unit k, m, g or t.

    Raises:
        ArgumentError: It is neither, or too small; `word` names the argument.
    """
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)b?\s*", str(given).lower())
    if match is None or int(match[1]) < least:
        raise ArgumentError(f"{word} must be bytes, or a number with a unit as '2g' or '512m'; got {given!r}.")
    return int(match[1]) * UNITS[match[2]]


def java_size(given: Any, word: str) -> str:
    """Return a size as Java writes it: 2g for 2GB.

    Raises:
        ArgumentError: It is no number with a unit; `word` names the argument.
    """
    match = re.fullmatch(r"\s*([1-9]\d*)\s*([kmgt])b?\s*", given.lower()) if isinstance(given, str) else None
    if match is None:
        raise ArgumentError(f"{word} must be a number with a unit k, m, g or t, as '2g' or '512m'; got {given!r}.")
    return match[1] + match[2]


def check_seconds(given: Any, word: str, no_limit: float | None) -> None:
    """Raise where a value is neither a number of seconds nor the one that means no limit: 0, or None."""
    number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if (given is None and no_limit is None) or (number and (given > 0 or given == no_limit)):
        return
    words = "or None" if no_limit is None else f"{no_limit:g}"
    raise ArgumentError(f"{word} must be a number of seconds, {words} for no limit; got {given!r}.")
