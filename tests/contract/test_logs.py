"""Logs: what ranks print and log appears on the driver, once, tagged by rank, on every engine."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from orca.core.engine import Engine, Settings
from orca.core.source import Shards
from orca.errors import WorkerFailed, WorkerLost
from orca.monitor.worker_logs import RecordHandler, Tap
from orca.registry import engine_class

pytestmark = pytest.mark.timeout(200)
QUIET = Settings(stall_timeout=60, progress=False)


@pytest.fixture(params=["local", "spark", pytest.param("ray", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Give each engine, with two ranks."""
    if request.param != "local":
        pytest.importorskip({"spark": "pyspark", "ray": "ray"}[request.param])
        request.getfixturevalue({"spark": "spark", "ray": "ray_context"}[request.param])
    made: Engine = engine_class(request.param).on_cluster(2)
    assert made.workers == 2
    return made


def no_rows(items: Any, folder: Any) -> dict[str, Any]:
    assert list(items) is not None
    return {}


def run(engine: Engine, job: Callable[..., Any], settings: Settings = QUIET) -> list[Any]:
    shards = Shards(no_rows, lambda: [lambda: iter([0]), lambda: iter([0])])
    return engine.run(job, shards, settings)


@dataclass(frozen=True)
class Seen:
    """Tell how a worker looked while it talked: its root logger's level, and whether streams and logger were heard."""

    level: int
    tapped: bool
    heard: bool


@dataclass(frozen=True)
class Talk:
    """Say something in every way, then end well, raise or be killed."""

    end: str = "well"

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> Seen:
        logger = logging.getLogger("their.module")
        for turn in range(3):
            print("printed", turn, "by", world.rank)
        print("on stderr", file=sys.stderr)
        logger.info("an info of %d", world.rank)
        logger.debug("a debug of %d", world.rank)
        print("unfinished", end="", flush=self.end == "killed")
        world.all_gather(None)
        if world.rank == 1 and self.end == "raises":
            raise ValueError("a row is broken")
        if world.rank == 1 and self.end == "killed":
            print(" business", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.end != "well":
            world.all_gather(None)
        root = logging.getLogger()
        heard = any(isinstance(handler, RecordHandler) for handler in root.handlers)
        return Seen(root.level, isinstance(sys.stdout, Tap) and isinstance(sys.stderr, Tap), heard)


def by_rank(text: str, rank: int) -> list[str]:
    return re.findall(rf"^\[rank {rank}\] (.*)$", text, re.MULTILINE)


def test_prints_appear_tagged_in_order_and_once(
    engine: Engine, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "orca.worker")
    capfd.readouterr()
    ranks = run(engine, Talk())
    out, err = capfd.readouterr()  # all is there when run returns
    for rank in range(2):
        assert by_rank(out, rank) == [*(f"printed {turn} by {rank}" for turn in range(3)), "unfinished"]
        assert by_rank(err, rank) == ["on stderr"]
        records = [r for r in caplog.records if r.name == "orca.worker" and r.rank == rank]  # type: ignore[attr-defined]
        said = [(r.levelno, r.getMessage()) for r in records if r.origin == "their.module"]  # type: ignore[attr-defined]
        assert said == [(logging.INFO, f"[rank {rank}] their.module: an info of {rank}")]
    assert ranks == [Seen(logging.INFO, True, True)] * 2
    if engine.name == "ray":
        time.sleep(1.5)  # Ray shows what it forwards some time later
        later = capfd.readouterr()
        assert "printed" not in later.out + later.err and "an info" not in later.out + later.err


def test_the_settings_decide_what_is_heard(
    engine: Engine, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "orca.worker")
    ranks = run(engine, Talk(), Settings(60, False, log_level=logging.DEBUG))
    assert {f"[rank {rank}] their.module: a debug of {rank}" for rank in range(2)} <= set(caplog.messages)
    assert ranks == [Seen(logging.DEBUG, True, True)] * 2
    capfd.readouterr()
    caplog.clear()
    # Spark uses its Python workers again: nothing of the job before is left in them.
    ranks = run(engine, Talk(), Settings(60, False, log_level=logging.ERROR, log_to_driver=False))
    out, err = capfd.readouterr()
    assert "[rank" not in out + err and not [r for r in caplog.records if r.name == "orca.worker"]
    assert ranks == [Seen(logging.ERROR, False, False)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("end", ["raises", "killed"])
def test_the_last_words_of_a_rank_that_fails_arrive(
    engine: Engine, end: str, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    with pytest.raises(WorkerFailed) as raised:
        run(engine, Talk(end))
    assert raised.value.rank == 1 and isinstance(raised.value, WorkerLost) == (end == "killed")
    out, err = capfd.readouterr()
    last = "unfinished" if end == "raises" else "unfinished business"
    assert by_rank(out, 1) == [*(f"printed {turn} by 1" for turn in range(3)), last]
    assert by_rank(err, 1) == ["on stderr"]
