from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from orca import job as job_module
from orca.core.engine import Settings
from orca.core.learner import FitPlan, Predictor
from orca.core.metrics import MAE
from orca.core.plan import Plan
from orca.core.source import Shards
from orca.core.state import OutputSpec, State
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, DataError
from orca.job import EvaluateJob, FitJob, PredictJob
from orca.testing import LinearLearner, shards_of

SETTINGS = Settings(stall_timeout=20)
PLAN = FitPlan(epochs=3, batch_size=6, seed=5)
LEARNER = LinearLearner(3, rate=0.05, momentum=0.5)
SPLITS = {"even": (14, 14, 14), "uneven": (30, 3, 9), "empty": (0, 40, 2), "all on one": (0, 0, 42)}


def data(rows: int = 42) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(7)
    x = chance.normal(size=(rows, 3))
    return x, x @ [1.0, -2.0, 0.5] + 3.0 + 0.01 * chance.normal(size=rows)


def split(counts: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = data(sum(counts))
    edges = np.cumsum((0, *counts))
    return [(x[a:b], y[a:b]) for a, b in pairwise(edges)]


def fit(shards: Shards, ranks: int, plan: FitPlan = PLAN, state: State | None = None) -> tuple[list[Any], State]:
    results = LocalEngine(ranks).run(FitJob(LEARNER, plan, (), state), shards, SETTINGS)
    assert [kept is not None for _, kept in results] == [True, *[False] * (ranks - 1)]
    return results[0][0].epochs, results[0][1]


def global_batches(parts: list[tuple[np.ndarray, np.ndarray]], plan: FitPlan, epoch: int) -> list[Any]:
    """Return the (x, y) of every step of an epoch: who gives what, as the plan and the seed say."""
    shares = Plan(tuple(len(x) for x, _ in parts), plan.batch_size or 1)
    orders = [np.random.default_rng([plan.seed, epoch, r + 1]).permutation(len(x)) for r, (x, _) in enumerate(parts)]
    steps = zip(*(shares.slices(rank) for rank in range(len(parts))), strict=True)
    batches = []
    for step in steps:
        taken = [(parts[r], orders[r][start:stop]) for r, (start, stop, _) in enumerate(step)]
        batches.append(tuple(np.concatenate([part[i][index] for part, index in taken]) for i in (0, 1)))
    return batches


def plain_loop(batches_of: Any, plan: FitPlan) -> tuple[list[float], np.ndarray]:
    """Train in one plain numpy loop; return the loss of each epoch and the weights."""
    weight = np.random.default_rng(plan.seed).normal(size=4)
    velocity, losses = np.zeros(4), []
    for epoch in range(1, plan.epochs + 1):
        total = rows = 0.0
        for x, y in batches_of(epoch):
            inputs = np.column_stack([x, np.ones(len(x))])
            error = inputs @ weight - y
            total, rows = total + float(error @ error), rows + len(x)
            velocity = LEARNER.momentum * velocity + 2 * inputs.T @ error / len(x)
            weight = weight - LEARNER.rate * velocity
        losses.append(total / rows)
    return losses, weight


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("counts", SPLITS.values(), ids=SPLITS.keys())
def test_any_split_equals_a_plain_loop_over_the_same_batches(counts: tuple[int, ...], ranks: int) -> None:
    counts = (*counts[: ranks - 1], sum(counts[ranks - 1 :]))
    parts = split(counts)
    history, state = fit(shards_of(parts), ranks)
    losses, weight = plain_loop(lambda epoch: global_batches(parts, PLAN, epoch), PLAN)
    assert [line["train_loss"] for line in history] == pytest.approx(losses, abs=1e-10)
    assert np.abs(state.payload["models"][0]["weight"] - weight).max() < 1e-10
    assert [line["num_samples"] for line in history] == [42] * 3
    assert losses[-1] < losses[0] / 5


@pytest.mark.parametrize("counts", SPLITS.values(), ids=SPLITS.keys())
def test_one_rank_equals_two_equals_three_where_a_step_takes_all_rows(counts: tuple[int, ...]) -> None:
    plan = replace(PLAN, batch_size=42)
    a, b, c = split(counts)
    joined = tuple(np.concatenate(pair) for pair in zip(b, c, strict=True))
    whole = fit(shards_of([data()]), 1, plan)
    for parts in ([a, joined], [a, b, c]):
        history, state = fit(shards_of(parts), len(parts), plan)
        assert [line["train_loss"] for line in history] == pytest.approx([h["train_loss"] for h in whole[0]], abs=1e-10)
        weights = [s.payload["models"][0]["weight"] for s in (state, whole[1])]
        assert np.abs(weights[0] - weights[1]).max() < 1e-10


@dataclass(frozen=True)
class WholeData:
    """All rows on every rank, as a map-style dataset is."""

    shared = True
    quiet = True
    drop_last = False
    batch_size = None
    count = 42

    def __call__(self, items: Any, folder: Any) -> dict[str, Any]:
        return {"train": self}

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        return generator.permutation(self.count)

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        x, y = data()
        yield from ((x[index], y[index]) for index in indices)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shared_rows_give_any_number_of_ranks_the_plain_loop(ranks: int) -> None:
    x, y = data()

    def batches(epoch: int) -> list[Any]:
        order = np.random.default_rng([PLAN.seed, epoch, 0]).permutation(42)
        return [(x[order[at : at + 5]], y[order[at : at + 5]]) for at in range(0, 42, 5)]

    plan = replace(PLAN, batch_size=5)
    history, state = fit(Shards(WholeData(), list), ranks, plan)
    losses, weight = plain_loop(batches, plan)
    assert [line["train_loss"] for line in history] == pytest.approx(losses, abs=1e-10)
    assert np.abs(state.payload["models"][0]["weight"] - weight).max() < 1e-10


def test_fit_twice_goes_on_at_the_next_epoch() -> None:
    parts = split((20, 13))
    once = fit(shards_of(parts), 2, replace(PLAN, epochs=4))
    first, state = fit(shards_of(parts), 2, replace(PLAN, epochs=1))
    assert (state.epoch, state.steps) == (1, 6)
    second, state = fit(shards_of(parts), 2, replace(PLAN, epochs=3), state)
    assert [line["epoch"] for line in first + second] == [1, 2, 3, 4]
    assert (state.epoch, state.steps) == (once[1].epoch, once[1].steps) == (4, 24)
    assert [line["train_loss"] for line in first + second] == [line["train_loss"] for line in once[0]]
    for kind, name in (("models", "weight"), ("optimizers", "velocity")):
        assert (state.payload[kind][0][name] == once[1].payload[kind][0][name]).all()


def test_fit_goes_on_with_another_number_of_ranks() -> None:
    _, state = fit(shards_of(split((20, 22))), 2)
    history, state = fit(shards_of(split((14, 14, 14))), 3, PLAN, state)
    assert [line["epoch"] for line in history] == [4, 5, 6] and state.epoch == 6


def test_fit_leaves_the_state_it_was_given_alone() -> None:
    _, state = fit(shards_of([data()]), 1)
    before = state.payload["models"][0]["weight"].copy()
    fit(shards_of([data()]), 1, PLAN, state)
    assert state.epoch == 3 and (state.payload["models"][0]["weight"] == before).all()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluate_is_exact_over_ranks(ranks: int) -> None:
    x, y = data()
    _, state = fit(shards_of([(x, y)]), 1)
    counts = {1: (42,), 2: (40, 2), 3: (5, 0, 37)}[ranks]
    results = LocalEngine(ranks).run(EvaluateJob(LEARNER, 8, (MAE(),), state), shards_of(split(counts)), SETTINGS)
    error = np.column_stack([x, np.ones(42)]) @ state.payload["models"][0]["weight"] - y
    for reduced, own, output in results:
        assert reduced == results[0][0] and list(reduced) == list(own) == ["num_samples", "val_loss", "MAE"]
        assert output == (OutputSpec((("float64", (3,)),)), OutputSpec((("float64", ()),)))
    assert results[0][0]["num_samples"] == 42 and [own["num_samples"] for _, own, _ in results] == list(counts)
    assert results[0][0]["val_loss"] == pytest.approx(np.mean(error**2), abs=1e-12)
    assert results[0][0]["MAE"] == pytest.approx(np.mean(abs(error)), rel=1e-6)


def test_evaluate_profile_has_its_phases() -> None:
    job = EvaluateJob(LEARNER, 8, (), None, profile=True)
    ((reduced, own, _),) = LocalEngine(1).run(job, shards_of([data()]), SETTINGS)
    assert reduced["profile"] == own["profile"] and reduced["profile"]["mean_eval_fwd_s"] > 0


# Predict.


class Counting(LinearLearner):
    """Count how often a model is restored in this process."""

    restored = 0

    def open_predictor(self, state: State, gpu: str | None = None) -> Predictor:
        type(self).restored += 1
        return super().open_predictor(state, gpu)


class Two(LinearLearner):
    """Answer with two heads, and mind how many rows it sees at once."""

    def outputs(self, x: Any) -> Any:
        assert len(x["a"]) <= 4
        return {"sum": x["a"] + x["b"][0], "rows": (np.full((len(x["a"]), 2), 7),)}


@pytest.fixture(autouse=True)
def no_model_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_models", {})


def test_predict_answers_the_same_in_any_blocks() -> None:
    x, _ = data(17)
    state = LEARNER.initial_state(1)
    whole = np.column_stack([x, np.ones(17)]) @ state.payload["models"][0]["weight"]
    for size in (1, 4, 17, 100):
        job = PredictJob.of(LEARNER, state, size)
        assert np.allclose(job(x), whole, rtol=0, atol=1e-12)
        assert np.allclose(np.concatenate([job(x[:5]), job(x[5:6]), job(x[6:])]), whole, rtol=0, atol=1e-12)


def test_predict_restores_one_model_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    x, learner = data(9)[0], Counting(3)
    first = PredictJob.of(learner, learner.initial_state(1), 4)
    for _ in range(3):
        first(x)
    assert Counting.restored == 1
    again = PredictJob.of(learner, learner.initial_state(1), 2)
    assert again.key == first.key
    again(x)
    assert Counting.restored == 1
    other = PredictJob.of(learner, learner.initial_state(2), 4)
    assert other.key != first.key and not np.allclose(other(x), first(x))
    assert Counting.restored == 2


def test_models_that_take_turns_are_restored_once_and_the_oldest_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    x, learner = data(9)[0], Counting(3)
    jobs = [PredictJob.of(learner, learner.initial_state(seed), 4) for seed in range(5)]
    wanted = [job(x) for job in jobs[:3]]
    for _ in range(4):
        for job, answer in zip(jobs[:3], wanted, strict=True):
            assert (job(x) == answer).all()
    assert Counting.restored == 3
    jobs[0](x)  # so that 1 is the one that answered longest ago
    gone, kept = (weakref.ref(job_module._models[job.key, None][0]) for job in (jobs[1], jobs[0]))
    jobs[3](x)
    assert Counting.restored == 4 and gone() is None and kept() is not None
    jobs[0](x)
    assert Counting.restored == 4
    assert (jobs[1](x) == wanted[1]).all() and Counting.restored == 5


def test_large_models_are_kept_only_while_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    x, learner = data(9)[0], Counting(3)
    one, two = (PredictJob.of(learner, learner.initial_state(seed), 4) for seed in range(2))
    monkeypatch.setattr(job_module, "_KEPT_BYTES", len(one.work) + len(two.work) - 1)
    for _ in range(2):
        for job in (one, two):
            job(x)
            assert list(job_module._models) == [(job.key, None)]
    assert Counting.restored == 4


def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let unpickling find Counting by its name, so that the copy counts in this very class."""
    import orca.testing

    monkeypatch.setattr(orca.testing, "Counting", Counting, raising=False)
    monkeypatch.setattr(Counting, "__module__", "orca.testing")
    monkeypatch.setattr(Counting, "restored", 0)


def test_predict_joins_trees_of_outputs() -> None:
    x = {"a": np.arange(9.0), "b": [np.ones(9)]}
    answer = PredictJob.of(Two(1), LEARNER.initial_state(0), 4)(x)
    assert answer["sum"].tolist() == list(np.arange(9) + 1.0) and answer["rows"][0].shape == (9, 2)


def test_predict_of_no_rows_has_the_right_shape() -> None:
    assert PredictJob.of(LEARNER, LEARNER.initial_state(0), 4)(np.zeros((0, 3))).shape == (0,)
    none = PredictJob.of(Two(1), LEARNER.initial_state(0), 4)({"a": np.zeros(0), "b": [np.zeros(0)]})
    assert none["sum"].shape == (0,) and none["rows"][0].shape == (0, 2)


def test_predict_takes_no_optimizer_along() -> None:
    state = LEARNER.initial_state(0)
    state.payload["optimizers"] = [{"velocity": np.zeros(100_000)}]
    assert len(PredictJob.of(LEARNER, state, 4).work) < 20_000


def test_a_model_that_cannot_travel_is_named() -> None:
    learner = LinearLearner(3)
    learner.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"the model cannot be sent to the workers: TypeError"):
        PredictJob.of(learner, LEARNER.initial_state(0), 4)


@dataclass
class Shaped(LinearLearner):
    """Answer with what a function makes of a batch."""

    features: int = 1
    shape: Any = None

    def outputs(self, x: Any) -> Any:
        return self.shape(np.asarray(x))


def shaped(shape: Any, size: int = 20) -> PredictJob:
    return PredictJob.of(Shaped(shape=shape), LEARNER.initial_state(0), size)


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        (lambda x: x[:7], r"for 20 row\(s\) it returned an array of shape \(7, 2\)"),
        (lambda x: np.repeat(x, 2, axis=0), r"for 20 row\(s\) it returned an array of shape \(40, 2\)"),
        (lambda x: x.mean(), r"for 20 row\(s\) it returned an array of shape \(\)"),
        (lambda x: (x, x[:1]), r"an array of shape \(20, 2\) and an array of shape \(1, 2\)"),
        (lambda x: (), r"for 20 row\(s\) it returned nothing"),
    ],
)
def test_a_model_that_answers_for_other_rows_is_refused(shape: Any, got: str) -> None:
    x = np.arange(66.0).reshape(33, 2)
    with pytest.raises(DataError, match=f"must answer once for each row; .*{got}"):
        shaped(shape)(x)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("size", [1, 4, 20])
def test_a_batch_of_one_row_is_not_special_to_a_model_that_squeezes(width: int, size: int) -> None:
    x = np.arange(9.0 * width).reshape(9, width)
    assert (shaped(np.squeeze, size)(x) == x.squeeze()).all()
    assert shaped(np.squeeze, size)(x[:1]).shape == x[:2].squeeze()[:1].shape


@pytest.mark.parametrize(("shape", "got"), [(lambda x: x[:-1], r"\(0, 2\)"), (lambda x: x.sum(), r"shape \(\)")])
def test_one_row_is_no_answer_for_two(shape: Any, got: str) -> None:
    with pytest.raises(DataError, match=rf"must answer once for each row; for 1 row\(s\) it returned .*{got}"):
        shaped(shape)(np.ones((1, 2)))


def test_a_model_that_takes_no_empty_batch_and_has_seen_no_row_is_told_in_words() -> None:
    with pytest.raises(DataError, match=r"no row to answer for, .* takes no empty batch: ValueError.* Fit or evaluate"):
        shaped(lambda x: x.reshape(-1, 0))(np.zeros((0, 2)))


def test_answers_of_different_shapes_are_named() -> None:
    x = np.arange(9.0)[:, None]
    with pytest.raises(DataError, match=r"differ in shape from batch to batch: a row has \[\(1,\)\] and then \[\(\)\]"):
        shaped(lambda x: x if len(x) == 4 else x[:, 0], 4)(x)


def test_no_rows_are_answered_without_the_model_where_its_output_is_known() -> None:
    state = replace(LEARNER.initial_state(0), output=OutputSpec((("float32", (2,)),)))
    job = PredictJob.of(Shaped(shape=None), state, 4)
    assert job(np.zeros((0, 0))).shape == (0, 2)


GIVEN_GPU = """
import os, pathlib
import numpy as np, torch
from pyspark.sql import SparkSession
from orca import Estimator
from orca.core.learner import Predictor
from orca.errors import DataError
from orca.frameworks.torch import learner

script = pathlib.Path("gpus.sh").resolve()
script.write_text('#!/bin/sh\\necho \\'{"name": "gpu", "addresses": ["5"]}\\'\\n')
script.chmod(0o755)
session = (
    SparkSession.builder.master("local-cluster[1,1,1024]")
    .config("spark.worker.resource.gpu.amount", 1)
    .config("spark.worker.resource.gpu.discoveryScript", str(script))
    .config("spark.executor.resource.gpu.amount", 1)
    .config("spark.task.resource.gpu.amount", 1)
    .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    .getOrCreate()
)

class Told(Predictor):
    def __init__(self, gpu):
        self.gpu = gpu

    def predict(self, x):
        return np.full(len(x), int(self.gpu))

class Telling(learner.TorchLearner):
    def open_predictor(self, state, gpu=None):
        return Told(gpu)

est = Estimator.from_torch(model=torch.nn.Linear(1, 1), backend="spark")
est.learner = Telling(est.learner.model)
df = session.range(3).selectExpr("array(float(id)) as x")
print([row.prediction for row in est.predict(df, feature_cols="x").collect()])
session.stop()
try:
    est.predict(df, feature_cols="x")
except DataError as error:
    print(error)
"""


@pytest.mark.full
def test_a_task_of_spark_answers_on_the_gpu_it_was_given(run_program: Any) -> None:
    results = run_program(GIVEN_GPU, {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    assert "[5, 5, 5]" in results.stdout
    assert "this DataFrame belongs to a Spark session that was stopped" in results.stdout
