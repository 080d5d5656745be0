"""Schedule: each trigger is evaluated once for a moment."""

from __future__ import annotations

from orca.core.schedule import Due, Schedule, epoch_ended
from orca.core.triggers import EveryEpoch, Moment, SeveralIteration, Trigger


class Counting(Trigger):
    """A trigger with state: it fires at every second call."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def __call__(self, moment: Moment) -> bool:
        self.calls.append((moment.step, moment.epoch_ended))
        return len(self.calls) % 2 == 0


def test_a_trigger_of_several_purposes_is_evaluated_once_for_a_moment() -> None:
    trigger = Counting()
    schedule = Schedule(trigger, trigger, trigger)
    assert [schedule.due(Moment(0, step)) for step in (1, 2, 3)] == [Due(), Due(True, True, True), Due()]
    assert trigger.calls == [(1, False), (2, False), (3, False)]


def test_a_moment_that_is_asked_for_again_has_the_same_answer() -> None:
    trigger = Counting()
    schedule = Schedule(None, trigger, None)
    assert not schedule.due(Moment(0, 1)).checkpoint
    assert schedule.due(Moment(0, 2)).checkpoint and schedule.due(Moment(0, 2)).checkpoint
    assert trigger.calls == [(1, False), (2, False)]


def test_at_the_end_of_an_epoch_validation_is_decided_before_the_loss_is_known() -> None:
    trigger = Counting()
    schedule = Schedule(trigger, trigger, None)
    assert not schedule.validates_epoch(Moment(1, 4, True))
    assert schedule.due_at_epoch_end(epoch_ended(1, 4, {"train_loss": 0.5}, ())) == Due(checkpoint=True)
    assert trigger.calls == [(4, True), (4, True)]


def test_what_is_due_is_joined() -> None:
    schedule = Schedule(SeveralIteration(2), EveryEpoch(), None)
    assert schedule.due(Moment(0, 2)) | Due(stop=True) == Due(validate=True, stop=True)
    assert schedule.due(Moment(0, 1)) == schedule.due_at_epoch_end(Moment(0, 1)) == Due()
