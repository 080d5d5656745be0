"""Fitting: the small model that the tests of callbacks train, on one rank in this process or on two of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from frameworks.torch.alone import AloneEngine
from orca import Estimator
from orca.callbacks import Callback
from orca.errors import CallbackFailed, WorkerFailed
from orca.estimators.torch import TorchEstimator
from orca.triggers import SeveralIteration

X = np.random.default_rng(0).normal(size=(21, 3)).astype(np.float32)  # uneven: the last of 4 steps of 6 has 3 rows
Y = (X @ np.array([[1.0], [-2.0], [0.5]], np.float32)) + 0.3
STEPS = 4


class Alone(TorchEstimator):
    """An Estimator whose one rank runs in this process."""

    engine = AloneEngine()  # type: ignore[assignment]


def net(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def adam(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=config.get("lr", 0.05))


def estimator(ranks: int = 1, **options: Any) -> Estimator:
    """Return an Estimator of a small model; one rank runs in this process."""
    kind = Alone if ranks == 1 else Estimator
    given = {"model": net, "optimizer": adam, "loss": nn.MSELoss(), "backend": "local", "seed": 7, "use_tqdm": False}
    return kind.from_torch(**given | {"workers_per_node": ranks} | options)


def fit(est: Estimator, *callbacks: Any, epochs: int = 1, valid: bool = False, **options: Any) -> list[dict[str, Any]]:
    """Train in steps of 6 rows."""
    data = {"validation_data": (X, Y)} if valid else {}
    return est.fit((X, Y), epochs=epochs, batch_size=6, callbacks=list(callbacks), **data, **options)


class Say(Callback):
    """Put numbers into the statistics, one an epoch."""

    def __init__(self, name: str, *numbers: float) -> None:
        self.name, self.numbers = name, numbers

    def after_train_epoch(self, runner: Any) -> None:
        runner.epoch_stats[self.name] = self.numbers[runner.epochs - 1]


class Cut(Callback):
    """Fail after so many steps in all."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_train_iter(self, runner: Any) -> None:
        if runner.global_step == self.step:
            raise RuntimeError("the power is gone")


def resumed(
    folder: Any, step: int, *callbacks: Any, ranks: int = 1, every: int = 3, options: Any = None, **more: Any
) -> tuple[Estimator, list[dict[str, Any]]]:
    """Cut a fit off after a step, and run it again; return the second Estimator and its statistics."""
    given: dict[str, Any] = {"checkpoint_trigger": SeveralIteration(every), "resume": True} | more
    options = {"model_dir": str(folder), **(options or {})}
    with pytest.raises((WorkerFailed, CallbackFailed), match="the power is gone"):
        fit(estimator(ranks, **options), *callbacks, Cut(step), **given)
    est = estimator(ranks, **options)
    return est, fit(est, *callbacks, **given)


def weights(est: Estimator) -> dict[str, torch.Tensor]:
    return dict(est.get_state_dict()["models"][0])


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of any weight."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
