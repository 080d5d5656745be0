from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from core.callbacks.fitting import X, Y, difference, estimator, fit, weights
from orca.callbacks import Callback, MainCallback
from orca.core.metrics import MSE
from orca.errors import ArgumentError


class Own(MainCallback):
    """Do the forward pass in the user's words."""

    def on_iter_forward(self, runner: Any) -> None:
        features, target = runner.batch
        runner.output, runner.target = runner.model(features), target
        runner.loss = ((runner.output - target) ** 2).mean()


class Hands(Own):
    """Do the backward pass and the update, too."""

    def on_iter_backward(self, runner: Any) -> None:
        runner.optimizer.zero_grad()
        runner.loss.backward()
        runner.optimizer.step()


class Plain(MainCallback):
    """Evaluate with a loss of its own."""

    def on_val_forward(self, runner: Any) -> None:
        *features, runner.target = runner.batch
        runner.output = runner.model(*features)
        runner.loss = nn.functional.cross_entropy(runner.output, runner.target)


def test_another_loss_than_one_with_class_weights_is_refused_in_an_evaluation() -> None:
    weight = torch.tensor([1.0, 3.0])
    for loss in (nn.CrossEntropyLoss(weight=weight), nn.CrossEntropyLoss()):
        est = estimator(model=lambda config: nn.Linear(3, 2), loss=loss)
        data = X, (Y[:, 0] > 0).astype(np.int64)
        if loss.weight is None:
            plain = est.evaluate(data, batch_size=6)["val_loss"]
            assert est.evaluate(data, batch_size=6, callbacks=[Plain()])["val_loss"] == pytest.approx(plain)
        else:
            with pytest.raises(ArgumentError, match="your own forward pass computes another loss than CrossEntropyL"):
                est.evaluate(data, batch_size=6, callbacks=[Plain()])


def test_second_main_callback_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a run has one MainCallback at most; got Own, Hands"):
        fit(estimator(), Own(), Callback(), Hands())


@pytest.mark.slow
def test_main_callback_gives_the_weights_of_the_plain_step_on_uneven_ranks() -> None:
    plain = estimator(2, metrics=[MSE()])
    expected = fit(plain, epochs=2, valid=True)
    for main in (MainCallback(), Own(), Hands()):
        est = estimator(2, metrics=[MSE()])
        stats = fit(est, main, epochs=2, valid=True)
        assert difference(weights(est), weights(plain)) < 1e-6, main
        for name in ("train_loss", "val_loss", "val_mse"):
            assert [line[name] for line in stats] == pytest.approx([line[name] for line in expected], rel=1e-5)


def test_main_callback_decides_on_the_schedulers() -> None:
    class Twice(MainCallback):
        def on_lr_adjust(self, runner: Any) -> None:
            runner.step_schedulers()
            runner.step_schedulers()
            runner.epoch_stats["lr"] = runner.learning_rates[0]

    def halving(optimizer: Any, config: dict[str, Any]) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    est = estimator(scheduler_creator=halving, scheduler_step_freq="epoch", config={"lr": 0.4})
    assert [line["lr"] for line in fit(est, Twice(), epochs=2)] == pytest.approx([0.1, 0.025])


def test_main_callback_answers_in_its_own_words() -> None:
    class Doubled(MainCallback):
        def on_pred_forward(self, runner: Any) -> None:
            runner.answer()
            runner.output = runner.output * 2

    class Shifted(Callback):
        def after_pred_iter(self, runner: Any) -> None:
            runner.output = runner.output + 1

    est = estimator()
    fit(est)
    answers = est.predict(X, batch_size=6)
    np.testing.assert_allclose(est.predict(X, batch_size=6, callbacks=[Doubled()]), 2 * answers, rtol=1e-6)
    np.testing.assert_allclose(est.predict(X, batch_size=6, callbacks=[Doubled(), Shifted()]), 2 * answers + 1)
    np.testing.assert_array_equal(est.predict(X, batch_size=6), answers)


def test_several_models_are_trained_by_a_main_callback() -> None:
    class Both(MainCallback):
        def on_iter_forward(self, runner: Any) -> None:
            features, target = runner.batch
            first, second = runner.models
            runner.output, runner.target = second(first(features)), target
            runner.loss = runner.criterion(runner.output, target)

        def on_iter_backward(self, runner: Any) -> None:
            for optimizer in runner.optimizers:
                optimizer.zero_grad()
            runner.loss.backward()
            for optimizer in runner.optimizers:
                optimizer.step()

    def two(config: dict[str, Any]) -> list[nn.Module]:
        return [nn.Linear(3, 4), nn.Linear(4, 1)]

    def steppers(models: Any, config: dict[str, Any]) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]

    est = estimator(model=two, optimizer=steppers)
    losses = [line["train_loss"] for line in fit(est, Both(), epochs=8)]
    assert losses[-1] < losses[0] / 4
