from __future__ import annotations

import pytest

from core.callbacks.fitting import STEPS, X, Y, estimator, fit
from orca.callbacks import Callback, TqdmCallback
from orca.triggers import SeveralIteration
from orca_classic.zoo.callbacks import is_tqdm_exists, make_only_mainCallback


def test_bars_show_training_validation_and_predictions(capfd: pytest.CaptureFixture[str]) -> None:
    est = estimator()
    fit(est, TqdmCallback(), epochs=2, valid=True)
    shown = capfd.readouterr().err
    assert f"epoch 2: 100%|██████████| {STEPS}/{STEPS}" in shown and "loss=" in shown
    assert f"validation: {STEPS}step" in shown
    est.evaluate((X, Y), batch_size=6, callbacks=[TqdmCallback()])
    assert f"validation: {STEPS}step" in capfd.readouterr().err
    est.predict(X, batch_size=6, callbacks=[TqdmCallback()])
    assert "prediction: " in capfd.readouterr().err


def test_bar_goes_on_after_a_validation_mid_epoch(capfd: pytest.CaptureFixture[str]) -> None:
    often = {"validation_data": (X, Y), "validation_trigger": SeveralIteration(STEPS - 1)}
    estimator().fit((X, Y), epochs=1, batch_size=6, callbacks=[TqdmCallback()], **often)
    assert f"epoch 1: 100%|██████████| {STEPS}/{STEPS}" in capfd.readouterr().err


def test_bar_of_rank_0_alone_comes_to_the_driver(capfd: pytest.CaptureFixture[str]) -> None:
    fit(estimator(2, log_to_driver=True), TqdmCallback())
    shown = "".join(capfd.readouterr())
    assert f"epoch 1: 100%|██████████| {STEPS}/{STEPS}" in shown
    assert shown.count("epoch 1: 100%") == 1


def test_older_programs_ask_for_it() -> None:
    assert is_tqdm_exists([Callback(), TqdmCallback()])
    assert not is_tqdm_exists([Callback()]) and not is_tqdm_exists(None)
    callbacks = [TqdmCallback()]
    make_only_mainCallback(callbacks)
    make_only_mainCallback(callbacks)
    assert [type(callback).__name__ for callback in callbacks] == ["MainCallback", "TqdmCallback"]
