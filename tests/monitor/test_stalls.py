"""Stalls: the rank that holds up the others is named, with its stack and the others' phases."""

from __future__ import annotations

import pytest

from orca.monitor.heartbeat import BACKWARD, DATA, FORWARD, WAIT, Beat
from orca.monitor.stalls import STACKS, Suspicion


def words(suspicion: Suspicion) -> str:
    return suspicion.failure("node7", 12.0, 10.0, "driver:1").reason


@pytest.mark.parametrize(
    ("beats", "absent", "culprit"),
    [
        ([Beat(0, 1, 5, 9, BACKWARD), Beat(1, 1, 5, 9, DATA)], [], 1),
        ([Beat(0, 1, 5, 9, DATA), Beat(1, 1, 4, 9, BACKWARD)], [], 1),
        ([Beat(0, 2, 0, 9, DATA), Beat(1, 1, 8, 9, BACKWARD)], [], 1),
        ([Beat(0, 1, 1, 9, WAIT), Beat(1, 1, 2, 9, FORWARD)], [], 1),
        ([Beat(0, 1, 2, 9, WAIT), Beat(1, 1, 1, 9, WAIT)], [], 1),
        ([Beat(0, phase=WAIT)], [1, 2], 1),
        ([Beat(0, phase=FORWARD)], [1], 0),
    ],
)
def test_the_rank_least_far_that_does_not_wait_is_the_culprit(
    beats: list[Beat], absent: list[int], culprit: int
) -> None:
    suspicion = Suspicion(beats, absent)
    assert suspicion.culprit == suspicion.failure("node7", 12.0, 10.0, "driver:1").rank == culprit


def test_some_of_many_alike_are_asked_and_all_are_named() -> None:
    suspicion = Suspicion([Beat(rank, 1, 3, 9, DATA) for rank in range(12)], [])
    assert suspicion.asked == list(range(STACKS))
    assert "step 3 of 9, phase data, like ranks 1, 2, 3, 4, 5, 6, 7, 8, ... (11 in all);" in words(suspicion)
    assert "did not answer with its stack" in words(suspicion)


def test_stacks_of_the_others_come_after_that_of_the_culprit() -> None:
    suspicion = Suspicion([Beat(rank, 1, 3, 9, DATA) for rank in range(3)], [])
    suspicion.stacks |= {2: "in c", 0: "in a", 1: "in b"}
    failure = suspicion.failure("node7", 12.0, 10.0, "driver:1")
    assert failure.traceback == "in a\nrank 1 at the same time:\nin b\nrank 2 at the same time:\nin c"
    assert "its stack" not in failure.reason and "stall_timeout (now 10 s)" in failure.reason


def test_a_rank_that_never_came_is_named_with_the_address_it_should_reach() -> None:
    assert words(Suspicion([Beat(0, phase=WAIT)], [1])).startswith(
        "it never reported to the driver in 12 s, while rank 0 was in wait. Check that its worker was started and "
        "reaches driver:1; "
    )
