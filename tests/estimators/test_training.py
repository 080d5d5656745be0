"""Statistics of fits and evaluations: those of each worker, and those over all of them."""

from __future__ import annotations

import numpy as np
import pytest

from orca.core.metrics import MAE
from orca.estimators.estimator import Estimator
from orca.testing import LinearLearner

X = np.arange(7.0)[:, None]
Y = 3 * X[:, 0] + 1


def test_workers_tell_their_own_statistics_or_those_of_all() -> None:
    # Three ranks with 3, 2 and 2 rows; the last step has one row.
    learner = LinearLearner(1, rate=0.001)
    est = Estimator.from_learner(learner, backend="local", workers_per_node=3, metrics=[MAE()])
    own = est.fit((X, Y), epochs=2, batch_size=3, shuffle=False, reduce_results=False, validation_data=(X, Y))
    for line, workers in zip(est.history.epochs, own, strict=True):
        assert [worker["num_samples"] for worker in workers] == [3, 2, 2]
        assert len({worker["train_loss"] for worker in workers}) == 3
        for name, rows in (("train_loss", "num_samples"), ("val_loss", "val_num_samples")):
            mean = sum(worker[name] * worker[rows] for worker in workers) / len(X)
            assert mean == pytest.approx(line[name], rel=1e-12)
        assert all(np.isfinite(worker["last_train_loss"]) for worker in workers)
        assert line["last_train_loss"] in [worker["last_train_loss"] for worker in workers]  # of one row

    scores = est.evaluate((X, Y), batch_size=3, reduce_results=False)
    est.sync_stats = True
    same = est.evaluate((X, Y), batch_size=3, reduce_results=False)
    assert [each.pop("num_samples") for each in same] == [3, 2, 2] and same[0] == same[1] == same[2]
    assert same[0]["MAE"] == pytest.approx(sum(each["MAE"] * each["num_samples"] for each in scores) / len(X))
    (lines,) = est.fit((X, Y), batch_size=3, reduce_results=False)
    assert lines == [est.history[-1] | {"num_samples": rows} for rows in (3, 2, 2)]
