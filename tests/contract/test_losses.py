"""Losses that do not simply divide by rows, and batch norm on odd shards: two ranks equal one process.

All rows are one step, so the order does not matter and a plain full-batch loop is the truth.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from orca.core.engine import Settings
from orca.core.feed import spool_parts
from orca.core.learner import FitPlan
from orca.core.world import World
from orca.engines.local import LocalEngine
from orca.frameworks.torch.learner import TorchLearner
from orca.job import FitJob
from orca.testing import shards_of

ROWS, EPOCHS = 23, 4


class Tokens(nn.Module):
    """Give scores of three classes for each of two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).view(-1, 3, 2)


def classes(config: Any) -> nn.Module:
    return nn.Linear(4, 3).double()


def logs(config: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)).double()


def tokens(config: Any) -> nn.Module:
    return Tokens().double()


def normed(config: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()


def sgd(net: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)


def weights() -> torch.Tensor:
    return torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64)


CASES: dict[str, tuple[Callable[[Any], nn.Module], nn.Module]] = {
    "weight": (classes, nn.CrossEntropyLoss(weight=weights())),
    "smoothed": (classes, nn.CrossEntropyLoss(weight=weights(), label_smoothing=0.1)),
    "ignored": (classes, nn.CrossEntropyLoss(ignore_index=2)),
    "nll": (logs, nn.NLLLoss(weight=weights(), ignore_index=1)),
    "tokens": (tokens, nn.CrossEntropyLoss()),
    "all-ignored-here": (tokens, nn.CrossEntropyLoss()),
}
SHARDS = {"uneven": 17, "empty": 0}  # rows of rank 0; rank 1 has the others
NORMED = (3, 0)  # six rows, four a step: 2 + 2 and then 1 + 1 rows, or all of them at rank 1


def rows_for(case: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(5)
    x, y = draw.random((ROWS, 4)), draw.integers(0, 3, ROWS)
    if CASES[case][0] is not tokens:
        return x, y
    y = draw.integers(0, 3, (ROWS, 2))
    y[draw.random((ROWS, 2)) < 0.4] = -100
    if case == "all-ignored-here":
        y[SHARDS["uneven"] :] = -100
    return x, y


@dataclass(frozen=True)
class Everything:
    """Train every case on every shape of shards in one run; return what the fits return."""

    def __call__(self, world: World, rows: dict[str, Any], pulse: Any) -> dict[tuple[str, str], Any]:
        done = {}
        for at, (case, (model, loss)) in enumerate(CASES.items()):
            learner = TorchLearner.of(model, sgd, loss, {}, ("replicated", "sharded")[at % 2])
            for shape, cut in SHARDS.items():
                fit = FitJob(learner, FitPlan(EPOCHS, ROWS, seed=3), (), None)
                done[case, shape] = fit(world, held(world.rank, cut, *rows_for(case)), pulse)
        for cut in NORMED:
            x, y = (array[:6] for array in rows_for("weight"))
            learner = TorchLearner.of(normed, sgd, nn.CrossEntropyLoss(), {}, "replicated")
            done["normed", str(cut)] = FitJob(learner, FitPlan(2, 4, seed=3), (), None)(
                world, held(world.rank, cut, x, y), pulse
            )
        return done


def held(rank: int, cut: int, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the rows of a rank: rank 0 has those before the cut."""
    mine = slice(0, cut) if rank == 0 else slice(cut, None)
    blocks = [("train", x[mine], y[mine])] if len(x[mine]) else []
    return dict(spool_parts(blocks, Path(tempfile.gettempdir()), ["train"]))


@pytest.fixture(scope="module")
def done() -> dict[tuple[str, str], Any]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    nothing = shards_of([(np.zeros((1, 1)), np.zeros(1))] * 2)
    results: dict[tuple[str, str], Any] = LocalEngine(2).run(Everything(), nothing, Settings())[0]
    return results


def plain(case: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    model, loss = CASES[case]
    x, y = (torch.from_numpy(array) for array in rows_for(case))
    torch.manual_seed(3)
    net = model({})
    stepper, losses = sgd(net, {}), []
    for _ in range(EPOCHS):
        stepper.zero_grad()
        value = loss(net(x), y)
        value.backward()
        stepper.step()
        losses.append(value.item())
    return losses, net.state_dict()


@pytest.mark.parametrize("shape", SHARDS)
@pytest.mark.parametrize("case", CASES)
def test_weighted_targets_count_the_same_on_two_ranks_as_in_one_process(done: Any, case: str, shape: str) -> None:
    history, state = done[case, shape]
    losses, expected = plain(case)
    assert [line["train_loss"] for line in history.epochs] == pytest.approx(losses, rel=1e-9)
    for name, tensor in state.payload["models"][0].items():
        assert torch.allclose(tensor, expected[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("cut", NORMED)
def test_batch_norm_goes_on_where_a_rank_has_one_row_or_none(done: Any, cut: int) -> None:
    history, state = done["normed", str(cut)]
    assert [line["num_samples"] for line in history.epochs] == [6, 6]
    moved = state.payload["models"][0]["1.running_mean"]
    assert moved.abs().sum() > 0  # also where rank 0 has no rows: the statistics are those of a rank that has
