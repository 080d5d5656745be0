from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.callbacks.fitting import STEPS, estimator, fit, resumed
from orca.callbacks import MaxstepsCallback
from orca.errors import ArgumentError


def test_fit_stops_after_exactly_that_many_steps_of_its_own() -> None:
    est = estimator()
    for _ in range(2):
        stats = fit(est, MaxstepsCallback(STEPS + 1), epochs=9)
        assert [line["batch_count"] for line in stats] == [STEPS, 1]
    assert est.get_state_dict()["epoch"] == 4


def test_all_ranks_stop_together() -> None:
    stats = fit(estimator(2), MaxstepsCallback(3), epochs=2, valid=True)
    assert [line["batch_count"] for line in stats] == [3]
    assert stats[0]["val_num_samples"] == 21


@pytest.mark.parametrize("step", [4, 5, 8])
def test_steps_of_an_interrupted_fit_count(tmp_path: Path, step: int) -> None:
    callback = MaxstepsCallback(2 * STEPS + 1)
    est, stats = resumed(tmp_path, step, callback, epochs=9)
    assert [line["batch_count"] for line in stats] == [STEPS, STEPS, 1]
    assert fit(est, callback, epochs=9, resume=True) == stats  # nothing is left


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
def test_what_is_no_number_of_steps_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="max_step must be a positive whole number; got"):
        MaxstepsCallback(wrong)
