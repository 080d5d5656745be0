from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leaks import leaks
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.source import Shards
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, WorkerFailed
from orca.job import FitJob
from orca.testing import LinearLearner, shards_of

SETTINGS = Settings(stall_timeout=10)


def run(job: Any, ranks: int, settings: Settings = SETTINGS) -> list[Any]:
    return LocalEngine(ranks).run(job, Shards(lambda items, folder: {}, list), settings)


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match="the job cannot be sent to the workers"):
        run(lambda world, rows, heartbeat: lock, 1)
    with pytest.raises(ArgumentError, match="the result cannot be sent"):
        run(lambda world, rows, heartbeat: threading.Lock(), 1)


def test_rows_are_closed_and_shards_released_after_a_failure() -> None:
    notes: list[str] = []

    class Rows:
        def close(self) -> None:
            (marks / "closed").touch()

    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder)
        shards = Shards(lambda items, folder: {"train": Rows()}, list, release=lambda: notes.append("released"))  # type: ignore[dict-item]
        with leaks(), pytest.raises(WorkerFailed, match="ZeroDivisionError"):
            LocalEngine(1).run(lambda world, rows, heartbeat: 1 // 0, shards, SETTINGS)
        assert notes == ["released"] and (marks / "closed").exists()


def test_the_linear_learner_learns() -> None:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(60, 2))
    y = x @ [2.0, -1.0] + 0.5
    job = FitJob(LinearLearner(2), FitPlan(epochs=20, batch_size=8), (), None)
    (history, state), *_ = LocalEngine(2).run(job, shards_of([(x[:50], y[:50]), (x[50:], y[50:])]), SETTINGS)
    assert history.epochs[-1]["train_loss"] < 1e-6
    assert state.payload["models"][0]["weight"] == pytest.approx([2.0, -1.0, 0.5], abs=1e-3)


# Leaks: each kind is found, and what goes away in time is none.


def test_nothing_left_is_fine() -> None:
    with leaks(grace=0.5):
        threading.Thread(target=time.sleep, args=(0.1,)).start()


def test_a_thread_left_is_named() -> None:
    stop = threading.Event()
    with pytest.raises(AssertionError, match="left behind: thread 'idler'"), leaks(grace=0.1):
        threading.Thread(target=stop.wait, name="idler").start()
    stop.set()


def test_a_process_left_is_named() -> None:
    with pytest.raises(AssertionError, match=r"left behind: process \d+"), leaks(grace=0.1):
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process.communicate()


def test_a_socket_left_is_named() -> None:
    with pytest.raises(AssertionError, match=r"left behind: socket .*127\.0\.0\.1"), leaks(grace=0.1):
        server = socket.create_server(("127.0.0.1", 0))
    server.close()


def test_a_folder_left_is_named() -> None:
    with pytest.raises(AssertionError, match=r"left behind: folder .*orca-forgotten"), leaks(grace=0.1):
        folder = Path(tempfile.mkdtemp(prefix="orca-forgotten-"))
    folder.rmdir()


def test_an_error_in_the_block_is_not_hidden_by_a_leak() -> None:
    with pytest.raises(ValueError, match="the real one"), leaks(grace=0.1):
        folder = Path(tempfile.mkdtemp(prefix="orca-forgotten-"))
        raise ValueError("the real one")
    folder.rmdir()
