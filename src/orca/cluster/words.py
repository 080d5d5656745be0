"""Words: counts as users give them. Owns the errors for impossible ones."""

from __future__ import annotations

from orca.core.units import positive


def checked_cores(cores: int | str | None, star: bool) -> int | str | None:
    """Return cores as given, or raise where it is neither a positive number nor, where that is possible, '*'."""
    if cores is None or (star and cores == "*"):
        return cores
    return positive("cores", cores, " or '*'" if star else "")
