"""Learners of arrays: the example of the docs page against a plain loop, on every engine; weights without gradients."""

from __future__ import annotations

import re
import shutil
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orca import Estimator
from orca.callbacks import Callback
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.triggers import MaxIteration, SeveralIteration
from orca.engines.local import LocalEngine
from orca.errors import LossNotFinite
from orca.job import FitJob
from orca.storage.checkpoints import newest_run, path_of
from orca.testing import LinearLearner, shards_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "new-framework.md"
X = np.random.default_rng(1).normal(size=(53, 3))
Y = (X @ [2.0, -1.0, 0.5] > 0.2).astype("float64")
WEIGHTS = np.random.default_rng(2).uniform(0.1, 2.0, 53)


def example() -> Any:
    """Return the learner of the docs page."""
    module = types.ModuleType("the_page")  # not importable, so that it travels as what is in a notebook does
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert len(code.splitlines()) < 100
    exec(compile(code, str(PAGE), "exec", dont_inherit=True), vars(module))
    return module.LogisticRegression


def plain_loop(learner: Any, batches: list[np.ndarray], weighted: bool = False) -> dict[str, np.ndarray]:
    """Train in one process, with the numbers written out."""
    initial = learner.initial_state(0).payload["models"][0]
    w, b, speed_w, speed_b = initial["w"], initial["b"], 0.0, 0.0
    for rows in batches:
        counts = WEIGHTS[rows] if weighted else np.ones(len(rows))
        error = counts * (1.0 / (1.0 + np.exp(-(X[rows] @ w + b))) - Y[rows]) / counts.sum()
        speed_w, speed_b = 0.9 * speed_w + X[rows].T @ error, 0.9 * speed_b + error.sum()
        w, b = w - 0.5 * speed_w, b - 0.5 * speed_b
    return {"w": w, "b": b}


class Rows(Callback):
    """The rows that this rank gave to each step."""

    def __init__(self) -> None:
        self.steps: list[np.ndarray] = []

    def after_train_iter(self, runner: Any) -> None:
        self.steps.append(runner.batch[0])


@dataclass(frozen=True)
class Recording:
    """A fit that also returns the rows which this rank gave to each step."""

    job: FitJob

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> Any:
        _, state = self.job(world, rows, heartbeat)
        return state, self.job.plan.callbacks[0].steps


@pytest.mark.parametrize("cuts", [[53], [40, 40, 53], [1, 51, 52, 53]])
def test_any_number_of_ranks_trains_as_one_process_does(cuts: list[int]) -> None:
    shards = [(part, Y[list(map(index_of, part))]) for part in np.split(X, cuts[:-1])]
    job = Recording(FitJob(example()(3), FitPlan(epochs=3, batch_size=7, callbacks=(Rows(),)), (), None))
    results = LocalEngine(len(cuts)).run(job, shards_of(shards), Settings(20))
    steps = [np.concatenate(parts) for parts in zip(*(steps for _, steps in results), strict=True)]
    assert len(steps) == 24 and min(map(len, steps)) == 4  # a last step in which most ranks have no row
    weights = plain_loop(example()(3), [np.array(list(map(index_of, rows))) for rows in steps])
    for name, value in results[0][0].payload["models"][0].items():
        assert value == pytest.approx(weights[name], abs=1e-12)


def index_of(row: np.ndarray) -> int:
    return int(np.flatnonzero((row == X).all(axis=1))[0])


