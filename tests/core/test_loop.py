from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from orca.core import loop
from orca.core.array_session import ArraySession
from orca.core.engine import Settings
from orca.core.feed import Feed
from orca.core.learner import FitPlan
from orca.core.loop import FitLoop, evaluate
from orca.core.losses import LossAccumulator, StepLoss, StepResult
from orca.core.metrics import MAE, MSE, ROC, CustomizedMetric, Metric
from orca.core.schedule import epoch_ended
from orca.core.source import Batch, Rows
from orca.core.state import Position, State
from orca.core.triggers import (
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    SeveralIteration,
    TriggerOr,
    trigger_of,
)
from orca.core.world import World
from orca.engines.local import LocalEngine
from orca.errors import WorkerFailed
from orca.storage.checkpoints import CheckpointWriter
from orca.testing import LinearLearner, shards_of

SETTINGS = Settings(stall_timeout=20)
TRAINING = ["num_samples", "epoch", "batch_count", "train_loss", "last_train_loss"]


class SummingSession(ArraySession):
    """Learn nothing: the loss of a row is its value, so that every number can be worked out by hand."""

    def train_step(self, batch: Batch, step: int) -> StepResult:
        total = self.epoch * float(batch.x[: batch.rows, 0].sum())
        return StepResult(StepLoss(total, 1.0, batch.rows))


class Summing(LinearLearner):
    session_type: ClassVar[type[ArraySession]] = SummingSession


@dataclass(frozen=True)
class LoopJob:
    """Run the epochs and return every rank's history."""

    plan: FitPlan
    metrics: tuple[Metric, ...] = ()
    learner: LinearLearner = field(default_factory=lambda: LinearLearner(1))
    trained: int = 0

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        plan = self.plan
        heartbeat.profiling = plan.profile
        feeds = {part: Feed(rows[part], world, plan.batch_size, shuffle=plan.shuffle, seed=0) for part in rows}
        since = Position(self.trained, 0, 0, 0)
        train, valid = feeds["train"], feeds.get("valid")
        with self.learner.join(world, None, 0, fit=plan) as session:
            return FitLoop(session, train, valid, self.metrics, plan, world, heartbeat, since).run()


def shard(*values: float) -> tuple[np.ndarray, np.ndarray]:
    return np.array(values, np.float64).reshape(-1, 1), np.array(values, np.float64) * 2


PLAN = FitPlan(epochs=2, batch_size=2, shuffle=False)
UNEVEN = [shard(1, 2, 3), shard(), shard(10)]


def test_history_has_a_line_an_epoch_with_exact_numbers() -> None:
    histories = LocalEngine(3).run(LoopJob(PLAN, learner=Summing(1)), shards_of(UNEVEN), SETTINGS)
    # Steps: rows at 1/6, 3/6, 5/6 of rank 0 and 1/2 of rank 2: {1, 2}, then {10, 3}.
    assert histories[0].epochs == [
        {"num_samples": 4, "epoch": 1, "batch_count": 2, "train_loss": 4.0, "last_train_loss": 6.5},
        {"num_samples": 4, "epoch": 2, "batch_count": 2, "train_loss": 8.0, "last_train_loss": 13.0},
    ]
    assert histories[0].epochs == histories[1].epochs == histories[2].epochs
    assert [history.steps for history in histories] == [4, 4, 4]


def test_each_rank_keeps_its_own_line() -> None:
    first, idle, last = LocalEngine(3).run(LoopJob(PLAN, learner=Summing(1)), shards_of(UNEVEN), SETTINGS)
    own = {"num_samples": 3, "epoch": 1, "batch_count": 2, "train_loss": 2.0, "last_train_loss": 3.0}
    assert first.mine[0] == own
    assert last.mine[0] == {**own, "num_samples": 1, "train_loss": 10.0, "last_train_loss": 10.0}
    assert idle.mine[0]["num_samples"] == 0 and idle.mine[0]["batch_count"] == 2
    assert math.isnan(idle.mine[0]["train_loss"]) and math.isnan(idle.mine[0]["last_train_loss"])


