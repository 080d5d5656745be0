"""Fits in which a rank has no row in some steps, or one: each must equal a plain loop over the same global batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frameworks.torch.alone import alone
from frameworks.torch.pair import All, Case
from orca.callbacks import Callback, MainCallback
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.plan import Plan
from orca.engines.local import LocalEngine
from orca.frameworks.torch.learner import TorchLearner
from orca.frameworks.torch.operator import TrainingOperator
from orca.frameworks.torch.options import Options, clipping_of
from orca.job import FitJob
from orca.monitor.heartbeat import Heartbeat
from orca.testing import shards_of

# Rows of each rank; with 5 rows a step the last step has one row, so that all ranks but one have none.
COUNTS = {1: (11,), 2: (7, 4), 3: (6, 4, 1)}
X = np.random.default_rng(0).normal(size=(11, 3))
X[0, 2], X[:, 1] = 1.0, np.abs(X[:, 1])  # the template row takes the branch of Branching
Y = X.sum(axis=1, keepdims=True) + 0.5
IDS = np.array([0, 1, 2, 0, 3, 4, 1, 2, 0, 5, 3])


class Branching(nn.Module):
    """A model of which one part sees just the rows that ask for it."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.seldom = nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        asked, output = x[:, 2:] > 0, self.always(x)
        return output + asked * self.seldom(x) if asked.any() else output


class Looking(nn.Module):
    """A model with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 1, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids.reshape(-1))


class Twice(nn.Module):
    """A model that takes the label too, where it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(torch.cat([x, y], 1))).tanh())


class Plain(nn.Module):
    """The same without batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(torch.cat([x, y], 1)).tanh())


class KeepsNorm(nn.Module):
    """A model that trains one batch normalization of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.layers[1].eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Clamps(nn.Module):
    """A model that writes the same on every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.body.weight.clamp_(-0.2, 0.2)
        return self.body(x)


class CallsTwice(MainCallback):
    def on_iter_forward(self, runner: Any) -> None:
        x, y = runner.batch
        runner.output, runner.target = runner.model(x, y), y
        runner.loss = F.mse_loss(runner.output, y) + runner.model(x, 0 * y).square().mean()


class Steps(TrainingOperator):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        *x, y = batch
        loss = F.mse_loss(self.model(*x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"train_loss": loss.detach()}


class Thaws(Callback):
    """Freezes the first layer at first, then the last one."""

    def before_train_epoch(self, runner: Any) -> None:
        self._train(runner, runner.epochs == 2)

    def after_train_iter(self, runner: Any) -> None:
        if runner.epochs == 1:
            self._train(runner, runner.batch_idx == 0)

    @staticmethod
    def _train(runner: Any, first: bool) -> None:
        first_layer, *_, last_layer = runner.given_models[0]
        first_layer.requires_grad_(first)
        last_layer.requires_grad_(not first)


class ThawsAlone(Callback):
    """Freezes a layer on one rank, at the beginning of an epoch or after a step."""

    def __init__(self, after_step: bool) -> None:
        self.after_step = after_step

    def before_train_epoch(self, runner: Any) -> None:
        if not self.after_step:
            self._freeze(runner)

    def after_train_iter(self, runner: Any) -> None:
        self._freeze(runner)

    @staticmethod
    def _freeze(runner: Any) -> None:
        runner.given_models[0][0].requires_grad_(runner.rank == 0)


class ThawsAtTheEnd(Callback):
    """Freezes a layer after the last epoch: on one rank, or another one on each rank."""

    def __init__(self, both: bool) -> None:
        self.both = both

    def after_train_epoch(self, runner: Any) -> None:
        if runner.epochs == 2 and (self.both or runner.rank):
            runner.given_models[0][2 * runner.rank].requires_grad_(False)


class FreezesAlone(Steps):
    """An operator that freezes a layer on one rank."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        numbers = super().train_batch(batch, batch_info)
        getattr(self.model, "module", self.model)[0].requires_grad_(self.world_rank == 0)
        return numbers


class FreezesAtSetup(Steps):
    """An operator that freezes a layer from the beginning."""

    def setup(self, config: dict[str, Any]) -> None:
        getattr(self.model, "module", self.model)[0].requires_grad_(False)


