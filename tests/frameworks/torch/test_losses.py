from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from orca.core.losses import StepResult
from orca.core.state import Losses
from orca.errors import LossNotFinite
from orca.frameworks.torch.losses import DeviceLosses, DeviceStepLoss, merged


class Record:
    """The losses of an epoch, of which each step follows the one before."""

    def __init__(self, epoch: int, on_nan: str, first_step: int = 0) -> None:
        self.losses, self.step = DeviceLosses(epoch, on_nan), first_step

    def add(self, loss: DeviceStepLoss | None, rows: int) -> float | None:
        self.step += 1
        return self.losses.add(self.step - 1, StepResult(loss), rows)

    def result(self) -> Losses:
        return self.losses.result()


def mean(loss: float, rows: float, dtype: torch.dtype = torch.float32) -> DeviceStepLoss:
    """Return the part of a loss that is a mean over rows."""
    return DeviceStepLoss(torch.tensor(loss, dtype=dtype), rows, rows, 1.0)


def total(loss: float, rows: int) -> DeviceStepLoss:
    """Return the part of a loss that is a sum over rows."""
    return DeviceStepLoss(torch.tensor(loss), 1.0, rows, 1.0)


def test_means_are_added_up_by_what_they_are_means_over() -> None:
    record = Record(1, "raise")
    for part, rows in ((mean(2.0, 4), 4), (mean(0.5, 6.5), 5), (mean(3.0, 1), 1)):
        record.add(part, rows)
    losses = record.result()
    assert (losses.loss_sum, losses.mass, losses.rows, losses.steps) == (8 + 3.25 + 3, 11.5, 10, 3)
    assert (losses.last_loss_sum, losses.last_mass) == (3.0, 1)
    assert losses.trace == [(8.0, 4), (3.25, 6.5), (3.0, 1)]


def test_more_steps_may_follow_after_the_totals() -> None:
    record = Record(1, "raise")
    for step in range(1, 71):
        record.add(mean(float(step), 2), 2)
        if step in (3, 40):
            assert record.losses.totals().loss_sum == 2 * sum(range(1, step + 1))
    losses = record.result()
    assert (losses.loss_sum, losses.steps, len(losses.trace)) == (2 * sum(range(1, 71)), 70, 70)


def test_sums_are_told_for_a_row() -> None:
    record = Record(1, "raise")
    record.add(total(8.0, 4), 4)
    record.add(total(3.0, 2), 2)
    losses = record.result()
    assert losses.loss_sum / losses.mass == 11 / 6
    assert losses.last_loss_sum / losses.last_mass == 1.5
    assert losses.trace == [(8.0, 4), (3.0, 2)]


def test_a_step_without_rows_counts_as_a_step_alone() -> None:
    record = Record(1, "raise")
    record.add(None, 0)
    record.add(mean(2.0, 4), 4)
    record.add(None, 0)
    losses = record.result()
    assert (losses.loss_sum, losses.mass, losses.rows, losses.steps) == (8.0, 4, 4, 3)
    assert (losses.last_loss_sum, losses.last_mass) == (0.0, 0)  # the last step was the other ranks'
    assert losses.trace == [(0.0, 0.0), (8.0, 4), (0.0, 0.0)]


def test_an_epoch_without_a_row_here_is_told_as_nothing() -> None:
    record = Record(1, "raise")
    for _ in range(70):
        record.add(None, 0)
    losses = record.result()
    assert (losses.loss_sum, losses.mass, losses.rows, losses.last_loss_sum) == (0.0, 0.0, 0, 0.0)
    assert losses.trace == [(0.0, 0.0)] * 70


def test_losses_of_many_windows_are_summed() -> None:
    record = Record(1, "raise")
    shown = [record.add(mean(float(step), 2), 2) for step in range(1, 131)]
    assert shown == [float(step) for step in range(1, 131)]  # on a CPU; a GPU is read once in a window
    losses = record.result()
    assert losses.loss_sum == 2 * sum(range(1, 131))
    assert [loss / rows for loss, rows in losses.trace] == [float(step) for step in range(1, 131)]
    assert losses.last_loss_sum == 2 * 130.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_losses_of_any_precision_are_added_up_in_double(dtype: torch.dtype) -> None:
    record = Record(1, "raise")
    for _ in range(100):
        record.add(mean(0.1, 1, dtype), 1)
    exact = float(torch.tensor(0.1, dtype=dtype).double())
    assert record.result().loss_sum == pytest.approx(100 * exact, rel=1e-14)


@pytest.mark.parametrize(("bad", "said"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")])
@pytest.mark.parametrize(("at", "first"), [(3, 0), (70, 0), (70, 40)])
def test_a_loss_that_is_not_finite_is_raised_with_its_step_in_the_epoch(
    bad: float, said: str, at: int, first: int
) -> None:
    record = Record(5, "raise", first)
    with pytest.raises(LossNotFinite, match=f"the loss became {said} at step {first + at} of epoch 5. Lower the"):
        write(record, at, bad)


def test_the_step_is_counted_with_those_that_had_no_rows_here() -> None:
    record = Record(1, "raise")
    for part in (None, mean(1.0, 1), None, mean(float("nan"), 1)):
        record.add(part, 1)
    with pytest.raises(LossNotFinite, match="the loss became nan at step 4 of epoch 1"):
        record.result()


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        losses = write(Record(2, "warn"), 3, float("nan"), 100)
    assert [record.getMessage()[:45] for record in caplog.records] == ["the loss became nan at step 3 of epoch 2. Low"]
    assert losses.steps == 140
    assert losses.loss_sum != losses.loss_sum  # it stays in the mean


def test_nothing_is_said_where_it_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        losses = write(Record(2, "ignore"), 3, float("inf"))
    assert losses.loss_sum == float("inf")
    assert not caplog.records


@pytest.mark.parametrize("rows", [(3, 2, 4), (1, 1), (1, 5)])
def test_pieces_of_a_step_become_one_part(rows: tuple[int, ...]) -> None:
    values, whole = [float(number + 1) for number in range(len(rows))], sum(rows)
    means = merged([DeviceStepLoss(torch.tensor(v), n, n, n / whole * 2) for v, n in zip(values, rows, strict=True)])
    sums = merged([DeviceStepLoss(torch.tensor(v), 1.0, n, 2.0) for v, n in zip(values, rows, strict=True)])
    exact = sum(v * n for v, n in zip(values, rows, strict=True))
    assert means is not None and sums is not None
    assert (float(means.value) * means.scale, means.weight_sum) == (pytest.approx(exact), whole)
    assert (float(sums.value) * sums.scale, sums.weight_sum) == (pytest.approx(sum(values)), whole)
    assert float(means.value) * means.weight == pytest.approx(exact / whole * 2)  # what the ranks take the mean of
    assert float(sums.value) * sums.weight == pytest.approx(sum(values) * 2)


def test_a_step_of_one_piece_or_none_is_left_as_it_is() -> None:
    part = mean(2.0, 3)
    assert merged([part]) is part
    assert merged([]) is None


def write(record: Record, *bad: Any) -> Any:
    """Write 140 steps into a record; the given one, and another, have a bad loss."""
    at, value, *others = bad
    for step in range(1, 141):
        record.add(mean(value if step == at or step in others else 1.0, 2), 2)
    return record.result()