def test_own_last_loss_is_that_of_the_last_step_with_rows() -> None:
    job = LoopJob(FitPlan(batch_size=2, shuffle=False))  # the last step has one row, of rank 0
    busy, idle = LocalEngine(2).run(job, shards_of([shard(1, 2, 3, 4), shard(5)]), SETTINGS)
    assert idle.mine[0]["last_train_loss"] == idle.mine[0]["train_loss"] > 0
    assert busy.mine[0]["last_train_loss"] == busy.epochs[0]["last_train_loss"] != busy.mine[0]["train_loss"]
    assert busy.epochs == idle.epochs


def test_epochs_go_on_after_those_trained() -> None:
    (history,) = LocalEngine(1).run(LoopJob(PLAN, trained=5), shards_of([shard(1, 2)]), SETTINGS)
    assert [line["epoch"] for line in history.epochs] == [6, 7]


@pytest.mark.parametrize(("limit", "steps"), [(1, [1]), (3, [2, 1]), (4, [2, 2]), (7, [2, 2, 2, 1])])
def test_max_steps_says_how_long_to_train_whatever_the_epochs(limit: int, steps: list[int]) -> None:
    job = LoopJob(replace(PLAN, max_steps=limit), learner=Summing(1))
    for history in LocalEngine(2).run(job, shards_of([shard(1, 2, 3), shard(10)]), SETTINGS):
        assert [line["batch_count"] for line in history.epochs] == steps and history.steps == sum(steps)
        assert [line["num_samples"] for line in history.epochs] == [2 * count for count in steps]


@pytest.mark.parametrize("limit", [None, 3])
def test_no_rows_are_no_steps_and_no_lines(limit: int | None) -> None:
    job = LoopJob(FitPlan(epochs=1, max_steps=limit))
    (history,) = LocalEngine(1).run(job, shards_of([shard()]), SETTINGS)
    assert history.epochs == [] and history.steps == 0


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_validation_merges_exactly(ranks: int) -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 50.0])
    valid = {1: [values], 2: [values[:1], values[1:]], 3: [values[:0], values[:4], values[4:]]}[ranks]
    train = [shard(1.0, 2.0), shard(), shard()][:ranks]
    middle = CustomizedMetric(lambda output, target: float(np.median(target))).named("Middle")
    job = LoopJob(FitPlan(epochs=1, batch_size=2), (MSE(), MAE(), middle), learner=Summing(1))
    shards = shards_of(train, [shard(*part) for part in valid])
    results = LocalEngine(ranks).run(job, shards, SETTINGS)
    learner = LinearLearner(1)
    error = learner.open_predictor(learner.initial_state(0)).predict(values.reshape(-1, 1)) - 2 * values
    for history in results:
        (line,) = history.epochs
        assert list(line) == [*TRAINING, "val_num_samples", "val_loss", "val_mse", "val_mae", "val_middle"]
        assert line["val_num_samples"] == 5 and line["val_middle"] == 4.0
        assert line["val_loss"] == pytest.approx(np.mean(error**2), rel=1e-12)
        assert line["val_mse"] == pytest.approx(np.mean(error**2), rel=1e-6)
        assert line["val_mae"] == pytest.approx(np.mean(abs(error)), rel=1e-6)
    assert [history.mine[0]["val_num_samples"] for history in results] == [len(part) for part in valid]


def test_profile_tells_where_time_went() -> None:
    job = LoopJob(replace(PLAN, profile=True))
    histories = LocalEngine(2).run(job, shards_of([shard(1, 2, 3), shard(10)], [shard(1), shard(2)]), SETTINGS)
    names = [f"mean_{name}_s" for name in ("data", "eval_fwd", "fwd", "bwd", "optimizer", "comm", "train_epoch")]
    names += ["mean_validation_s"]
    for history in histories:
        for line in (*history.epochs, *history.mine):
            assert [name for name in line["profile"] if name != "ranks"] == names
            assert all(line["profile"][name] >= 0 for name in names)
        assert history.epochs[0]["profile"]["mean_bwd_s"] > 0
    for epoch in (0, 1):
        means = [history.mine[epoch]["profile"]["mean_train_epoch_s"] for history in histories]
        assert histories[0].epochs[epoch]["profile"]["mean_train_epoch_s"] == pytest.approx(np.mean(means))


