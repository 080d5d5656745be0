"""Failures: the one that explains the others is named."""

from __future__ import annotations

import pytest

from orca.monitor.failures import Failure, Sign, primary_of


def sign(when: float, rank: int, kind: str = "error", secondary: bool = False) -> Sign:
    return Sign(when, Failure(rank, "host", "reason", "", secondary, kind))


@pytest.mark.parametrize(
    ("signs", "now", "complete", "primary"),
    [
        ([], 9.0, True, None),
        ([sign(0, 0, secondary=True), sign(1, 1, "lost"), sign(1.1, 2)], 1.1, False, 2),
        ([sign(0, 0, "lost"), sign(0.1, 1, "stalled")], 0.1, False, 1),
        ([sign(0, 0, "lost")], 0.4, True, None),
        ([sign(0, 0, "lost"), sign(0.1, 1, secondary=True)], 0.5, False, 0),
        ([sign(0, 0, secondary=True), sign(0.1, 1, "lost")], 0.55, False, None),
        ([sign(0, 0, secondary=True), sign(0.1, 1, "lost"), sign(0.2, 2, "lost")], 0.65, False, 1),
        ([sign(0, 0, secondary=True), sign(1.9, 1, "lost")], 2.0, False, 1),
        ([sign(0, 0, secondary=True)], 1.9, False, None),
        ([sign(0, 0, secondary=True)], 0.1, True, 0),
        ([sign(0, 0, secondary=True), sign(1, 1, secondary=True)], 2.0, False, 0),
    ],
)
def test_primary_failure_is_the_one_that_explains_the_others(
    signs: list[Sign], now: float, complete: bool, primary: int | None
) -> None:
    chosen = primary_of(signs, now, complete)
    assert (None if chosen is None else chosen.rank) == primary