@pytest.fixture(params=["local", "spark", pytest.param("ray", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest) -> str:
    """Give the word of each backend, with its cluster up."""
    if request.param != "local":
        pytest.importorskip({"spark": "pyspark", "ray": "ray"}[request.param])
        request.getfixturevalue({"spark": "spark", "ray": "ray_context"}[request.param])
    return str(request.param)


def test_the_example_trains_on_every_engine(engine: str, tmp_path: Path) -> None:
    made = Estimator.from_learner(
        example()(3), backend=engine, workers_per_node=2, metrics=["accuracy"], model_dir=str(tmp_path / "kept")
    )
    lines = made.fit((X, Y), epochs=4, batch_size=53, shuffle=False, validation_data=(X, Y))
    assert [line["num_samples"] for line in lines] == [53] * 4 and lines[-1]["val_accuracy"] > 0.9
    weights = plain_loop(example()(3), [np.arange(53)] * 4)
    for name, value in made.get_model().items():
        assert value == pytest.approx(weights[name], abs=1e-12)
    made.save(str(tmp_path / "state"))
    again = Estimator.from_learner(example()(3), backend="local").load(str(tmp_path / "state"))
    assert np.array_equal(again.predict(X), made.predict(X)) and again.predict(X).shape == (53,)
    assert again.evaluate((X, Y))["val_loss"] == pytest.approx(lines[-1]["val_loss"], abs=1e-12)


def test_weights_of_rows_count() -> None:
    made = Estimator.from_learner(example()(3), backend="local", workers_per_node=2)
    made.fit((X, Y, WEIGHTS), epochs=4, batch_size=53, sample_weight=True)
    weights = plain_loop(example()(3), [np.arange(53)] * 4, weighted=True)
    for name, value in made.get_model().items():
        assert value == pytest.approx(weights[name], abs=1e-6)  # weights of rows travel in float32


def test_a_fit_resumed_mid_epoch_ends_where_the_whole_one_does(tmp_path: Path) -> None:
    whole = Estimator.from_learner(example()(3), backend="local", workers_per_node=2)
    whole.fit((X, Y, WEIGHTS), epochs=3, batch_size=8, sample_weight=True)
    folder = str(tmp_path / "kept")
    first = Estimator.from_learner(example()(3), backend="local", workers_per_node=2, model_dir=folder)
    cut = MaxIteration(10)  # mid-epoch: an epoch has 7 steps
    first.fit(
        (X, Y, WEIGHTS),
        epochs=3,
        batch_size=8,
        sample_weight=True,
        checkpoint_trigger=SeveralIteration(5),
        end_trigger=cut,
    )
    shutil.rmtree(path_of(newest_run(folder), 10))  # so that the fifth step is the last that is known
    rest = Estimator.from_learner(example()(3), backend="local", workers_per_node=2, model_dir=folder)
    lines = rest.fit((X, Y, WEIGHTS), epochs=3, batch_size=8, sample_weight=True, resume=True)
    assert len(lines) == 3 and rest._state is not None and rest._state.steps == 21
    for name, value in rest.get_model().items():
        assert np.array_equal(value, whole.get_model()[name])


@dataclass
class Halves(LinearLearner):
    """A learner whose second weight has a gradient only where a row asks for it."""

    def weights(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight, "rare": self.rare}

    def make(self) -> None:
        super().make()
        self.rare, self.seen = np.ones(1), 0

    def loss_and_gradients(self, batch: Any) -> Any:
        total, mass, gradients = super().loss_and_gradients(batch)
        asked = float((batch.x > 5).sum())
        return total, mass, gradients | ({"rare": np.array([asked])} if asked else {})

    def apply(self, gradients: Mapping[str, np.ndarray]) -> None:
        if "rare" in gradients:
            self.rare, self.seen = self.rare - gradients["rare"], self.seen + 1


def test_a_weight_that_no_rank_uses_is_left_out_of_the_step() -> None:
    x = np.array([[1.0], [9.0], [1.0], [1.0]])
    job = FitJob(Halves(1), FitPlan(batch_size=2, shuffle=False), (), None)
    (_, state), *_ = LocalEngine(2).run(job, shards_of([(x[:2], x[:2, 0]), (x[2:], x[2:, 0])]), Settings(10))
    assert state.payload["models"][0]["rare"] == pytest.approx([0.5])  # one row of one step of two rows


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    x = np.array([[1.0], [np.inf]])
    for on_nan in ("raise", "ignore"):
        job = FitJob(LinearLearner(1), FitPlan(batch_size=2, on_nan=on_nan), (), None)
        shards = shards_of([(x[:1], x[:1, 0]), (x[1:], x[:1, 0])])
        if on_nan == "ignore":
            assert len(LocalEngine(2).run(job, shards, Settings(10))) == 2
            continue
        with pytest.raises(LossNotFinite, match="the loss became inf at step 1 of epoch 1"):
            LocalEngine(2).run(job, shards, Settings(10))
