from __future__ import annotations

import pytest

from orca.monitor.heartbeat import BACKWARD, DATA, FORWARD, WAIT, Beat, Heartbeat
from orca.monitor.slowness import STRIKES, WINDOW, Slowness, slow_ranks


@pytest.mark.parametrize(
    ("busy", "slow"),
    [
        ([4.0], []),
        ([4.0, 4.0, 4.0], []),
        ([1.0, 4.0], [1]),
        ([4.0, 1.9, 2.0, 2.1], [0]),
        ([3.9, 2.0, 2.0], []),
        ([0.1, 0.7], []),  # the steps take long for another reason
        ([0.0, 2.0], [1]),
    ],
)
def test_a_rank_is_slow_that_needs_twice_as_long_as_the_others(busy: list[float], slow: list[int]) -> None:
    assert list(slow_ranks(busy, seconds=4.5)) == slow


def looks(rates: list[float], seconds: int, steps_a_second: float = 1.0) -> list[tuple[int, int]]:
    """Return when each rank is named, one look a second, if rank r works so much of each second."""
    slowness, named = Slowness(), []
    for now in range(seconds):
        beats = [Beat(rank, 1, int(now * steps_a_second), busy=now * rate) for rank, rate in enumerate(rates)]
        named += [(now, rank) for rank in slowness.look(now, beats)]
    return named


def test_a_slow_rank_is_named_once_and_soon() -> None:
    ((when, rank),) = looks([0.3, 0.9, 0.3], seconds=60)
    assert rank == 1 and when <= STRIKES * (WINDOW + 1) < 15
    assert len(looks([0.3, 0.9], seconds=60, steps_a_second=0.4)) == 1
    assert looks([0.5, 0.55, 0.5], seconds=60) == []


def test_only_work_without_the_others_counts() -> None:
    heartbeat = Heartbeat()
    for phase, counts in ((DATA, True), (FORWARD, True), (BACKWARD, False), (WAIT, False)):
        heartbeat.at(phase)
        before = heartbeat.beat(0).busy
        heartbeat.at(phase)
        assert (heartbeat.beat(0).busy > before) is counts
