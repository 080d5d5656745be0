"""Statistics of fits and evaluations: those of each worker, and those over all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca.core.metrics import MAE
from orca.estimators.estimator import Estimator
from orca.testing import LinearLearner

X = np.arange(7.0)[:, None]
Y = 3 * X[:, 0] + 1


def statistics(reduce_results: bool, sync_stats: bool = False) -> tuple[list[Any], Any]:
    """Return those of a fit and of an evaluation on three ranks: 3, 2 and 2 rows, of which the last step has one."""
    learner = LinearLearner(1, rate=0.001)
    est = Estimator.from_learner(learner, backend="local", workers_per_node=3, metrics=[MAE()], sync_stats=sync_stats)
    options: dict[str, Any] = {"batch_size": 3, "reduce_results": reduce_results}
    lines = est.fit((X, Y), epochs=2, shuffle=False, validation_data=(X, Y), **options)
    return lines, est.evaluate((X, Y), **options)


def test_workers_tell_their_own_statistics_or_those_of_all() -> None:
    reduced, scores = statistics(reduce_results=True)
    own, own_scores = statistics(reduce_results=False)
    same, same_scores = statistics(reduce_results=False, sync_stats=True)
    assert same == [[line] * 3 for line in reduced] and same_scores == [scores] * 3
    for line, workers in zip(reduced, own, strict=True):
        assert [worker["num_samples"] for worker in workers] == [3, 2, 2]
        assert len({worker["train_loss"] for worker in workers}) == 3
        for prefix in ("", "val_"):
            name, rows = (f"{prefix}loss" if prefix else "train_loss"), f"{prefix}num_samples"
            mean = sum(worker[name] * worker[rows] for worker in workers) / 7
            assert mean == pytest.approx(line[name], rel=1e-12)
        assert all(np.isfinite(worker["last_train_loss"]) for worker in workers)
        assert line["last_train_loss"] in [worker["last_train_loss"] for worker in workers]  # of one row
    assert scores["MAE"] == pytest.approx(sum(each["MAE"] * each["num_samples"] for each in own_scores) / 7)
