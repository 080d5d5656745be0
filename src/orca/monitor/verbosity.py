"""Verbosity: how much Orca shows. Owns set_verbosity, ORCA_DEBUG, and lines that appear without any configuration."""

from __future__ import annotations

import logging
import os
import sys

from orca.errors import ArgumentError, near

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
DEBUG_VARIABLE = "ORCA_DEBUG"

_requested: str | None = None  # None: as ORCA_DEBUG says
_root = logging.getLogger("orca")


def set_verbosity(level: str) -> None:
    """Set how much Orca shows, in this program and on the workers of its next calls.

    It is the level of the logger `orca`. "debug" also shows every frame of a failed worker and of Orca itself, and all
    that Spark logs about a failed job; the environment variable `ORCA_DEBUG=1` does the same.

    Args:
        level: "debug", "info" (the default: a line for each epoch), "warning" or "error".

    Raises:
        ArgumentError: There is no such level.

    Example:
        >>> import orca
        >>> orca.set_verbosity("warning")
        >>> orca.set_verbosity("info")
    """
    global _requested
    if level not in LEVELS:
        known = ", ".join(map(repr, LEVELS))
        raise ArgumentError(
            f"set_verbosity takes {known}; got {level!r}.{near(level, LEVELS)}", code="unknown-verbosity"
        )
    _requested = level
    _root.setLevel(LEVELS[level])
    _show_details(level)


def verbosity() -> str:
    """Return the level: that of set_verbosity, else of ORCA_DEBUG, else "info"."""
    if _requested is not None:
        return _requested
    return "debug" if os.environ.get(DEBUG_VARIABLE, "0").lower() not in ("", "0", "false", "no") else "info"


def is_debug() -> bool:
    """Return whether every detail is shown."""
    return verbosity() == "debug"


def is_informative() -> bool:
    """Return whether more than warnings is shown."""
    return LEVELS[verbosity()] <= logging.INFO


def adopt(level: str) -> None:
    """Take over the driver's verbosity, in a worker; at "info", the level of the worker's root logger holds."""
    global _requested
    _requested = level
    _root.setLevel(logging.NOTSET if level == "info" else LEVELS[level])


class DetailHandler(logging.Handler):
    """A handler that shows the records of Orca where the program has configured no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one on standard error."""
        if not logging.getLogger().handlers and sys.stderr is not None:
            sys.stderr.write(self.format(record) + "\n")


_details = DetailHandler()
_details.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _show_details(level: str) -> None:
    if level == "debug":
        _root.addHandler(_details)  # once
    else:
        _root.removeHandler(_details)


if is_debug():  # by the variable
    _root.setLevel(logging.DEBUG)
    _show_details("debug")


def announce(logger: logging.Logger, text: str) -> None:
    """Log a line at INFO; where the program has configured no logging, write it to standard error."""
    if logger.hasHandlers():
        logger.info("%s", text)
    elif is_informative() and sys.stderr is not None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
