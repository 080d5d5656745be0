"""Failures: the one that explains the others is named."""

from __future__ import annotations

import pytest

from orca.monitor.failures import (
    TRACE_LIMIT,
    Failure,
    Sign,
    carried_by,
    carrier_of,
    made_by_user,
    primary_of,
    reason_of,
    trace_of,
)
from orca.monitor.tracebacks import frames_of


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


class WithoutText(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_the_reason_of_an_error_is_its_type_and_text_whatever_these_are() -> None:
    assert reason_of(KeyError("x")) == "KeyError: 'x'" and reason_of(ValueError()) == "ValueError"
    assert reason_of(WithoutText()) == "WithoutText: (its text cannot be shown)"
    errors = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    assert reason_of(errors) == "ExceptionGroup: two (2 sub-exceptions): ValueError: a; KeyError: 'b'"


@pytest.mark.parametrize("error", [ValueError("x" * (1 << 20)), ValueError("line\n" * (1 << 18)), WithoutText()])
def test_the_frames_of_an_error_with_a_long_text_or_none_reach_the_driver(error: Exception) -> None:
    trace = trace_of(raised(error), 10_000)
    assert len(trace) < 10_010 and [frame.name for frame in frames_of(trace)] == ["raised"]
    failure = carried_by(f"Spark says: {carrier_of(1, 'node', raised(error))} and more")
    assert failure is not None and (failure.rank, failure.host) == (1, "node")
    assert failure.reason == reason_of(error) and len(failure.traceback) < TRACE_LIMIT + 10
    assert len(str(failure.error())) < 50_000 and "in raised" in str(failure.error())


def test_an_error_of_the_users_own_function_in_spark_is_shown_in_short() -> None:
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/spark/python/lib/pyspark.zip/pyspark/worker.py", line 2884, in <listcomp>
    return [udf_func(*row) for row in rows]
  File "/home/me/train.py", line 29, in clean
    return names[value]
KeyError: 'no'
"""
    error = made_by_user(text)
    assert str(error).splitlines() == [
        "Spark cannot compute the rows of this data: KeyError: 'no'",
        "",
        '  File "/home/me/train.py", line 29, in clean',
        "    return names[value]",
        "  ... 1 frames of pyspark (ORCA_DEBUG=1 shows all)",
        "Correct the code at train.py:29.",
    ]
    assert made_by_user("[DIVIDE_BY_ZERO] Division by zero.") is None