class TimedSession(SummingSession):
    """Spend exactly a second an epoch in the forward phase, for all that is said."""

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        self.world.heartbeat.profile["forward"] += 1.0
        return super().begin_epoch(epoch, on_nan)


class Timed(LinearLearner):
    session_type: ClassVar[type[ArraySession]] = TimedSession


def test_profile_is_the_mean_over_the_steps_of_its_own_epoch() -> None:
    job = LoopJob(replace(PLAN, profile=True), learner=Timed(1))
    for history in LocalEngine(2).run(job, shards_of([shard(1, 2, 3), shard(10)]), SETTINGS):
        assert [line["profile"]["mean_fwd_s"] for line in history.epochs] == [0.5, 0.5]


def test_without_profile_there_is_none() -> None:
    (history,) = LocalEngine(1).run(LoopJob(PLAN), shards_of([shard(1, 2)]), SETTINGS)
    assert all(list(line) == TRAINING for line in history.epochs)


@dataclass(frozen=True)
class EvaluateLoop:
    """Evaluate some steps."""

    metrics: Sequence[Metric]
    num_steps: int | None

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        feed = Feed(rows["train"], world, 2, shuffle=False, seed=0)
        return evaluate(LinearLearner(1).join(world, None, 0), feed, self.metrics, world, heartbeat, self.num_steps)


class Secretive(MSE):
    """A metric whose state is no value that ranks can tell each other."""

    def state(self) -> Any:
        return object()


def test_metric_whose_state_cannot_travel_is_named() -> None:
    with pytest.raises(WorkerFailed, match=r"the state of the metric 'Secretive' cannot travel .* builtins\.object"):
        LocalEngine(2).run(EvaluateLoop((MAE(), Secretive()), None), shards_of([shard(1), shard(2)]), SETTINGS)


def test_evaluate_counts_only_the_steps_asked_for() -> None:
    shards = shards_of([shard(1, 2, 3), shard(4, 5, 6)])
    all_rows, some = (LocalEngine(2).run(EvaluateLoop((MSE(),), n), shards, SETTINGS) for n in (None, 2))
    assert [reduced["num_samples"] for reduced, _ in all_rows] == [6, 6]
    assert [reduced["num_samples"] for reduced, _ in some] == [4, 4]
    assert [own["num_samples"] for _, own in some] == [2, 2]
    assert list(some[0][0]) == ["num_samples", "val_loss", "MSE"]


class NotingSession(SummingSession):
    """Note which rows each epoch had, and ask to stop when the learner says so."""

    learner: Noting

    def begin_epoch(self, epoch: int, on_nan: str) -> LossAccumulator:
        if not self.learner.calls:
            self.learner.calls.append(("begin", self.runner.num_steps))
        self.learner.seen.append([])
        return super().begin_epoch(epoch, on_nan)

    def train_step(self, batch: Batch, step: int) -> StepResult:
        self.learner.seen[-1] += [float(value) for value in batch.x[: batch.rows, 0]]
        return super().train_step(batch, step)

    def end_epoch(self, line: dict[str, Any]) -> bool:
        self.learner.calls.append(("end", line["epoch"], "val_loss" in line))
        return self.world.rank == self.learner.stopper and line["epoch"] >= self.learner.stop_after

    def end_fit(self) -> None:
        self.learner.calls.append("finish")


class Noting(LinearLearner):
    """A learner whose session, which has a copy of it, shares its notes."""

    session_type: ClassVar[type[ArraySession]] = NotingSession

    def __init__(self, stop_after: int = 99, rank: int = 0) -> None:
        super().__init__(1)
        self.stop_after, self.stopper = stop_after, rank
        self.seen: list[list[float]] = []
        self.calls: list[Any] = []


@dataclass(frozen=True)
class NotingJob:
    """Run the epochs; return the history, what the learner saw and what it was told."""

    plan: FitPlan
    stop_after: int = 99
    stopper: int = 0

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        learner = Noting(self.stop_after, self.stopper)
        return LoopJob(self.plan, learner=learner)(world, rows, heartbeat), learner.seen, learner.calls


