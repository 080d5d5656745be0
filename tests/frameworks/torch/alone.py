"""Alone: a world of one rank in this process, a real one with gloo: torch trains here without starting anything."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import cloudpickle
import numpy as np
import torch.distributed as dist

from orca.core.engine import Envelope, Job, Settings, dumps, run_rank, seal
from orca.core.source import Shards
from orca.core.world import TorchWorld, World, form
from orca.engines.local import LocalEngine
from orca.monitor.heartbeat import Heartbeat
from orca.monitor.protocol import Ticket
from orca.testing import Alone, shards_of


@contextmanager
def tidy() -> Iterator[None]:
    """Leave this process as it was: unlike a worker it goes on, also after a failure, so the group goes too."""
    before = {name: os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")}
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they may hold a DistributedDataParallel
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def alone(heartbeat: Heartbeat) -> Iterator[TorchWorld]:
    """Form the world of one rank."""
    with tidy(), form(Alone(), 60.0, heartbeat) as world:
        yield world
        gc.collect()


class AloneEngine:
    """Run the one rank of a job in this process, as a worker does: without a hub, which would end the process."""

    name = "alone"
    workers = 1

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        try:
            work, data = seal(job, shards.open), dumps(shards.portable(), "the data")
            items = chain.from_iterable(piece() for piece in cloudpickle.loads(data))
            with tidy():
                envelope = Envelope(work, Ticket("127.0.0.1", 1, "", 1), settings, ())
                return [cloudpickle.loads(run_rank(envelope, 0, lambda link: Alone(), items))]
        finally:
            shards.release()

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        return [task(piece) for piece in pieces]


def on_ranks(size: int, work: Callable[[World], Any]) -> list[Any]:
    """Return what each rank of a world returns; a world of one rank is formed in this process."""
    if size == 1:
        with alone(Heartbeat()) as world:
            return [work(world)]
    job = lambda world, rows, heartbeat: work(world)  # noqa: E731
    shards = shards_of([(np.zeros((1, 1)), np.zeros(1))] * size)
    return LocalEngine(size).run(job, shards, Settings(progress=False))
