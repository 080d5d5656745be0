"""Words: names and counts as users give them. Owns the errors for unknown and impossible ones."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Any

from orca.errors import ArgumentError, near


def refuse_unknown(names: Iterable[str], known: Collection[str], call: str) -> None:
    """Raise for a keyword that nobody knows, with the known one it looks like."""
    for name in names:
        if name not in known:
            raise ArgumentError(
                f"{call} got an unknown argument {name!r}.{near(name, known)} Known are: {', '.join(known)}."
            )


def checked_cores(cores: int | str | None, star: bool) -> int | str | None:
    """Return cores as given, or raise where it is neither a positive int nor, where that is possible, '*'."""
    if cores is None or (star and cores == "*"):
        return cores
    return checked_count("cores", cores, " or '*'" if star else "")


def checked_count(name: str, value: Any, other: str = "") -> int:
    """Return a count, or raise where it is no positive int."""
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentError(f"{name} must be a positive int{other}; got {value!r}.")
    return count
