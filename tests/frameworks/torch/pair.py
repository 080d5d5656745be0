"""Pair: fits of Estimators on two ranks. Starting ranks costs seconds, a tiny fit milliseconds: so many share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from orca.core.engine import Job, Settings
from orca.core.source import Items, Open, Shards
from orca.core.world import World
from orca.engines.local import LocalEngine
from orca.estimators.torch import TorchEstimator
from orca.monitor.heartbeat import Heartbeat
from orca.testing import shards_of

RANKS = 2


@dataclass(frozen=True)
class Case:
    """A job as an Estimator sends it, with the pieces of its data."""

    job: Job
    open: Open
    pieces: list[Callable[[], Items]]

    def __call__(self, world: World, heartbeat: Heartbeat) -> Any:
        """Run on one rank."""
        mine = chain.from_iterable(piece() for piece in self.pieces[world.rank :: world.size])
        with TemporaryDirectory() as folder:
            rows = dict(self.open(mine, Path(folder)))
            try:
                return self.job(world, rows, heartbeat)
            finally:
                for part in rows.values():
                    part.close()


class Recorded(Exception):
    """The way of a case out of the Estimator."""


class Recorder:
    """An engine that takes down what an Estimator would run on two ranks."""

    name = "recorder"
    workers = RANKS

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        raise Recorded(Case(job, shards.open, shards.portable()))


class Recording(TorchEstimator):
    """An Estimator that does not run its jobs."""

    engine = Recorder()  # type: ignore[assignment]


BY_GLOO = " by gloo"  # the end of a case's name: its ranks share no memory


@dataclass(frozen=True)
class All:
    """Run all cases one after the other."""

    cases: dict[str, Case]

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Heartbeat) -> dict[str, Any]:
        """Run on one rank."""
        results, sums = {}, world.sums
        for name, case in self.cases.items():
            world.sums = None if name.endswith(BY_GLOO) else sums
            results[name] = case(world, heartbeat)
        world.sums = sums
        return results


def recorded(call: Callable[[], Any]) -> Case:
    """Return the case of a call of a verb of a Recording."""
    try:
        call()
    except Recorded as failure:
        case: Case = failure.args[0]
        return case
    raise AssertionError("the Estimator ran nothing")


def on_two_ranks(calls: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Run the verbs of Recordings on the same two ranks; return what each rank gave, by name."""
    cases = {name: recorded(call) for name, call in calls.items()}
    ranks = LocalEngine(RANKS).run(
        All(cases), shards_of([(np.zeros((1, 1)), np.zeros(1))] * RANKS), Settings(progress=False)
    )
    return {name: [own[name] for own in ranks] for name in calls}


def once_on_two_ranks(calls: dict[str, Callable[[], Any]]) -> Callable[[], dict[str, list[Any]]]:
    """Run the verbs of Recordings now; return a function that gives the results, or raises the failure each time."""
    try:
        results = on_two_ranks(calls)
    except Exception as error:  # every test fails with it, none runs it again
        failure = error

        def fail() -> Any:
            raise failure

        return fail
    return lambda: results
