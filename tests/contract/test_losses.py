"""Losses that do not simply divide by rows, and batch norm on odd shards: several ranks equal one process.

All rows are one step, so the order does not matter and a plain full-batch loop is the truth.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from orca.core.engine import Settings
from orca.core.feed import spool_parts, weigh
from orca.core.learner import FitPlan
from orca.core.world import World
from orca.engines.local import LocalEngine
from orca.frameworks.torch.learner import TorchLearner
from orca.frameworks.torch.options import Options
from orca.frameworks.torch.sync import Clipping
from orca.job import EvaluateJob, FitJob
from orca.rows.tree import cut_rows
from orca.testing import shards_of

ROWS, EPOCHS = 23, 2


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


def class_weighted(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target, weight=weights())


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a mean over rows, for which -100 is a number like others."""
    return (output[:, 0] - target / 100).square().mean()


class Focal(nn.CrossEntropyLoss):
    """A loss of the user's own, with weights of its own."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(output, target)


@dataclass(frozen=True)
class Case:
    """A loss, what it is compared with, and how it is trained."""

    model: Callable[[Any], nn.Module]
    loss: Any
    ignored: str = ""  # "some" of the labels, "here": all that rank 1 has, or "last": none of the first pieces
    kind: Any = np.int64
    weighed: Any = None
    options: tuple[tuple[str, Any], ...] = ()

    def rows(self) -> tuple[Any, Any]:
        draw = np.random.default_rng(5)
        x, y = draw.random((ROWS, 4)), draw.integers(0, 3, ROWS)
        if self.model is tokens:
            y = draw.integers(0, 3, (ROWS, 2))
        if self.model is plain_numbers:
            y = draw.random((ROWS, 3))
        if self.ignored == "last":
            y[[SHARDS["uneven"] - 1, -1, -2]] = -100
        elif self.ignored:
            y[draw.random(y.shape) < 0.4] = -100
        if self.ignored == "here":
            y[SHARDS["uneven"] :] = -100
        if self.kind == "chances":
            return x, np.eye(3)[y] * 0.8 + 0.1
        return x, y.astype(self.kind) if self.kind is not np.int64 else y


def kept(target: torch.Tensor) -> torch.Tensor:
    return (target != -100).double() * weights()[target.clamp(min=0)]


def plain_numbers(config: Any) -> nn.Module:
    return nn.Linear(4, 3).double()


ONES = np.ones(ROWS)
UNEVEN = np.random.default_rng(8).random(ROWS)
PIECES = (("accumulate", 3),)
CASES: dict[str, Case] = {
    "weight": Case(classes, nn.CrossEntropyLoss(weight=weights())),
    "smoothed": Case(classes, nn.CrossEntropyLoss(weight=weights(), label_smoothing=0.1)),
    "ignored": Case(classes, nn.CrossEntropyLoss(ignore_index=2)),
    "nll": Case(logs, nn.NLLLoss(weight=weights(), ignore_index=1)),
    "tokens": Case(tokens, nn.CrossEntropyLoss(), "some"),
    "all-ignored-here": Case(tokens, nn.CrossEntropyLoss(), "here"),
    "float-tokens": Case(tokens, nn.CrossEntropyLoss(), "some", np.float64),
    "missing": Case(classes, nn.CrossEntropyLoss(), "some"),
    "missing-floats": Case(classes, nn.CrossEntropyLoss(), "some", np.float32),
    "missing-here": Case(classes, nn.CrossEntropyLoss(), "here"),
    "missing-here-pieces": Case(classes, nn.CrossEntropyLoss(), "here", options=PIECES),
    "missing-clipped": Case(classes, nn.CrossEntropyLoss(), "here", options=(("clipping", Clipping(norm=0.1)),)),
    "chances": Case(classes, nn.CrossEntropyLoss(weight=weights()), kind="chances"),
    "bytes": Case(classes, nn.CrossEntropyLoss(weight=weights()), kind=np.uint8, options=PIECES),
    "shorts": Case(classes, nn.CrossEntropyLoss(weight=weights()), "some", np.int16, options=PIECES),
    "columns": Case(classes, nn.CrossEntropyLoss(weight=weights()), kind=np.float32, options=PIECES),
    "torch-function": Case(classes, F.cross_entropy, "some"),
    "torch-partial": Case(classes, partial(F.cross_entropy, weight=weights(), ignore_index=1)),
    "function-mean": Case(tokens, lambda output, target: F.cross_entropy(output, target), "some"),
    "function-mean-late": Case(classes, lambda output, target: F.cross_entropy(output, target), "here"),
    "function-pieces": Case(tokens, lambda output, target: F.cross_entropy(output, target), "some", options=PIECES),
    "function-rows-pieces": Case(classes, distance, "last", options=PIECES),
    "function-each": Case(classes, lambda output, target: F.cross_entropy(output, target, reduction="none"), "some"),
    "function-sum": Case(plain_numbers, squares, kind=np.float64),
    "function-sum-pieces": Case(plain_numbers, squares, kind=np.float64, options=PIECES),
    "partial-sum": Case(plain_numbers, partial(F.mse_loss, reduction="sum"), kind=np.float64),
    "own-weights": Case(classes, Focal(weight=weights()), "some"),
    "told": Case(classes, class_weighted, "some", options=(("reduction", kept),)),
    "told-pieces": Case(classes, class_weighted, "some", options=(("reduction", kept), *PIECES)),
    "ones": Case(classes, nn.CrossEntropyLoss(weight=weights()), "some", weighed=ONES),
    "tokens-ones": Case(tokens, nn.CrossEntropyLoss(), "some", weighed=ONES),
    "chances-ones": Case(classes, nn.CrossEntropyLoss(weight=weights()), kind="chances", weighed=ONES),
    "batchmean-ones": Case(logs, nn.KLDivLoss(reduction="batchmean"), kind="chances", weighed=ONES),
    "batchmean-weighed": Case(logs, nn.KLDivLoss(reduction="batchmean"), kind="chances", weighed=UNEVEN),
    "weighed-pieces": Case(logs, nn.NLLLoss(weight=weights()), "some", weighed=UNEVEN, options=PIECES),
}
SHARDS = {"uneven": 17, "empty": 0}  # rows of rank 0; the last rank has the others
NORMED = (3, 0)  # six rows, four a step: 2 + 2 and then 1 + 1 rows, or all of them at rank 1


@dataclass(frozen=True)
class Everything:
    """Train every case on every shape of shards in one run; return what the fits return."""

    def __call__(self, world: World, rows: dict[str, Any], heartbeat: Any) -> dict[tuple[str, str], Any]:
        done = {}
        for at, (name, case) in enumerate(CASES.items()):
            learner = TorchLearner.of(
                case.model, sgd, case.loss, {}, ("replicated", "sharded")[at % 2], None, Options(**dict(case.options))
            )
            x, y = case.rows()
            for shape, cut in SHARDS.items():
                plan = FitPlan(EPOCHS, ROWS, seed=3, weighted=case.weighed is not None)
                rows = held(world, cut, x, y if case.weighed is None else weigh(y, case.weighed))
                history, state = FitJob(learner, plan, (), None)(world, rows, heartbeat)
                state = cloudpickle.loads(world.broadcast(cloudpickle.dumps(state)))  # as the driver sends it
                judged = EvaluateJob(learner, 5, (), state, weighted=plan.weighted)(world, rows, heartbeat)[0]
                done[name, shape] = history, state, judged["val_loss"]
        for cut in NORMED if world.size == 2 else ():
            x, y = (array[:6] for array in CASES["weight"].rows())
            learner = TorchLearner.of(normed, sgd, nn.CrossEntropyLoss(), {}, "replicated")
            done["normed", str(cut)] = FitJob(learner, FitPlan(2, 4, seed=3), (), None)(
                world, held(world, cut, x, y), heartbeat
            )
        return done


def held(world: World, cut: int, x: Any, y: Any) -> dict[str, Any]:
    """Return the rows of a rank: rank 0 has those before the cut, the last rank the others."""
    mine = {0: slice(0, cut), world.size - 1: slice(cut, None)}.get(world.rank, slice(0, 0))
    blocks = [("train", x[mine], cut_rows(y, mine))] if len(x[mine]) else []
    return dict(spool_parts(blocks, Path(tempfile.gettempdir()), ["train"]))


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.full)])
def done(request: pytest.FixtureRequest) -> dict[tuple[str, str], Any]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    nothing = shards_of([(np.zeros((1, 1)), np.zeros(1))] * request.param)
    results: dict[tuple[str, str], Any] = LocalEngine(request.param).run(Everything(), nothing, Settings())[0]
    return results


def true_loss(case: Case, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of all rows by its definition."""
    target = y.long() if case.kind != "chances" and case.model is not plain_numbers else y
    if case.weighed is not UNEVEN:
        return case.loss(output, target).mean()
    row_weights = torch.from_numpy(UNEVEN)
    if isinstance(case.loss, nn.KLDivLoss):
        return (row_weights * (target * (target.log() - output)).sum(1)).sum() / row_weights.sum()
    mine = row_weights * (target != -100) * weights()[target.clamp(min=0)]
    return -(mine * output[torch.arange(ROWS), target.clamp(min=0)]).sum() / mine.sum()