def test_an_epoch_of_some_steps_goes_on_in_the_data_where_the_last_one_ended() -> None:
    plan = FitPlan(epochs=4, batch_size=2, shuffle=False, steps_per_epoch=2)
    ((history, seen, calls),) = LocalEngine(1).run(NotingJob(plan), shards_of([shard(1, 2, 3, 4, 5)]), SETTINGS)
    assert seen == [[1, 2, 3, 4], [5, 1, 2], [3, 4, 5], [1, 2, 3, 4]]
    assert [line["batch_count"] for line in history.epochs] == [2, 2, 2, 2]
    assert calls[0] == ("begin", 2) and calls[-1] == "finish"


@pytest.mark.parametrize(("freq", "validated"), [(1, [1, 2, 3, 4]), (2, [2, 4]), ((1, 3), [1, 3])])
def test_validation_comes_after_the_epochs_it_is_asked_for(freq: Any, validated: list[int]) -> None:
    plan = FitPlan(epochs=4, batch_size=2, shuffle=False, validation_freq=freq, validation_steps=1)
    shards = shards_of([shard(1, 2)], [shard(1, 2, 3, 4)])
    ((history, _, calls),) = LocalEngine(1).run(NotingJob(plan), shards, SETTINGS)
    assert [line["epoch"] for line in history.epochs if "val_loss" in line] == validated
    assert {line["val_num_samples"] for line in history.epochs if "val_loss" in line} == {2}
    assert [call[1] for call in calls[1:-1] if call[2]] == validated


@pytest.mark.parametrize("stopper", [0, 1])
def test_one_rank_that_asks_to_stop_stops_all_of_them(stopper: int) -> None:
    plan = FitPlan(epochs=9, batch_size=2, shuffle=False)
    results = LocalEngine(2).run(NotingJob(plan, 3, stopper), shards_of([shard(1, 2), shard(3)]), SETTINGS)
    assert [len(history.epochs) for history, _, _ in results] == [3, 3]
    assert [calls[-1] for _, _, calls in results] == ["finish", "finish"]


@dataclass(frozen=True)
class KeptJob(LoopJob):
    """Keep checkpoints in a list, and go on from one of them."""

    since: dict[str, Any] | None = None

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        kept: list[State] = []
        keeper = type("CheckpointWriter", (), {"keep": staticmethod(kept.append)})() if world.rank == 0 else None
        feed = Feed(rows["train"], world, self.plan.batch_size, shuffle=True, seed=0)
        state = State(payload=self.since["payload"]) if self.since else None
        since = Position.from_json(self.since["position"]) if self.since else Position(0, 0, 0, 0)
        valid = Feed(rows["valid"], world, 2, shuffle=False, seed=0) if "valid" in rows else None
        with self.learner.join(world, state, 0, fit=self.plan) as session:
            loop = FitLoop(session, feed, valid, self.metrics, self.plan, world, heartbeat, since, keeper)
            return loop.run(), kept, session.state().payload


def test_fit_goes_on_from_any_checkpoint_as_if_it_had_not_ended() -> None:
    plan = FitPlan(epochs=3, batch_size=2, checkpoint_trigger=SeveralIteration(2))
    shards = [shard(1, 2, 3), shard(), shard(5, 7)]  # three steps an epoch
    learner = LinearLearner(1, rate=0.001, momentum=0.9)
    (history, kept, payload), *_ = LocalEngine(3).run(KeptJob(plan, learner=learner), shards_of(shards), SETTINGS)
    assert [(state.steps, state.epoch) for state in kept] == [(2, 0), (4, 1), (6, 2), (8, 2)]
    for state in kept:
        report = json.loads(json.dumps(state.position))
        job = KeptJob(plan, learner=learner, since={"position": report, "payload": state.payload})
        (again, later, ended), *others = LocalEngine(3).run(job, shards_of(shards), SETTINGS)
        for line, expected in zip(again.epochs, history.epochs, strict=True):
            assert line == pytest.approx(expected, rel=1e-12)
        assert [state.steps for state in later] == [steps for steps in (2, 4, 6, 8) if steps > state.steps]
        np.testing.assert_array_equal(ended["models"][0]["weight"], payload["models"][0]["weight"])
        assert all(other[0].epochs == again.epochs for other in others)


VALID = [shard(2), shard(4, 9)]


