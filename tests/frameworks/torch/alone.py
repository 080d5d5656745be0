"""Alone: a world of one rank in this process, a real one with gloo: torch trains here without starting anything."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from orca.core.engine import Job, Settings, dumps, scratch, seal
from orca.core.pulse import Pulse
from orca.core.source import Shards
from orca.core.world import TorchWorld, World, _leave, form
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError
from orca.frameworks.torch.fsdp import _fully_shard
from orca.testing import shards_of


def shards_fully() -> bool:
    """Say whether this torch shards models between CPUs."""
    try:
        _fully_shard(torch.device("cpu"))
    except ArgumentError:
        return False
    return True


needs_full_shards = pytest.mark.skipif(not shards_fully(), reason="torch before 2.8 cannot shard fully between CPUs")


@dataclass(frozen=True)
class Alone:
    """Be the only peer."""

    rank: int = 0
    size: int = 1
    host: str = "127.0.0.1"

    def all_gather(self, text: str) -> list[str]:
        return [text]


@contextmanager
def alone(pulse: Pulse) -> Iterator[TorchWorld]:
    """Form the world of one rank; unlike a worker, this process goes on after a failure, so the group goes too."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    try:
        with form(Alone(), 60.0, pulse) as world:
            yield world
            gc.collect()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they may hold a DistributedDataParallel
        gc.collect()
        if dist.is_initialized():
            _leave(dist)
        raise
    finally:
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if before is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = before


class AloneEngine:
    """Run the one rank of a job in this process; job and data are pickled as for any other engine."""

    name = "alone"
    workers = 1

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        try:
            return [self._rank(seal(job, shards.open), dumps(shards.portable(), "the data"))]
        finally:
            shards.release()

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        return [task(piece) for piece in pieces]

    def _rank(self, work: bytes, data: bytes) -> Any:
        job, open_rows = cloudpickle.loads(work)
        pulse = Pulse()
        with scratch() as folder:
            rows = dict(open_rows(chain.from_iterable(piece() for piece in cloudpickle.loads(data)), folder))
            try:
                with alone(pulse) as world:
                    result = job(world, rows, pulse)
                    del job
                return cloudpickle.loads(dumps(result, "the result"))
            finally:
                for part in rows.values():
                    part.close()


def on_ranks(size: int, work: Callable[[World], Any]) -> list[Any]:
    """Return what each rank of a world returns; a world of one rank is formed in this process."""
    if size == 1:
        with alone(Pulse()) as world:
            return [work(world)]
    job = lambda world, rows, pulse: work(world)  # noqa: E731
    shards = shards_of([(np.zeros((1, 1)), np.zeros(1))] * size)
    return LocalEngine(size).run(job, shards, Settings(progress=False))
