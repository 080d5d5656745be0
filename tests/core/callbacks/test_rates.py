from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core.callbacks.fitting import STEPS, estimator, fit, resumed
from orca.callbacks import LearningRateMonitor
from orca.errors import ArgumentError


def halving(optimizer: Any, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def groups(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    first, _, last = model  # type: ignore[misc]
    return torch.optim.SGD([{"params": first.parameters(), "lr": 0.1}, {"params": last.parameters(), "lr": 0.01}])


def test_rate_of_an_epoch_is_the_one_it_was_trained_with() -> None:
    est = estimator(scheduler_creator=halving, scheduler_step_freq="epoch", config={"lr": 0.4})
    assert [line["lr"] for line in fit(est, LearningRateMonitor(), epochs=3)] == pytest.approx([0.4, 0.2, 0.1])


def test_rates_of_all_steps_are_a_list_and_match_the_history() -> None:
    est = estimator(scheduler_creator=halving, config={"lr": 0.4})
    first, second = fit(est, LearningRateMonitor("step"), epochs=2)
    assert first["lr"] == pytest.approx([0.4, 0.2, 0.1, 0.05])
    assert second["lr"] == pytest.approx([0.4 * 0.5**step for step in range(STEPS, 2 * STEPS)])
    assert list(est.history.losses.shape) == [2 * STEPS]
    assert est.history.traces[0].rates.tolist() == pytest.approx(first["lr"])


def test_further_groups_have_names_of_their_own() -> None:
    (line,) = fit(estimator(optimizer=groups), LearningRateMonitor("epoch"))
    assert (line["lr"], line["lr_1"]) == pytest.approx((0.1, 0.01))


def test_rates_reach_the_statistics_of_two_ranks() -> None:
    (line,) = fit(estimator(2), LearningRateMonitor())
    assert line["lr"] == pytest.approx(0.05)


@pytest.mark.parametrize("step", [2, 5, 7])
def test_rates_before_an_interruption_stay(tmp_path: Path, step: int) -> None:
    options = {"scheduler_creator": halving, "config": {"lr": 0.4}}
    unbroken = fit(estimator(**options), LearningRateMonitor("step"), epochs=2)
    _, stats = resumed(tmp_path, step, LearningRateMonitor("step"), every=1, epochs=2, options=options)
    assert [line["lr"] for line in stats] == [line["lr"] for line in unbroken]


def test_another_word_is_refused() -> None:
    with pytest.raises(ArgumentError, match="log must be 'epoch' or 'step'; got 'batch'"):
        LearningRateMonitor("batch")