@pytest.mark.parametrize(
    ("trigger", "steps", "due"),
    [
        (SeveralIteration(2), 9, [[2], [4, 6], [8]]),
        (SeveralIteration(4), 9, [[], [4], [8]]),
        (TriggerOr(EveryEpoch(), SeveralIteration(3)), 9, [[3], [6], [9]]),  # once where both fire
        (EveryEpoch(), 8, [[3], [6], [8]]),
        (SeveralIteration(4), 8, [[], [4], [8]]),  # the fit ends there, mid-epoch
        (trigger_of(lambda moment: moment.step == 5 and not moment.epoch_ended), 9, [[], [5], []]),
    ],
)
def test_validation_acts_when_its_trigger_fires_and_is_resumed_exactly(
    trigger: Any, steps: int, due: list[list[int]]
) -> None:
    plan = FitPlan(epochs=3, batch_size=2, validation_trigger=trigger, checkpoint_trigger=SeveralIteration(1))
    plan = replace(plan, end_trigger=MaxIteration(steps))
    learner = LinearLearner(1, rate=0.001, momentum=0.9)
    shards, metrics = shards_of([shard(1, 2, 3), shard(5, 7)], VALID), (MAE(),)
    (history, kept, _), *_ = LocalEngine(2).run(KeptJob(plan, metrics, learner=learner), shards, SETTINGS)
    assert [[at["step"] for at in line.get("validations", ())] for line in history.epochs] == due
    weights = {state.steps: state.payload["models"][0]["weight"] for state in kept}
    x = np.array([2.0, 4.0, 9.0])
    for line in history.epochs:
        for stats in line.get("validations", ()):
            weight, bias = weights[stats["step"]]
            assert stats["val_loss"] == pytest.approx(np.mean((weight * x + bias - 2 * x) ** 2), rel=1e-9)
        last = line["validations"][-1] if "validations" in line else {}
        assert {name: line[name] for name in line if name.startswith("val_")} == {
            n: last[n] for n in last if n != "step"
        }
    for state in kept[1::3]:
        since = {"position": json.loads(json.dumps(state.position)), "payload": state.payload}
        job = KeptJob(plan, metrics, learner=learner, since=since)
        (again, _, _), *_ = LocalEngine(2).run(job, shards, SETTINGS)
        for line, expected in zip(again.epochs, history.epochs, strict=True):
            assert line.get("validations") == expected.get("validations")
            assert {**line, "validations": 0} == pytest.approx({**expected, "validations": 0}, rel=1e-12)


def test_end_trigger_stops_within_an_epoch() -> None:
    plan = FitPlan(epochs=9, batch_size=2, end_trigger=MaxIteration(4))
    (history, *_), *_ = LocalEngine(2).run(KeptJob(plan), shards_of([shard(1, 2, 3), shard(5, 7)]), SETTINGS)
    assert [line["batch_count"] for line in history.epochs] == [3, 1]


def test_curve_is_a_number_of_the_epoch_as_lists_and_never_its_score() -> None:
    plan = FitPlan(epochs=9, batch_size=2, end_trigger=MaxScore(0.0))
    valid = [(np.array([[1.0], [2.0]]), np.array([0.0, 1.0])), (np.zeros((0, 1)), np.zeros(0))]
    job = LoopJob(plan, (ROC(), MAE()))
    history, _ = LocalEngine(2).run(job, shards_of([shard(1, 2, 3), shard(5)], valid), SETTINGS)
    (line,) = history.epochs  # its score, the error, is above 0
    false, true, thresholds = line["val_roc"]
    assert (false[0], false[-1], true[0], true[-1], thresholds[0]) == (0.0, 1.0, 0.0, 1.0, math.inf)
    assert len(thresholds) == 3 and type(thresholds) is list and line["val_mae"] > 0
    read = json.loads(json.dumps(line))  # as a resumed fit has it: its tuples are lists
    assert epoch_ended(1, 2, read, (ROC(), MAE())).score == line["val_mae"]


THREE_STEPS = [shard(1, 2, 3), shard(5, 7)]
STEADY = LinearLearner(1, rate=0.001, momentum=0.9)


