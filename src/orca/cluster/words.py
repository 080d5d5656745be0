"""Words: names and counts as users give them. Owns the errors for unknown and impossible ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from orca.core.units import positive
from orca.errors import ArgumentError, near


def refuse_unknown(names: Iterable[str], words: Collection[str], call: str) -> None:
    """Raise for a keyword that nobody knows, with the known one it looks like."""
    for name in names:
        if name not in words:
            raise ArgumentError(
                f"{call} got an unknown argument {name!r}.{near(name, words)} Known are: {', '.join(words)}."
            )


def checked_cores(cores: int | str | None, star: bool) -> int | str | None:
    """Return cores as given, or raise where it is neither a positive number nor, where that is possible, '*'."""
    if cores is None or (star and cores == "*"):
        return cores
    return positive("cores", cores, " or '*'" if star else "")
