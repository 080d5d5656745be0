"""Units: sizes, times and counts as users write them. Owns the units, and the errors for anything else."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Any

from orca.errors import ArgumentError

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size_of(value: Any, word: str, least: int = 1) -> int:
    """Return a size in bytes: an int, or a number with a unit k, m, g or t; `word` names the argument in errors."""
    match = re.fullmatch(r"\s*(\d+)\s*([kmgt]?)b?\s*", str(value).lower())
    if match is None or int(match[1]) < least:
        raise ArgumentError(
            f"{word} must be bytes, or a number with a unit as '2g' or '512m'; got {value!r}.", code="bad-size"
        )
    return int(match[1]) * UNITS[match[2]]


def java_size(value: Any, word: str) -> str:
    """Return a size as Java writes it: 2g for 2GB; `word` names the argument in errors."""
    match = re.fullmatch(r"\s*([1-9]\d*)\s*([kmgt])b?\s*", value.lower()) if isinstance(value, str) else None
    if match is None:
        raise ArgumentError(
            f"{word} must be a number with a unit k, m, g or t, as '2g' or '512m'; got {value!r}.", code="bad-size"
        )
    return match[1] + match[2]


def check_seconds(value: Any, word: str, no_limit: float | None) -> None:
    """Raise where a value is neither a number of seconds nor the one that means no limit: 0, or None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (value is None and no_limit is None) or (number and (value > 0 or value == no_limit)):
        return
    words = "or None" if no_limit is None else f"{no_limit:g}"
    raise ArgumentError(f"{word} must be a number of seconds, {words} for no limit; got {value!r}.", code="bad-seconds")


def not_negative(value: Any, word: str) -> None:
    """Raise where a value is no number of seconds, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ArgumentError(f"{word} must be a number of seconds, 0 or more; got {value!r}.", code="bad-seconds")


def positive(name: str, value: Any, other: str = "") -> int:
    """Return a number that must be 1, 2, 3, ...; `other` names the other values that are allowed."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ArgumentError(f"{name} must be a positive whole number{other}; got {value!r}.", code="bad-count")
    return int(value)


def natural(name: str, value: Any) -> int:
    """Return a number that must be 0, 1, 2, ..."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ArgumentError(f"{name} must be a whole number, 0 or more; got {value!r}.", code="bad-count")
    return int(value)