def resumed(plan: FitPlan, state: State, learner: LinearLearner = STEADY) -> Any:
    since = {"position": json.loads(json.dumps(state.position)), "payload": state.payload}
    results = LocalEngine(2).run(KeptJob(plan, learner=learner, since=since), shards_of(THREE_STEPS), SETTINGS)
    return results[0]


@pytest.mark.parametrize(
    ("trigger", "steps"),
    [
        (MaxIteration(4), [3, 1]),
        (MaxIteration(3), [3]),
        (MaxEpoch(2), [3, 3]),
        (MinLoss(1e9), [3]),
        (trigger_of(lambda moment: moment.step == 4 and not moment.epoch_ended), [3, 1]),
    ],
)
def test_fit_that_its_end_trigger_ended_has_nothing_left_to_train(trigger: Any, steps: list[int]) -> None:
    plan = FitPlan(epochs=9, batch_size=2, end_trigger=trigger, checkpoint_trigger=SeveralIteration(1))
    job = KeptJob(plan, learner=STEADY)
    (history, kept, payload), *_ = LocalEngine(2).run(job, shards_of(THREE_STEPS), SETTINGS)
    assert [line["batch_count"] for line in history.epochs] == steps
    assert [state.steps for state in kept] == list(range(1, sum(steps) + 1))
    for state in kept:  # the last one is complete; from one before it, the fit ends at the same step
        again, _, ended = resumed(plan, state)
        assert [line["batch_count"] for line in again.epochs] == steps and again.steps == sum(steps)
        np.testing.assert_array_equal(ended["models"][0]["weight"], payload["models"][0]["weight"])
    later, _, _ = resumed(replace(plan, end_trigger=MaxIteration(sum(steps) + 2)), kept[-1])
    assert later.steps == sum(steps) + 2  # another trigger has another say


def test_fit_that_went_further_than_is_asked_for_ends_where_it_is() -> None:
    plan = FitPlan(epochs=3, batch_size=2, checkpoint_trigger=SeveralIteration(5))
    (_, kept, _), *_ = LocalEngine(2).run(KeptJob(plan, learner=STEADY), shards_of(THREE_STEPS), SETTINGS)
    (state,) = kept  # after the second step of the second epoch
    for less in ({"epochs": 1}, {"max_steps": 2}, {"max_steps": 4}, {"end_trigger": MaxIteration(4)}):
        history, _, payload = resumed(replace(plan, **less), state)  # type: ignore[arg-type]
        assert [line["batch_count"] for line in history.epochs] == [3, 2] and history.steps == 5
        np.testing.assert_array_equal(payload["models"][0]["weight"], state.payload["models"][0]["weight"])


class HastySession(ArraySession):
    """A session that reads two batches ahead, as for a GPU, and that stops after so many steps in all."""

    learner: Hasty

    def prepare(self, batches: Iterator[Batch], epoch: int, first_step: int) -> Iterator[Batch]:
        ahead = deque(islice(batches, 3))
        while ahead:
            yield ahead.popleft()
            ahead.extend(islice(batches, 1))

    def train_step(self, batch: Batch, step: int) -> StepResult:
        self.learner.trained.extend(float(value) for value in batch.x[: batch.rows, 0])
        return super().train_step(batch, step)

    def agree_to_stop(self, wants_stop: bool | None) -> bool:
        return len(self.learner.trained) >= self.learner.stop_at

    def end_epoch(self, line: dict[str, Any]) -> bool:
        return self.agree_to_stop(None)


class Hasty(LinearLearner):
    session_type: ClassVar[type[ArraySession]] = HastySession

    def __init__(self, stop_at: int) -> None:
        super().__init__(1)
        self.stop_at, self.trained = stop_at, list[float]()


@dataclass(frozen=True)
class HastyJob(KeptJob):
    """Stop a learner that reads ahead; return its history, the steps of the checkpoints and the rows trained on."""

    stop_at: int = 0

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        learner = Hasty(self.stop_at)
        history, kept, _ = KeptJob(self.plan, learner=learner)(world, rows, heartbeat)
        return history, [(state.steps, state.position["ended"]) for state in kept], learner.trained


