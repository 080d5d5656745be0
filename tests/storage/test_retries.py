from __future__ import annotations

import errno
import logging
import time
from itertools import pairwise
from threading import Event, Timer

import pytest

from orca.errors import ArgumentError
from orca.storage.retries import cause_of, is_of_storage, may_pass, retried


class Throttled(Exception):
    """An error of an object store's client."""


@pytest.mark.parametrize(
    ("error", "of_storage", "passes"),
    [
        (ConnectionResetError("reset"), True, True),
        (OSError(errno.ENOSPC, "No space left on device"), True, True),
        (Throttled("slow down"), True, True),
        (FileNotFoundError(errno.ENOENT, "there is none"), True, False),
        (PermissionError(errno.EACCES, "denied"), True, False),
        (OSError(errno.EIO, "the disk is broken"), True, False),
        (ArgumentError("a wrong state"), False, False),
        (KeyError("w"), False, False),
        (KeyboardInterrupt(), False, False),
    ],
)
def test_errors_of_storage_are_told_from_others(error: BaseException, of_storage: bool, passes: bool) -> None:
    assert (is_of_storage(error), may_pass(error)) == (of_storage, passes)


def test_work_is_repeated_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    attempts, troubles = [], []

    def work() -> str:
        attempts.append(time.monotonic())
        if len(attempts) < 3:
            raise ConnectionError("away\nfor a while")
        return "done"

    with caplog.at_level(logging.WARNING):
        assert retried(work, "x cannot be read", 60, troubled=lambda: troubles.append(1)) == "done"
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses == pytest.approx([1, 2], abs=0.5) and len(troubles) == 2
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "x cannot be read (ConnectionError: away for a while); trying again in 1 s, for 60 s more at most"
    assert "trying again in 2 s" in second


def test_the_last_error_is_raised_when_time_is_over_or_the_work_is_not_needed() -> None:
    def fail() -> None:
        raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        retried(fail, "x", 0)
    over, began = Event(), time.monotonic()
    Timer(0.2, over.set).start()
    with pytest.raises(ConnectionError):
        retried(fail, "x", 600, over=over)
    assert time.monotonic() - began < 5


def test_a_cause_is_one_line() -> None:
    assert cause_of(OSError("one\n  two")) == "OSError: one two" and cause_of(TimeoutError()) == "TimeoutError"
