"""Job: what a rank does. Frozen dataclasses that travel to every rank and run there: fit, evaluate, predict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import cloudpickle

from orca.core.columns import concatenate
from orca.core.engine import dumps
from orca.core.feed import Feed, StreamFeed, feed_of
from orca.core.learner import FitPlan, Learner, OutputSpec, Predictor, State
from orca.core.loop import History, evaluate, mean_profile, profile_of, run_epochs
from orca.core.metrics import Metric
from orca.core.pulse import Pulse
from orca.core.source import Rows
from orca.core.tree import cut_rows, rows_of
from orca.core.world import World
from orca.errors import DataError


@dataclass(frozen=True)
class FitJob:
    """Train on every rank; each returns its History, rank 0 the State as well."""

    learner: Learner
    plan: FitPlan
    metrics: tuple[Metric, ...]
    state: State | None

    def __call__(self, world: World, rows: dict[str, Rows], pulse: Pulse) -> tuple[History, State | None]:
        """Run on one rank."""
        plan, learner = self.plan, self.learner
        pulse.profiling = plan.profile
        train = feed_of(rows["train"], world, plan.batch_size, shuffle=plan.shuffle, seed=plan.seed)
        train.check_rows()
        valid = None
        if "valid" in rows:
            valid = feed_of(rows["valid"], world, plan.batch_size, shuffle=False, seed=plan.seed)
        _check_ends(train, plan.steps_per_epoch or plan.max_steps, "steps_per_epoch")
        _check_ends(valid, plan.validation_steps, "validation_steps")
        learner.join(world, self.state, plan.seed, training=True)
        try:
            trained = self.state.epoch if self.state else 0
            history = run_epochs(learner, train, valid, self.metrics, plan, world, pulse, trained)
            state = learner.state()
        finally:
            learner.leave()
        state.epoch = trained + len(history.epochs)
        state.steps = (self.state.steps if self.state else 0) + history.steps
        return history, state if world.rank == 0 else None


@dataclass(frozen=True)
class EvaluateJob:
    """Evaluate on every rank; each returns (statistics over all ranks, statistics of its own, row specs)."""

    learner: Learner
    batch_size: int | None
    metrics: tuple[Metric, ...]
    state: State | None
    seed: int = 0
    num_steps: int | None = None
    profile: bool = False

    def __call__(self, world: World, rows: dict[str, Rows], pulse: Pulse) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Run on one rank."""
        pulse.profiling = self.profile
        feed = feed_of(rows["train"], world, self.batch_size, shuffle=False, seed=self.seed)
        _check_ends(feed, self.num_steps, "num_steps")
        self.learner.join(world, self.state, self.seed, training=False)
        try:
            reduced, own = evaluate(self.learner, feed, self.metrics, world, pulse, self.num_steps)
            state = self.learner.state()
        finally:
            self.learner.leave()
        if self.profile:
            own["profile"] = profile_of(pulse, evaluated=self.num_steps or feed.steps or 0)
            reduced = reduced | {"profile": mean_profile(world.all_gather(own["profile"]))}
        return reduced, own, (state.input, state.output)


@dataclass(frozen=True)
class PredictJob:
    """Answer for blocks of rows; the model is restored once in a process, whatever the number of blocks.

    Attributes:
        key: Names this model and these weights: the process keeps the model it restored last.
        work: The pickled (predictor, state), opened only where the key is new.
        batch_size: Rows the model sees at a time.
        output: What the model gives for a row, where that is known already.
    """

    key: str
    work: bytes
    batch_size: int
    output: OutputSpec | None

    @classmethod
    def of(cls, predictor: Predictor, state: State, batch_size: int) -> PredictJob:
        """Pickle the predictor and its weights once."""
        work = dumps((predictor, state.for_answers()), "the model")
        return cls(hashlib.sha256(work).hexdigest(), work, batch_size, state.output)

    def __call__(self, x: Any) -> Any:
        """Return the outputs for a block of rows, as a tree of numpy arrays."""
        if _restored.get("key") != self.key:
            predictor, state = cloudpickle.loads(self.work)
            predictor.restore(state)
            _restored.update(key=self.key, predictor=predictor)
        predictor = _restored["predictor"]
        rows, size = rows_of(x), self.batch_size
        cuts = range(0, rows, size) if rows else range(1)
        parts = [predictor.predict(cut_rows(x, slice(at, at + size))) for at in cuts]
        return concatenate(parts)


_restored: dict[str, Any] = {}


def _check_ends(feed: Feed | StreamFeed | None, limit: int | None, name: str) -> None:
    if feed is not None and feed.endless and not limit:
        raise DataError(f"the data has no end (it repeats itself). Pass {name}=, or leave out repeat().")
