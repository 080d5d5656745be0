from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from core.callbacks.fitting import STEPS, Say, X, Y, difference, estimator, fit, resumed, weights
from orca.callbacks import Callback, EarlyStopping
from orca.errors import ArgumentError, CallbackFailed
from orca.triggers import SeveralIteration


def epochs_of(*callbacks: Callback) -> int:
    return len(fit(estimator(), *callbacks, epochs=6))


@pytest.mark.parametrize(
    ("options", "numbers", "epochs"),
    [
        ({}, (3, 2, 2, 1, 1, 1), 3),
        ({"patience": 1}, (3, 2, 2, 1, 1, 1), 3),
        ({"patience": 2}, (3, 2, 2, 1, 1, 1), 6),
        ({"patience": 2}, (3, 2, 2, 2, 1, 1), 4),
        ({"min_delta": 0.5}, (3, 2, 1.6, 1, 1, 1), 3),
        ({"mode": "max"}, (1, 2, 3, 3, 4, 5), 4),
        ({"mode": "min"}, (1, 2, 3, 3, 4, 5), 2),
        ({"patience": 3}, (float("nan"), float("nan"), 2, float("nan"), 1, 1), 6),
    ],
)
def test_fit_stops_when_the_number_gets_no_better(
    options: dict[str, Any], numbers: tuple[float, ...], epochs: int
) -> None:
    assert epochs_of(Say("score_x", *numbers), EarlyStopping("score_x", **{"mode": "min", **options})) == epochs


def test_mode_is_guessed_by_the_name() -> None:
    assert epochs_of(Say("val_accuracy", 0.1, 0.2, 0.3, 0.2, 0, 0), EarlyStopping("val_accuracy")) == 4
    assert epochs_of(Say("val_mae", 0.1, 0.2, 0.3, 0.2, 0, 0), EarlyStopping("val_mae")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sync", "ranks"),
    [
        ("replicated", 1),
        ("replicated", 2),
        pytest.param("sharded", 2, marks=pytest.mark.full),
        ("fully sharded", 2),
    ],
)
def test_best_weights_come_back_on_every_rank(sync: str, ranks: int) -> None:
    def trained(*callbacks: Callback, epochs: int) -> Any:
        est = estimator(ranks)
        est.learner = replace(est.learner, sync=sync)
        fit(est, *callbacks, epochs=epochs)
        return est

    class Alike(Callback):
        """Check after the fit that all ranks compute with the same weights."""

        def after_run(self, runner: Any) -> None:
            device = runner._session.replica.place.device
            mine = float(runner.model(torch.ones(1, 3, device=device)).detach())
            assert len(set(runner._session.world.all_gather(mine))) == 1

    best = trained(epochs=2)
    stopping = EarlyStopping("number", patience=2, mode="min", restore_best_weights=True)
    est = trained(Say("number", 3, 1, 2, 2, 0), stopping, Alike(), epochs=5)
    assert est.get_state_dict()["epoch"] == 4
    assert difference(weights(est), weights(best)) == 0.0
    last = trained(Say("number", 3, 1, 2, 2, 0), EarlyStopping("number", patience=2), epochs=5)
    assert difference(weights(last), weights(best)) > 1e-3


def test_average_of_the_weights_comes_back_with_them() -> None:
    stopping = EarlyStopping("number", restore_best_weights=True)
    best, est = estimator(ema=0.5), estimator(ema=0.5)
    fit(best)
    fit(est, Say("number", 1, 2), stopping, epochs=2)
    for part in ("models", "averages"):
        assert difference(est.get_state_dict()[part][0], best.get_state_dict()[part][0]) == 0.0
    assert est.evaluate((X, Y), batch_size=6)["val_loss"] == best.evaluate((X, Y), batch_size=6)["val_loss"]


def test_epochs_that_are_not_validated_do_not_count() -> None:
    class Worse(Callback):
        def after_train_epoch(self, runner: Any) -> None:
            if "val_loss" in runner.epoch_stats:
                runner.epoch_stats["val_loss"] = float(runner.epochs)

    seldom = {"valid": True, "validation_trigger": SeveralIteration(2 * STEPS)}  # after every second epoch
    assert len(fit(estimator(), Worse(), EarlyStopping("val_loss"), epochs=6, **seldom)) == 4


STOPPING = EarlyStopping("number", patience=2, mode="min", restore_best_weights=True)
NUMBERS = Say("number", 3, 1, 2, 2, 0)  # the second epoch is the best one when it stops after the fourth


@pytest.mark.parametrize("step", [5, 14])
@pytest.mark.parametrize("options", [{"ema": 0.5}, {"shard_model": True}, {"backend": "bigdl"}])
def test_resumed_fit_remembers_what_was_best(tmp_path: Path, step: int, options: dict[str, Any]) -> None:
    best = estimator(**options)
    fit(best, epochs=2)
    est, stats = resumed(tmp_path, step, NUMBERS, STOPPING, epochs=5, options=options)
    assert [line["number"] for line in stats] == [3, 1, 2, 2]
    for part in ("models", "averages") if "ema" in options else ("models",):
        assert difference(est.get_state_dict()[part][0], best.get_state_dict()[part][0]) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"shard_model": True}])
def test_resumed_fit_of_two_ranks_remembers_what_was_best(tmp_path: Path, options: dict[str, Any]) -> None:
    best = estimator(2, **options)
    fit(best, epochs=2)
    est, stats = resumed(tmp_path, 14, NUMBERS, STOPPING, ranks=2, epochs=5, options=options)
    assert [line["number"] for line in stats] == [3, 1, 2, 2]
    assert difference(weights(est), weights(best)) == 0.0


@pytest.mark.parametrize("options", [{}, {"shard_model": True}])
def test_best_weights_are_those_that_a_complete_fit_keeps(tmp_path: Path, options: dict[str, Any]) -> None:
    losses = []
    for _ in range(2):
        est = estimator(model_dir=str(tmp_path), **options)
        fit(est, NUMBERS, STOPPING, epochs=5, resume=True)
        losses.append(est.evaluate((X, Y), batch_size=6)["val_loss"])
    best = estimator(**options)
    fit(best, epochs=2)
    assert losses == [best.evaluate((X, Y), batch_size=6)["val_loss"]] * 2


def test_fit_resumed_for_more_epochs_has_the_best_weights_of_those_before(tmp_path: Path) -> None:
    best = estimator()
    fit(best, epochs=2)
    for epochs in (3, 4):
        est = estimator(model_dir=str(tmp_path))
        fit(est, NUMBERS, STOPPING, epochs=epochs, resume=True)
    assert difference(weights(est), weights(best)) == 0.0


def test_number_that_is_not_there_is_told_with_those_that_are() -> None:
    words = r"EarlyStopping watches 'val_loss', but the epoch gave .*train_loss\. Pass validation_data to fit"
    with pytest.raises(CallbackFailed, match=words):
        fit(estimator(), Say("extra", 1.0), EarlyStopping())  # which the one before it might have added


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patience": -1}, "patience must be a whole number, 0 or more; got -1"),
        ({"patience": 1.5}, "patience must be a whole number, 0 or more; got 1.5"),
        ({"mode": "low"}, "mode of EarlyStopping must be 'auto', 'min' or 'max'; got 'low'"),
        ({"min_delta": -0.1}, "min_delta of EarlyStopping must be a number, 0 or more; got -0.1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        EarlyStopping(**options)
