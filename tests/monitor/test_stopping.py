from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import pytest

from orca.monitor.stopping import FINISHING, NOT_STOPPABLE, StopOrder, StopPoint, StopRound

ORDER = StopOrder(0, 1, "a", "its process got SIGTERM", False)


def test_a_rank_names_the_step_that_it_is_in() -> None:
    point = StopPoint()
    assert point.limit(interrupted=True) == NOT_STOPPABLE  # it has not begun
    with point.open(steps=10, pausable=True, saves=True):
        assert not point.reached(11)
        assert point.limit(interrupted=False) == 12
        point.give(replace(ORDER, step=13))
        assert [point.reached(step) for step in (12, 13)] == [False, True] and point.is_reached
    assert point.limit(interrupted=False) == FINISHING


@pytest.mark.parametrize(
    ("pausable", "saves", "interrupted", "limit"),
    [(False, True, False, NOT_STOPPABLE), (True, False, False, NOT_STOPPABLE), (True, False, True, 1)],
)
def test_a_rank_with_nothing_to_save_cannot_stop_in_order(
    pausable: bool, saves: bool, interrupted: bool, limit: int
) -> None:
    point = StopPoint()
    with point.open(0, pausable, saves):
        assert point.limit(interrupted) == limit


def test_a_fit_that_is_finishing_on_one_rank_finishes_on_all() -> None:
    stop_round = StopRound("Ctrl-C", -1, "", True)
    assert stop_round.order(2) is None
    stop_round.limits = {0: 9, 1: FINISHING}
    order = stop_round.order(2)
    assert order is not None and order.step == FINISHING and not stop_round.is_refused
    point = StopPoint()
    with point.open(8, True, True):
        point.limit(True)
        point.give(order)
        assert not point.reached(9) and not point.is_reached


def test_a_fit_that_ends_before_its_step_has_outlived_the_order() -> None:
    point = StopPoint()
    with point.open(8, True, True):
        assert not point.reached(9) and point.limit(False) == 10  # in its last validation
        point.give(replace(ORDER, step=10))
    assert point.outlived == replace(ORDER, step=FINISHING)


@pytest.mark.parametrize("seed", range(20))
def test_all_ranks_stop_after_the_same_step_however_they_interleave(seed: int) -> None:
    rng, ranks = random.Random(seed), 4
    points, barrier, stopped = [StopPoint() for _ in range(ranks)], threading.Barrier(ranks), {}

    def train(rank: int, pauses: list[float]) -> None:
        with points[rank].open(0, True, True):
            for step, pause in enumerate(pauses, 1):
                time.sleep(pause)
                barrier.wait(10)  # as in an all-reduce
                if points[rank].reached(step):
                    stopped[rank] = step
                    return

    threads = [
        threading.Thread(target=train, args=(rank, [rng.uniform(0, 0.003) for _ in range(200)]))
        for rank in range(ranks)
    ]
    for thread in threads:
        thread.start()
    time.sleep(rng.uniform(0, 0.1))
    stop_round = StopRound("", 0, "", False)
    for rank in rng.sample(range(ranks), ranks):  # at different times
        time.sleep(rng.uniform(0, 0.005))
        stop_round.limits[rank] = points[rank].limit(False)
    order = stop_round.order(ranks)
    assert order is not None
    for rank in rng.sample(range(ranks), ranks):
        time.sleep(rng.uniform(0, 0.005))
        points[rank].give(order)
    for thread in threads:
        thread.join(10)
    assert set(stopped.values()) == {order.step} and len(stopped) == ranks
