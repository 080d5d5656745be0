"""Each schedule against its formula, over 50 steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orca.errors import ArgumentError
from orca_classic.bigdl.optimizers.schedules import (
    Default,
    Exponential,
    MultiStep,
    Plateau,
    Poly,
    PolyEpochDecay,
    Ramp,
    Scheduler,
    SequentialSchedule,
    Step,
    Warmup,
)

BASE, EPOCH = 0.5, 10  # steps of an epoch

FORMULAS: list[tuple[Scheduler, Callable[[int], float]]] = [
    (Default(), lambda n: BASE),
    (Default(0.1), lambda n: BASE / (1 + 0.1 * n)),
    (Poly(2, 40), lambda n: BASE * (1 - n / 40) ** 2 if n <= 40 else 0.0),
    (PolyEpochDecay(0.5, 4), lambda n: BASE * (1 - (n // EPOCH) / 4) ** 0.5 if n < 40 else 0.0),
    (Exponential(10, 0.5), lambda n: BASE * 0.5 ** (n / 10)),
    (Exponential(10, 0.5, True), lambda n: BASE * 0.5 ** (n // 10)),
    (Step(7, 0.3), lambda n: BASE * 0.3 ** (n // 7)),
    (MultiStep([5, 20, 21], 0.1), lambda n: BASE * 0.1 ** ((n >= 5) + (n >= 20) + (n >= 21))),
    (Warmup(0.02), lambda n: BASE + 0.02 * n),
    (Ramp(0.25, 40), lambda n: BASE * (n / 10 if n < 10 else max(1 - n / 40, 0))),
    (
        SequentialSchedule(EPOCH).add(Warmup(0.1), 5).add(Poly(1, 20), 20).add(Step(2, 0.5), 99),
        lambda n: BASE + 0.1 * n if n < 5 else 1.0 * (1 - (n - 5) / 20) if n < 25 else 0.0,
    ),
    (
        SequentialSchedule(EPOCH).add(Default(), 20).add(PolyEpochDecay(1, 4), 20),
        lambda n: BASE if n < 20 else BASE * (1 - (n // EPOCH - 2) / 4),
    ),
]


@pytest.mark.parametrize(("schedule", "formula"), FORMULAS, ids=lambda given: type(given).__name__)
def test_schedule_follows_its_formula(schedule: Scheduler, formula: Callable[[int], float]) -> None:
    memory: dict[str, Any] = {}
    rates = [schedule.rate(BASE, step, step // EPOCH, memory) for step in range(50)]
    assert rates == pytest.approx([formula(step) for step in range(50)])


def run(schedule: Scheduler, numbers: list[float], name: str = "Loss") -> list[float]:
    """Return the rate after each epoch of one step."""
    memory: dict[str, Any] = {}
    rates = []
    for epoch, number in enumerate(numbers):
        schedule.watch(BASE, epoch + 1, epoch, memory, {name: number})
        rates.append(schedule.rate(BASE, epoch + 1, epoch + 1, memory) / BASE)
    return rates


def test_plateau_reduces_after_more_epochs_without_improvement_than_it_has_patience() -> None:
    losses = [3.0, 2.0, 1.99995, 2.0, 2.0, 2.0, 1.0, 1.0]  # the third is no improvement of epsilon
    assert run(Plateau("Loss", 0.1, patience=2), losses) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1])


def test_plateau_counts_a_reduced_epoch_and_rests_when_asked_to() -> None:
    flat = [1.0] * 9
    assert run(Plateau("loss", 0.5, patience=2), flat) == pytest.approx([1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125])
    rested = run(Plateau("loss", 0.5, patience=2, cooldown=3), flat)
    assert rested == pytest.approx([1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25])


def test_plateau_knows_which_way_is_better_and_where_to_end() -> None:
    assert run(Plateau("score", 0.5, 1, "max"), [0.1, 0.2, 0.3, 0.3, 0.3], "score")[-1] == 0.5
    assert run(Plateau("score", 0.1, 0, "max", min_lr=0.1), [0.5] * 5, "score")[-1] == pytest.approx(0.1 / BASE)


def test_plateau_within_a_sequence_has_a_memory_of_its_own() -> None:
    schedule = SequentialSchedule(1).add(Warmup(0.5), 2).add(Plateau("Loss", 0.5, 1), 9)
    assert run(schedule, [1.0] * 6) == pytest.approx([2, 3, 3, 3, 1.5, 0.75])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Plateau("Loss", factor=1.0), "must be below 1; got 1.0"),
        (lambda: Plateau("Loss", mode="best"), "must be 'min' or 'max'; got 'best'"),
        (lambda: Plateau("val_acc"), "monitors 'Loss' or 'score'; got 'val_acc'"),
        (lambda: Plateau("score").watch(0.1, 1, 0, {}, {"Loss": 1.0}), "Pass validation data, or monitor"),
        (lambda: SequentialSchedule(1).rate(0.1, 0, 0, {}), "has no schedules. Add some"),
    ],
)
def test_wrong_arguments_are_refused_in_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()