class Toggles(Steps):
    """An operator that leaves a layer frozen at the end of a step, and thaws it at the beginning of the next."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        layer = getattr(self.model, "module", self.model)[0]
        layer.requires_grad_(True)
        numbers = super().train_batch(batch, batch_info)
        layer.requires_grad_(False)
        return numbers


class AddsGroup(Callback):
    def before_train_epoch(self, runner: Any) -> None:
        if runner.epochs == 2:
            runner.optimizer.add_param_group({"params": runner.given_models[0][2].parameters(), "lr": 0.01})


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return make().double()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def sgd(net: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def adam(net: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(net.parameters(), lr=0.02)


def sparse_adam(net: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(list(net.parameters()), lr=0.02)


def head_alone(net: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(net[0].parameters(), lr=0.02)


@dataclass(frozen=True)
class Fit:
    """One way to train, and how a plain loop does the same."""

    make: Callable[[], nn.Module] = layers
    optimizer: Any = adam
    x: Any = field(default_factory=lambda: X)
    batch: int = 5
    sync: str = "replicated"
    options: Options = field(default_factory=Options)
    callbacks: tuple[Any, ...] = ()
    loss: Callable[..., torch.Tensor] = lambda net, x, y: F.mse_loss(net(x), y)
    before: Callable[..., None] = lambda net, optimizer, epoch, step: None

    def case(self, ranks: int) -> Case:
        learner = TorchLearner.of(seeded(self.make), self.optimizer, nn.MSELoss(), {}, self.sync, options=self.options)
        plan = FitPlan(epochs=2, batch_size=self.batch, shuffle=False, callbacks=self.callbacks, seed=3)
        edges = np.cumsum((0, *COUNTS[ranks]))
        shards = shards_of([(self.x[a:b], Y[a:b]) for a, b in pairwise(edges)])
        return Case(FitJob(learner, plan, (), None), shards.open, shards.portable())

    def expected(self, ranks: int) -> dict[str, torch.Tensor]:
        net = seeded(self.make)
        optimizer = self.optimizer(net, {})
        starts = np.cumsum((0, *COUNTS[ranks]))
        x, y = torch.from_numpy(self.x), torch.from_numpy(Y)
        for epoch in (1, 2):
            for step, (before, after) in enumerate(Plan(COUNTS[ranks], self.batch).walk()):
                taken = [np.arange(start + a, start + b) for start, a, b in zip(starts, before, after, strict=False)]
                rows = np.concatenate(taken)
                self.before(net, optimizer, epoch, step)
                optimizer.zero_grad()
                net.train()
                for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm1d) and len(rows) == 1):
                    norm.eval()
                self.loss(net, x[rows], y[rows]).backward()
                if self.options.clipping:
                    nn.utils.clip_grad_norm_(net.parameters(), self.options.clipping.norm)
                optimizer.step()
        return net.state_dict()


def twice_loss(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(net(x, y), y) + net(x, 0 * y).square().mean()


def thaw(net: Any, optimizer: Any, epoch: int, step: int) -> None:
    first = epoch == 2 or step == 1
    net[0].requires_grad_(first)
    net[2].requires_grad_(not first)


def add_group(net: Any, optimizer: Any, epoch: int, step: int) -> None:
    if (epoch, step) == (2, 0):
        optimizer.add_param_group({"params": net[2].parameters(), "lr": 0.01})


UNUSED = Options(unused=True)
FITS = {
    "a part that no true row used": Fit(Branching, sgd, options=UNUSED),
    "that part, clipped": Fit(Branching, adam, options=replace(UNUSED, clipping=clipping_of(0.1, None))),
    "that part in an operator": Fit(Branching, sgd, options=replace(UNUSED, operator=Steps)),
    "sparse gradients": Fit(Looking, sparse_adam, IDS[:, None]),
    "sparse gradients in an operator": Fit(Looking, sparse_adam, IDS[:, None], options=Options(operator=Steps)),
    "a forward pass of the user": Fit(
        Twice, sgd, loss=twice_loss, options=Options(sync_batchnorm=True), callbacks=(CallsTwice(),)
    ),
    "one row a rank": Fit(normed, sgd, batch=3),
    "one row a rank, one row left": Fit(normed, sgd, batch=2),
    "one row a rank, sharded": Fit(normed, sgd, batch=3, sync="sharded"),
    "one row a rank, in an operator": Fit(normed, sgd, batch=3, options=Options(operator=Steps)),
    "pieces of two rows": Fit(normed, sgd, batch=3, options=Options(accumulate=3)),
    "one row a rank, in pieces": Fit(normed, sgd, batch=3, options=Options(accumulate=2)),
    "one row a rank, one layer frozen": Fit(KeepsNorm, sgd, batch=2),
    "thawed": Fit(callbacks=(Thaws(),), before=thaw),
    "thawed, sharded": Fit(callbacks=(Thaws(),), before=thaw, sync="sharded"),
    "thawed, by hand": Fit(callbacks=(Thaws(),), before=thaw, options=Options(operator=Steps)),
    "frozen when an operator is made": Fit(
        before=lambda net, *_: net[0].requires_grad_(False), options=Options(operator=FreezesAtSetup)
    ),
    "a weight that forward clamps": Fit(Clamps),
    "another group": Fit(optimizer=head_alone, callbacks=(AddsGroup(),), before=add_group),
    "another group, sharded": Fit(optimizer=head_alone, callbacks=(AddsGroup(),), before=add_group, sync="sharded"),
}
spread = {"sync": "fully sharded"}
FITS |= {
    "pieces of a model in shards": Fit(**spread, options=Options(accumulate=2)),
    "pieces of one row of a model in shards": Fit(**spread, batch=3, options=Options(accumulate=3)),
    "a forward pass of the user, in shards": Fit(Plain, **spread, loss=twice_loss, callbacks=(CallsTwice(),)),
    "one row a rank, in shards": Fit(normed, sgd, **spread, batch=3, options=Options(accumulate=2)),
}


def on_ranks(ranks: int, job: Any) -> list[Any]:
    if ranks == 1:
        with alone(Heartbeat()) as world:
            return [
                cloudpickle.loads(cloudpickle.dumps(job))(world, {}, world.heartbeat)
            ]  # callbacks keep what they saw
    start = shards_of([(np.zeros((1, 1)), np.zeros(1))] * ranks)
    return LocalEngine(ranks).run(job, start, Settings(progress=False, stall_timeout=60))


@cache
def trained(ranks: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return the weights that each fit gives; all run in the same processes."""
    first = on_ranks(ranks, All({name: fit.case(ranks) for name, fit in FITS.items()}))[0]
    return {name: state.payload["models"][0] for name, (_, state) in first.items()}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("ranks", [1, 2, pytest.param(3, marks=pytest.mark.full)])
