from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from orca.monitor import heartbeat as heartbeat_module
from orca.monitor.heartbeat import BACKWARD, DATA, FORWARD, STORAGE, Heartbeat, counted, waiting_for_storage


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "SIGN_EVERY", 0.01)
    monkeypatch.setattr(heartbeat_module, "SAY_EVERY", 0.02)


def until(happens: Callable[[], Any]) -> None:
    """Wait until something happens; the test's own time limit ends one that does not."""
    while not happens():
        threading.Event().wait(0.01)


def test_rank_that_waits_for_storage_shows_it_and_is_not_stuck(soon: None, caplog: pytest.LogCaptureFixture) -> None:
    heartbeat = Heartbeat()
    heartbeat.at(FORWARD)
    with heartbeat.current(), waiting_for_storage("a checkpoint is being written to s3://bucket/run"):
        before = heartbeat.progress
        until(lambda: heartbeat.progress > before + 3)
        assert heartbeat.beat(0).doing == "storage"
        until(lambda: caplog.records)
    assert heartbeat.phase == FORWARD
    assert "waiting for storage for 0 s: a checkpoint is being written to s3://bucket/run" in caplog.text
    assert not [thread for thread in threading.enumerate() if thread.name == "orca-storage"]


def test_storage_that_fails_is_no_longer_waited_for(soon: None) -> None:
    heartbeat = Heartbeat()
    with pytest.raises(OSError, match="no space"), heartbeat.current(), waiting_for_storage("a state is being read"):
        raise OSError("no space")
    assert heartbeat.phase != STORAGE


def test_each_item_that_is_read_is_progress_of_the_current_heartbeat_alone() -> None:
    heartbeat, other, seen = Heartbeat(), Heartbeat(), []
    with heartbeat.current():
        for _ in counted(range(3)):
            seen.append(heartbeat.progress)
    assert seen == [1, 2, 3] and heartbeat.phase == DATA
    assert list(counted("ab")) == ["a", "b"] and (heartbeat.progress, other.progress) == (3, 0)  # outside of a rank


def test_rows_begin_anew_with_an_epoch() -> None:
    mine = Heartbeat()
    mine.step(1, 5, 10, rows=320)
    mine.step(1, 6, 10)
    assert mine.beat(0).rows == 320
    mine.step(2, 0, 10)
    assert mine.beat(0).rows == 0


def test_profile_adds_the_time_to_the_phase_that_was_left() -> None:
    mine = Heartbeat()
    mine.at(FORWARD)
    time.sleep(0.02)
    mine.at(BACKWARD)
    assert not any(mine.profile.values())
    mine.profiling = True
    mine.at(DATA)
    time.sleep(0.05)
    mine.at(FORWARD)
    mine.profiling = False
    mine.at(DATA)
    assert 0.05 <= mine.profile["data"] < 0.5
    assert mine.profile["forward"] == 0.0 and mine.profile["backward"] < 0.02
