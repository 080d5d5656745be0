"""Backlog: output that nobody reads is dropped, and the end waits as long as it is read."""

from __future__ import annotations

from orca.monitor.backlog import Backlog


def test_half_of_a_full_backlog_is_read_before_there_is_room_again() -> None:
    backlog = Backlog(100)
    backlog.inflow = 101
    assert [backlog.has_room() for _ in range(3)] == [False] * 3
    backlog.outflow = 50
    assert not backlog.has_room()
    backlog.outflow = 51
    assert backlog.has_room()
    assert (backlog.gap(), backlog.gap()) == (4, 0)
    backlog.outflow = 1
    assert backlog.has_room()  # no gap is open: all of it may be used


def test_the_end_waits_as_long_as_something_is_read() -> None:
    backlog = Backlog(100)
    progress = iter([5, 9, 9])

    def wait(seconds: float) -> bool:
        assert seconds == 2.0
        backlog.outflow = next(progress)
        return False

    backlog.outlast(wait, 2.0)
    assert not list(progress)  # it gave up when nothing had moved


def test_the_end_waits_no_longer_than_it_must() -> None:
    calls: list[float] = []
    Backlog(100).outlast(lambda seconds: calls.append(seconds) or True, 2.0)  # type: ignore[func-returns-value]
    assert calls == [2.0]