def plain(case: Case) -> tuple[list[float], nn.Module]:
    """Train in this process; return the loss of each epoch and of the trained model, that of a row for sums."""
    x, y = (torch.from_numpy(array) for array in case.rows())
    torch.manual_seed(3)
    net = case.model({})
    stepper, losses = sgd(net, {}), []
    for epoch in range(EPOCHS + 1):
        stepper.zero_grad()
        value = true_loss(case, net(x), y)
        losses.append(value.item() / (ROWS if case.model is plain_numbers else 1))
        if epoch < EPOCHS:
            value.backward()
            for name, option in case.options:
                if name == "clipping":
                    nn.utils.clip_grad_norm_(net.parameters(), option.norm)
            stepper.step()
    return losses, net


@pytest.mark.parametrize("shape", SHARDS)
@pytest.mark.parametrize("case", CASES)
def test_what_a_loss_is_a_mean_over_is_the_same_on_several_ranks(done: Any, case: str, shape: str) -> None:
    history, state, judged = done[case, shape]
    losses, net = plain(CASES[case])
    assert [*(line["train_loss"] for line in history.epochs), judged] == pytest.approx(losses, rel=1e-9)
    for name, tensor in net.state_dict().items():
        assert torch.allclose(state.payload["models"][0][name], tensor, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("cut", NORMED)
def test_batch_norm_goes_on_where_a_rank_has_one_row_or_none(done: Any, cut: int) -> None:
    if ("normed", str(cut)) not in done:
        return  # of two ranks alone
    history, state = done["normed", str(cut)]
    assert [line["num_samples"] for line in history.epochs] == [6, 6]
    moved = state.payload["models"][0]["1.running_mean"]
    assert moved.abs().sum() > 0  # also where rank 0 has no rows: the statistics are those of a rank that has
