"""Pairs of options: every two that may be combined equal one process on uneven ranks; the others are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from contract import pairs
from contract.pairs import REFUSED, REFUSED_APART, Case, Outcome, PairsJob
from contract.test_parity import assert_close
from frameworks.torch.alone import AloneEngine
from orca.core.engine import Settings
from orca.errors import WorkerFailed
from orca.registry import engine_class
from programs import in_rank

pytestmark = pytest.mark.timeout(300)  # the first test of a run waits for all of it
CASES = {case.name: case for case in pairs.table()}


@pytest.fixture(scope="module")
def outcomes() -> Callable[[int], dict[str, list[Outcome]]]:
    """Return the function that trains all cases on so many ranks, once."""

    @cache
    def run(ranks: int) -> dict[str, list[Outcome]]:
        job = PairsJob(tuple(CASES.values()))
        by_rank = engine_class("local").on_cluster(ranks).run(job, pairs.shards(ranks), Settings(60.0, False))
        return {name: [rank[number] for rank in by_rank] for number, name in enumerate(CASES)}

    return run


def test_the_table_holds_every_pair() -> None:
    held = {pair for case in pairs.table() for pair in case.pairs()}
    assert held == {pair for pair in pairs.pairs() if pair not in REFUSED | REFUSED_APART}


@pytest.mark.parametrize("name", CASES)
def test_pairs_of_options_equal_one_process_on_uneven_ranks(name: str, outcomes: Any) -> None:
    check(CASES[name], outcomes(3)[name])


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_pairs_of_options_equal_one_process_on_any_number_of_ranks(name: str, ranks: int, outcomes: Any) -> None:
    check(CASES[name], outcomes(ranks)[name])


@pytest.mark.parametrize("pair", REFUSED, ids=lambda pair: "-".join(choice for _, choice in pair))
def test_pairs_that_do_not_go_together_are_refused_in_words(pair: pairs.Pair) -> None:
    (outcome,) = AloneEngine().run(PairsJob((Case(pair),)), pairs.shards(1), Settings())[0]
    assert REFUSED[pair] in outcome.failure


@pytest.mark.full
@pytest.mark.parametrize("pair", REFUSED_APART, ids=lambda pair: "-".join(choice for _, choice in pair))
def test_pairs_that_workers_cannot_add_up_are_refused_in_words(pair: pairs.Pair) -> None:
    with pytest.raises(WorkerFailed, match=REFUSED_APART[pair]):
        engine_class("local").on_cluster(2).run(PairsJob((Case(pair),)), pairs.shards(2), Settings(60.0, False))


def check(case: Case, ranks: list[Outcome]) -> None:
    assert not ranks[0].failure
    loop = partial(pairs.plain_loop, case, ranks)
    plain, payload = loop() if case["precision"] == "whole" else in_rank(loop), ranks[0].payload
    assert payload is not None
    assert_close([line["train_loss"] for line in ranks[0].lines], plain.losses, case.tolerance)
    assert_close([line["val_loss"] for line in ranks[0].lines], plain.val_losses, case.tolerance)
    assert_close(payload["models"][0], plain.net.state_dict(), case.tolerance)
    assert_close(payload["optimizers"][0], plain.optimizer.state_dict(), case.tolerance)
    if plain.average is not None:
        assert_close(payload["averages"][0], plain.average, case.tolerance)
