"""Recovery: a fit that goes on when workers are lost, stuck or preempted. Owns max_failures,
and which states a fit may begin with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from orca.core.engine import Engine, Settings
from orca.core.learner import Learner
from orca.core.source import Shards
from orca.core.state import Position, State
from orca.errors import WorkerFailed, WorkerLost, WorkerPreempted, WorkerStalled
from orca.job import FitJob
from orca.monitor.stopping import FINISHING

logger = logging.getLogger(__name__)


def check_state(learner: Learner, state: State, path: str) -> None:
    """Check that a state can be continued from, before it takes the place of another; errors name its path."""
    from orca.storage.states import readable

    with readable(path):
        if state.position is not None:
            Position.from_json(state.position)
        learner.check_state(state, path)


def run_through(
    job: FitJob,
    shards: Callable[[int], Shards],
    engine_now: Callable[[], Engine],
    newest: Callable[[], tuple[int, State] | None],
    settings: Settings,
    max_failures: int,
) -> list[Any]:
    """Run a fit; where a worker is lost or stuck, resume from the last checkpoint, so many times.

    Args:
        job: The fit.
        shards: Returns the data for a number of ranks.
        engine_now: Returns the engine for the cluster as it is.
        newest: Returns the newest checkpoint of the fit, and the steps behind it; None if there is none.
        settings: How ranks are watched.
        max_failures: How many failures to go on after.
    """
    engine = engine_now()
    for failure in count(1):
        try:
            results = engine.run(job, shards(engine.workers), settings)
            stop = results[0][0].stop
            if stop is None or stop.interrupted or stop.step == FINISHING:
                return results
            raise WorkerPreempted(
                *(max(stop.rank, 0), stop.host),
                f"{stop.reason}. A checkpoint of step {stop.step} is in {job.plan.checkpoint_folder}.",
            )
        except (WorkerLost, WorkerStalled) as error:
            if failure > max_failures:
                raise
            checkpoint = newest()
            if checkpoint is not None:
                job = replace(job, state=checkpoint[1].to_send())
            place = f"after step {checkpoint[0]}" if checkpoint is not None else "from where this fit began"
            words = "%s\nFailure %d of the %d that max_failures allows: going on %s."
            logger.warning(words, error, failure, max_failures, place)
            engine = _engine_after(engine, engine_now, settings.return_timeout, error)
    raise AssertionError("unreachable")


def _engine_after(former: Engine, engine_now: Callable[[], Engine], seconds: float, error: WorkerFailed) -> Engine:
    """Return the engine to continue with: all workers where they come back in time, else those that are left.

    Raises:
        WorkerLost: No worker is left, and none came back.
    """
    if not former.settle(seconds):
        reason = f"{error.reason.rstrip('.')}. No worker came back in {seconds:g} s (return_timeout)."
        raise type(error)(error.rank, error.host, reason, error.remote_traceback) from None
    engine = engine_now()
    if engine.workers < former.workers:
        logger.warning("going on with %d of %d workers: no more came back.", engine.workers, former.workers)
    return engine
