"""The guard of these tests: none leaves a thread or an open file behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from monitor.ranks import eventually


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Hold every test to leave no thread and no open file behind."""
    files, before = len(os.listdir("/dev/fd")), threads()
    yield
    assert eventually(lambda: threads() <= before, 1.0), threading.enumerate()
    assert eventually(lambda: len(os.listdir("/dev/fd")) <= files, 1.0), os.listdir("/dev/fd")


def threads() -> set[threading.Thread]:
    """Return the threads of this process; the one that watches over bars stays."""
    return {thread for thread in threading.enumerate() if thread.name != "tqdm_monitor"}
