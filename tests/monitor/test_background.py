"""Background: work beside a block begins with it and ends with it, whatever happens in the block."""

from __future__ import annotations

import threading
import time
from threading import Event

import pytest

from orca.monitor.background import beside


def test_work_runs_beside_the_block_and_ends_with_it() -> None:
    begun, ended = Event(), Event()

    def work(over: Event) -> None:
        begun.set()
        over.wait()
        ended.set()

    with pytest.raises(RuntimeError, match="of the block"), beside(work, "orca-test"):
        assert begun.wait(10) and not ended.is_set()
        assert "orca-test" in [thread.name for thread in threading.enumerate()]
        raise RuntimeError("of the block")
    assert ended.is_set()


def test_work_that_does_not_end_is_left_behind_after_the_patience() -> None:
    free = Event()
    began = time.monotonic()
    with beside(lambda over: free.wait(30), "orca-test", patience=0.05):
        pass
    assert time.monotonic() - began < 10
    free.set()
