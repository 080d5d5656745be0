"""Waiting: the driver says what a run waits for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from orca.core.engine import Settings
from orca.errors import ArgumentError
from orca.monitor import waiting
from orca.monitor.hub import Hub
from orca.monitor.link import Link


def eventually(true: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


def test_what_is_waited_for_is_said_until_all_ranks_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def records() -> list[logging.LogRecord]:  # asyncio's own lines come along where another test has set the level
        return [record for record in caplog.records if record.name.startswith("orca")]

    monkeypatch.setattr(waiting, "FIRST_WORD", 0.1)
    with Hub(2) as hub, waiting.waiting(hub, 0.0, lambda: "Spark shows 0 of 4 slots free"):
        with Link.connect(hub.ticket, 0):
            assert eventually(lambda: "1 of 2 ranks have started" in caplog.text)
            assert "started and reached the driver in 0 s; Spark shows 0 of 4 slots free. Waiting on." in caplog.text
            assert eventually(lambda: len(records()) >= 2)
            assert hub.failure() is None and records()[0].levelno == logging.WARNING
            with Link.connect(hub.ticket, 1):
                assert eventually(lambda: not hub.absent)
                count = len(records())
                time.sleep(0.5)
                assert len(records()) <= count + 1


def test_a_limit_ends_the_wait_in_words() -> None:
    with Hub(2) as hub, waiting.waiting(hub, 0.2, lambda: "Ray shows 0 of 2 CPUs free"):
        with Link.connect(hub.ticket, 0, on_abort=lambda: None):
            failure = hub.failure(10)
    assert failure is not None and (failure.rank, failure.kind) == (1, "stalled")
    assert "1 of 2 ranks have started" in failure.reason and "Ray shows 0 of 2 CPUs free" in failure.reason
    assert failure.reason.endswith("The limit is start_timeout=0.2.")


def test_a_cluster_that_does_not_answer_does_not_end_the_watch() -> None:
    def room() -> str:
        raise ConnectionError("gone")

    with Hub(1) as hub, waiting.waiting(hub, 0.1, room):
        failure = hub.failure(10)
    assert failure is not None and "the cluster does not say what is free (ConnectionError)" in failure.reason


@pytest.mark.parametrize("value", [-1, "5", None, True, float("nan")])
def test_a_limit_that_is_no_number_of_seconds_is_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="start_timeout must be a number of seconds, 0 for no limit; got"):
        Settings(start_timeout=value)  # type: ignore[arg-type]


def test_words_come_after_twice_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pace, words = waiting.Pace(), []
    for now in range(200):  # noqa: B007 - read by the clock
        if pace.is_due():
            words.append(pace.waited)
    assert words == [30, 60, 120]
