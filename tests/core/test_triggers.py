"""Triggers: at which moments they fire, that they travel, and what they say to wrong arguments."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

from orca.core.triggers import (
    And,
    EveryEpoch,
    MaxEpoch,
    MaxIteration,
    MaxScore,
    MinLoss,
    Moment,
    Or,
    SeveralIteration,
    Trigger,
    TriggerAnd,
    TriggerOr,
    trigger_of,
)
from orca.errors import ArgumentError
from raised import raises

# Three epochs of four steps, as the loop tells them: each step, then the end of the epoch with loss and score.
LOSSES, SCORES = (0.9, 0.4, 0.2), (0.5, 0.8, 0.95)
RUN = [
    moment
    for epoch in range(3)
    for moment in (
        *(Moment(epoch, 4 * epoch + step) for step in (1, 2, 3, 4)),
        Moment(epoch + 1, 4 * epoch + 4, True, LOSSES[epoch], SCORES[epoch]),
    )
]
ALL = [
    EveryEpoch(), SeveralIteration(3), MaxEpoch(2), MaxIteration(5), MaxScore(0.7), MinLoss(0.3),
    TriggerAnd(EveryEpoch(), MinLoss(0.5)), TriggerOr(EveryEpoch(), SeveralIteration(3)),
]  # fmt: skip


def fired(trigger: Callable[[Moment], bool]) -> list[tuple[int, bool]]:
    answers = [(moment, trigger(moment)) for moment in RUN]
    assert {type(answer) for _, answer in answers} == {bool}
    return [(moment.step, moment.epoch_ended) for moment, answer in answers if answer]


def test_every_epoch_fires_at_each_end_of_an_epoch() -> None:
    assert fired(EveryEpoch()) == [(4, True), (8, True), (12, True)]


def test_several_iteration_counts_steps_over_epochs_and_not_from_nothing() -> None:
    assert fired(SeveralIteration(3)) == [(3, False), (6, False), (9, False), (12, False), (12, True)]
    assert not SeveralIteration(3)(Moment(epoch=0, step=0))


def test_max_epoch_fires_once_they_are_finished() -> None:
    assert fired(MaxEpoch(2)) == [(8, True), (9, False), (10, False), (11, False), (12, False), (12, True)]


def test_max_iteration_fires_once_the_steps_are_done() -> None:
    assert fired(MaxIteration(11)) == [(11, False), (12, False), (12, True)]


def test_score_and_loss_are_compared_strictly_and_only_at_the_end_of_an_epoch() -> None:
    assert fired(MaxScore(0.5)) == [(8, True), (12, True)]
    assert fired(MinLoss(0.4)) == [(12, True)]
    early = Moment(epoch=0, step=2, epoch_ended=False, loss=0.0, score=1.0)
    assert not MaxScore(0.5)(early) and not MinLoss(0.4)(early)


@pytest.mark.parametrize("trigger", [MaxScore(0.0), MinLoss(100)])
@pytest.mark.parametrize("value", [None, float("nan")])
def test_unknown_loss_and_score_fire_nothing(trigger: Trigger, value: Any) -> None:
    assert trigger(Moment(1, 4, True, value, value)) is False


def test_and_fires_when_all_do_and_or_when_one_does() -> None:
    assert fired(TriggerAnd(SeveralIteration(4), MinLoss(0.5))) == [(8, True), (12, True)]
    assert fired(TriggerOr(MaxIteration(12), SeveralIteration(5))) == [(5, False), (10, False), (12, False), (12, True)]
    assert fired(And(EveryEpoch(), Or(MinLoss(0.3), MaxScore(0.7)), lambda moment: moment.step < 12)) == [(8, True)]
    assert And is TriggerAnd and Or is TriggerOr


@pytest.mark.parametrize("trigger", ALL, ids=lambda trigger: type(trigger).__name__)
def test_triggers_travel_and_are_compared_by_what_they_say(trigger: Trigger) -> None:
    for module in (pickle, cloudpickle):
        copy = module.loads(module.dumps(trigger))
        assert copy == trigger and hash(copy) == hash(trigger) and repr(copy) == repr(trigger)
        assert fired(copy) == fired(trigger) != []


def test_arguments_have_the_names_of_every_release() -> None:
    assert SeveralIteration(interval=2) == SeveralIteration(np.int64(2))
    assert MaxEpoch(max=3) == MaxEpoch(max_epoch=3) == MaxEpoch(3)
    assert MaxIteration(max=3) == MaxIteration(max_iteration=3) == MaxIteration(3)
    assert MaxScore(max=0.5) == MaxScore(max_score=0.5) == MaxScore(np.float32(0.5))
    assert MinLoss(min=1) == MinLoss(min_loss=1.0) == MinLoss(1)
    assert repr(MaxEpoch(3)) == "MaxEpoch(max_epoch=3)"


@pytest.mark.parametrize("kind", [SeveralIteration, MaxEpoch, MaxIteration])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "10", None])
def test_counts_must_be_positive_whole_numbers(kind: Any, value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        kind(value)
    assert f"{kind.__name__}: " in str(caught.value)
    assert f"must be a positive whole number; got {value!r}. Pass 1 or more" in str(caught.value)


@pytest.mark.parametrize(("kind", "name"), [(MaxScore, "max_score"), (MinLoss, "min_loss")])
@pytest.mark.parametrize("value", [float("nan"), True, "0.5", None])
def test_limits_must_be_numbers(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}: {name} must be a number; got .*Pass one, as in"):
        kind(value)


def test_one_argument_under_both_names_is_refused() -> None:
    with raises("argument-given-twice"):
        MaxEpoch(1, max=2)


def test_function_of_a_moment_is_a_trigger() -> None:
    late = trigger_of(lambda moment: moment.step > 10)
    assert isinstance(late, Trigger)
    assert fired(late) == [(11, False), (12, False), (12, True)]
    assert fired(cloudpickle.loads(cloudpickle.dumps(late))) == fired(late)


def test_ours_stays_what_it_is() -> None:
    trigger = EveryEpoch()
    assert trigger_of(trigger) is Trigger.convert_trigger(trigger) is trigger.get_trigger() is trigger


@pytest.mark.parametrize("value", [None, "every epoch", 10, lambda: True, lambda one, two: True, int])
def test_other_things_are_no_triggers(value: Any) -> None:
    with raises("not-a-trigger"):
        trigger_of(value)
    with raises("not-a-trigger"):
        TriggerOr(EveryEpoch(), value)


def test_class_in_place_of_an_object_is_told_apart() -> None:
    with raises("trigger-is-class"):
        trigger_of(EveryEpoch)


def test_trigger_of_ones_own_must_say_when_it_fires() -> None:
    class Never(Trigger):
        pass

    with pytest.raises(NotImplementedError, match="Never does not say when it fires"):
        Never()(RUN[0])
