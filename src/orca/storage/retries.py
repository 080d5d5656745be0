"""Retries: storage that is away for a while. Owns which of its errors are tried again, and for how long."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from orca.errors import OrcaError

STORAGE_TIMEOUT = 600.0  # seconds that storage may be away
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between two attempts
# Errors of the system that say what a path is, which waiting does not change.
_LASTING = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EROFS,
            errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EIO}  # fmt: skip

logger = logging.getLogger(__name__)
T = TypeVar("T")


def is_of_storage(error: BaseException) -> bool:
    """Return whether an error may come from storage, and not from the code or the data that uses it.

    Clients of object stores raise classes of their own.
    """
    if isinstance(error, OrcaError) or not isinstance(error, Exception):
        return False
    return isinstance(error, OSError) or type(error).__module__ != "builtins"


def may_pass(error: BaseException) -> bool:
    """Return whether an error of storage may be gone soon: a wrong path or a missing permission stays."""
    return is_of_storage(error) and not (isinstance(error, OSError) and error.errno in _LASTING)


def cause_of(error: BaseException) -> str:
    """Return an error's type and text in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def retried(
    work: Callable[[], T],
    what: str,
    seconds: float,
    is_retried: Callable[[BaseException], bool] = is_of_storage,
    over: Event | None = None,
    troubled: Callable[[], None] | None = None,
) -> T:
    """Return the result of work; try again, with growing pauses and a warning each, while storage fails.

    Args:
        work: Reads or writes, whole or not at all.
        what: The sentence about its failure: "checkpoint /a/b could not be written".
        seconds: How long after the first failure the last attempt begins.
        is_retried: Whether an error is worth another attempt; any other is raised.
        over: An event after which nothing is tried again.
        troubled: Called after each failure that is tried again.

    Raises:
        Exception: The error of the last attempt.
    """
    end, pause, over = 0.0, _FIRST_PAUSE, over or Event()
    while True:
        try:
            return work()
        except Exception as error:
            now = time.monotonic()
            end = end or now + seconds
            if not is_retried(error) or now >= end or over.is_set():
                raise
            wait = min(pause, end - now)
            logger.warning(
                "%s (%s); trying again in %.0f s, for %.0f s more at most", what, cause_of(error), wait, end - now
            )
            if troubled is not None:
                troubled()
        if over.wait(wait):
            end = 0.1  # one last attempt
        pause = min(2 * pause, _LONGEST_PAUSE)