def test_a_fit_with_idle_ranks_equals_a_plain_loop(name: str, ranks: int) -> None:
    expected = FITS[name].expected(ranks)
    for key, weight in trained(ranks)[name].items():
        torch.testing.assert_close(weight, expected[key], rtol=1e-6, atol=1e-8, msg=lambda text: f"{key}: {text}")  # noqa: B023


# What is refused


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 1, max_norm=0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids.reshape(-1))


REFUSED = {
    "frozen on one rank": (
        Fit(callbacks=(ThawsAlone(False),)),
        r"operator changed what is trained .requires_grad, or the optimizer's groups. on 1 of 2 workers. Do it on",
    ),
    "frozen on one rank after a step": (Fit(callbacks=(ThawsAlone(True),)), "on 1 of 2 workers. Do it on every worker"),
    "frozen on one rank at the end": (
        Fit(callbacks=(ThawsAtTheEnd(False),)),
        "on 1 of 2 workers. Do it on every worker",
    ),
    "frozen on one rank at the end, in chunks": (
        Fit(sync="sharded", callbacks=(ThawsAtTheEnd(False),)),
        "on 1 of 2 workers. Do it on every worker",
    ),
    "other layers frozen on other ranks": (
        Fit(callbacks=(ThawsAtTheEnd(True),)),
        r"changed what is trained .requires_grad, or the optimizer's groups. differently on 2 workers",
    ),
    "an operator that freezes on one rank": (
        Fit(options=Options(operator=FreezesAlone)),
        "changed what is trained .* on 1 of 2 workers. Do it on every worker",
    ),
    "thawed within a step": (
        Fit(options=Options(operator=Toggles)),
        "weights are trained that were frozen .requires_grad=False. when the step began",
    ),
    "an embedding with a norm": (
        Fit(Bounded, x=IDS[:, None]),
        "Embedding 'table' has max_norm=0.5: its forward pass writes into the weights of the rows it looks up",
    ),
}
REFUSED["a thawed weight in shards"] = (
    Fit(sync="fully sharded", callbacks=(Thaws(),)),
    "with shard_model, weights cannot be frozen or unfrozen .requires_grad. during a fit",
)


@dataclass(frozen=True)
class Attempts:
    """Run fits that fail on every rank, one after the other, and return what they say."""

    cases: dict[str, Case]

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> dict[str, str]:
        texts = {}
        for name, case in self.cases.items():
            with pytest.raises(Exception) as error:
                case(world, heartbeat)
            texts[name] = str(error.value)
        return texts


@cache
def refusals() -> dict[str, str]:
    attempts = Attempts({name: fit.case(2) for name, (fit, _) in REFUSED.items()})
    return on_ranks(2, attempts)[1]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exact_is_refused_in_words(name: str) -> None:
    assert re.search(REFUSED[name][1], refusals()[name])
