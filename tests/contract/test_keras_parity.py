"""Keras parity: n ranks equal one process over the same global batches, weights and statistics, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from contract import keras_truth, truth
from contract.keras_truth import Case, KerasTruthJob, Outcome
from orca.core.engine import Settings
from orca.registry import engine_class

pytestmark = pytest.mark.timeout(400)  # the first test of a run waits for all of it
CASES = {case.name: case for case in keras_truth.cases()}
OPTIMIZERS = {case.name: case for case in keras_truth.optimizer_cases()}
DEALT = ("empty-normed", "empty-old_normed")  # both kinds of Keras, with ranks that run out of rows
MORE = ("uneven-perceptron", "few-perceptron", "empty-masked", "empty-summed", "embedding")  # also in test_agree
COMMON = tuple(name for name in OPTIMIZERS if name.split("-")[1] in ("SGD", "AdamW", "Lion", "RMSprop", "legacy.Adam"))
FEW = ("empty-perceptron", "uneven-normed", "masked", "old")  # on other engines: only how ranks start differs


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Callable[..., list[dict[str, Outcome]]]:
    """Return the function that trains cases on an engine, once, and gives what each rank brought back."""

    @cache
    def run(engine: str, ranks: int, names: tuple[str, ...]) -> Callable[[], list[dict[str, Outcome]]]:
        if engine in contexts:
            pytest.importorskip({"spark": "pyspark", "ray": "ray"}[engine])
            request.getfixturevalue(contexts[engine])
        job = KerasTruthJob(tuple((CASES | OPTIMIZERS)[name] for name in names))
        shards = truth.all_shards(ranks, loaders=False)
        try:
            results = engine_class(engine).on_cluster(ranks).run(job, shards, Settings(120.0, False))
        except Exception as error:  # every test of the run fails with it; none of them runs it again
            return partial(_raise, error)
        return lambda: results

    contexts = {"spark": "spark", "ray": "ray_context"}
    return lambda *what: run(*what)()


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_one_process(case: str, outcomes: Any) -> None:
    check(CASES[case], [rank[case] for rank in outcomes("local", 2, tuple(CASES))])


@pytest.mark.parametrize("case", [*DEALT, *(pytest.param(name, marks=pytest.mark.full) for name in MORE)])
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.full), 3])
def test_any_number_of_ranks_equals_one_process(ranks: int, case: str, outcomes: Any) -> None:
    names = DEALT if case in DEALT else MORE
    check(CASES[case], [rank[case] for rank in outcomes("local", ranks, names)])


@pytest.mark.full
@pytest.mark.parametrize("case", FEW)
@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_ranks_of_other_engines_equal_one_process(engine: str, case: str, outcomes: Any) -> None:
    check(CASES[case], [rank[case] for rank in outcomes(engine, 3, FEW)])


@pytest.mark.full
@pytest.mark.parametrize("case", COMMON)
def test_common_optimizers_step_as_in_one_process(case: str, outcomes: Any) -> None:
    check(OPTIMIZERS[case], [rank[case] for rank in outcomes("local", 2, COMMON)])


@pytest.mark.full
@pytest.mark.parametrize("case", [name for name in OPTIMIZERS if name not in COMMON])
def test_every_optimizer_steps_as_in_one_process(case: str, outcomes: Any) -> None:
    rest = tuple(name for name in OPTIMIZERS if name not in COMMON)
    check(OPTIMIZERS[case], [rank[case] for rank in outcomes("local", 2, rest)])


def check(case: Case, ranks: list[Outcome]) -> None:
    """Check a case's weights and statistics against one process that saw the same rows in each step."""
    steps = [joined(case.part, [rank.steps[epoch] for rank in ranks]) for epoch in range(len(ranks[0].steps))]
    lines, model = keras_truth.plain_loop(case, steps, joined("valid", [rank.valid for rank in ranks]))
    for mine, theirs in zip(ranks[0].weights or [], model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=case.tolerance, atol=case.tolerance)
    for line, plain in zip(ranks[0].lines, lines, strict=True):
        for name, value in plain.items():
            if case.model is keras_truth.own_step and name == "train_loss":
                continue  # its train_step does not tell Keras' own tracker
            assert line[name] == pytest.approx(value, rel=max(case.tolerance, 1e-6), abs=1e-7), name


def joined(part: str, ranks: list[list[np.ndarray]]) -> list[list[int]]:
    """Return the numbers of the rows of every step, over all ranks."""
    return [[n for mine in step for n in truth.numbers_of(part, mine)] for step in zip(*ranks, strict=True)]