@pytest.mark.parametrize(("due", "kept"), [(3, []), (2, [(2, "stopped")]), (1, [(1, ""), (2, "stopped")])])
def test_stop_ends_the_epoch_wherever_a_checkpoint_is_due(due: int, kept: list[Any]) -> None:
    plan = FitPlan(epochs=3, batch_size=1, checkpoint_trigger=SeveralIteration(due))
    ((history, items, trained),) = LocalEngine(1).run(
        HastyJob(plan, stop_at=2), shards_of([shard(1, 2, 3, 4, 5, 6)]), SETTINGS
    )
    assert len(trained) == history.steps == 2 and items == kept


class RestoringSession(ArraySession):
    """A session that puts other weights back when the fit ends."""

    def end_fit(self) -> None:
        self.learner.set_weights({"weight": np.array([7.0, 7.0])})


class Restoring(LinearLearner):
    session_type: ClassVar[type[ArraySession]] = RestoringSession


@pytest.mark.parametrize("plan", [FitPlan(epochs=2, checkpoint_trigger=EveryEpoch()), FitPlan(epochs=2, stores=True)])
def test_last_state_is_the_one_after_the_callbacks_had_their_say(plan: FitPlan) -> None:
    job = KeptJob(replace(plan, batch_size=2), learner=Restoring(1))
    (_, kept, _), *_ = LocalEngine(2).run(job, shards_of(THREE_STEPS), SETTINGS)
    assert kept[-1].steps == 6 and kept[-1].position["ended"] == "complete"
    assert kept[-1].payload["models"][0]["weight"].tolist() == [7.0, 7.0]
    assert len({state.steps for state in kept}) == len(kept)  # each is written once
    again, more, payload = resumed(job.plan, kept[-1])
    assert (again.steps, more) == (6, []) and payload["models"][0]["weight"].tolist() == [7.0, 7.0]


class FailingSession(NotingSession):
    """A session of which one rank fails when the fit ends."""

    def end_fit(self) -> None:
        if self.world.rank == 1:
            raise RuntimeError("the report could not be sent")


class Failing(Noting):
    session_type: ClassVar[type[ArraySession]] = FailingSession


@dataclass(frozen=True)
class WrittenJob(KeptJob):
    """Write checkpoints to a folder, slowly."""

    folder: str = ""

    def __call__(self, world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        def write(state: State, path: str) -> None:
            time.sleep(0.2)
            Path(path).write_text(json.dumps(state.position))

        feed = Feed(rows["train"], world, self.plan.batch_size, shuffle=True, seed=0)
        keeper = CheckpointWriter(self.folder, write) if world.rank == 0 else None
        session, since = self.learner.join(world, None, 0, fit=self.plan), Position(0, 0, 0, 0)
        return FitLoop(session, feed, None, (), self.plan, world, heartbeat, since, keeper).run()


@pytest.mark.parametrize(("stop_after", "steps", "ended"), [(9, 6, ""), (1, 3, "stopping")])
def test_checkpoint_of_the_last_epoch_is_written_before_callbacks_can_fail_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int, steps: int, ended: str
) -> None:
    monkeypatch.setattr(loop, "_MEETING", 0.05)  # ranks meet several times while it is written
    plan = FitPlan(epochs=2, batch_size=2, checkpoint_trigger=EveryEpoch(), callbacks=(object(),))
    job = WrittenJob(plan, learner=Failing(stop_after), folder=str(tmp_path))
    with pytest.raises(WorkerFailed, match="the report could not be sent"):
        LocalEngine(2).run(job, shards_of(THREE_STEPS), SETTINGS)
    position = json.loads((tmp_path / f"orca.{steps}").read_text())
    assert (len(position["lines"]), position["ended"]) == (steps // 3, ended)
    state = State(payload=LinearLearner(1).initial_state(0).payload, position=position)
    again, kept, _ = resumed(plan, state)
    assert again.steps == steps and not kept


def test_traces_have_the_loss_of_every_step_over_all_ranks() -> None:
    histories = LocalEngine(3).run(LoopJob(PLAN), shards_of(UNEVEN), SETTINGS)
    for line, trace in zip(histories[0].epochs, histories[0].traces, strict=True):
        assert line["train_loss"] == pytest.approx(trace.losses.mean())  # two steps of two rows
        assert line["last_train_loss"] == pytest.approx(trace.losses[-1])
        assert trace.seconds > 0
