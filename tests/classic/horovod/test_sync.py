from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca.core.engine import Settings
from orca.engines.local import LocalEngine
from orca.errors import WorkerFailed
from orca.estimators import Estimator
from orca.frameworks.torch.sync import Clipping, sync_of
from orca.testing import shards_of
from orca_classic.bigdl.optimizers import methods
from orca_classic.bigdl.optimizers.schedules import Step
from orca_classic.horovod.sync import HorovodSync
from programs import program_of

built = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not built: make horovod")

X = torch.from_numpy(np.random.default_rng(0).normal(size=(54, 6)).astype(np.float32))
Y = torch.sin(X.sum(dim=1, keepdim=True))
BATCH, EPOCHS = 12, 2
HOROVOD = "orca_classic.horovod.sync:HorovodSync"


# Models and optimizers


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


class Mixed(nn.Module):
    """Have weights of all kinds: frozen, never used, used on some ranks, double, half, complex, sparse, strided."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(6, 1)
        self.rare = nn.Linear(6, 1)
        self.exact = nn.Linear(6, 4, dtype=torch.float64)
        self.coarse = nn.Parameter(torch.rand(4, dtype=torch.bfloat16))
        self.phase = nn.Parameter(torch.rand(4, dtype=torch.complex64))
        self.sparse = nn.Embedding(16, 4, sparse=True)
        self.strided = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)
        self.nothing = nn.Parameter(torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.exact(self.frozen(x).double()).float()
        turned = (hidden * self.coarse.float() * self.phase).real
        known = self.sparse((x[:, 0].abs() * 5).long())
        seen = self.strided((x[:, None, :, None] * x[:, None, None, :]).to(memory_format=torch.channels_last))
        total = (turned + known).sum(1, keepdim=True) + seen.mean((1, 2, 3))[:, None]
        return total + self.rare(x) if len(x) > 6 else total


def momentum(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


def decaying(params: Any) -> torch.optim.Optimizer:
    """Touch every weight that has a gradient, be it zero; sparse ones take no decay."""
    kinds: tuple[list[Any], list[Any]] = [], []
    for param in params:
        kinds[param.shape == (16, 4)].append(param)
    return torch.optim.SGD([{"params": kinds[0], "weight_decay": 0.1}, {"params": kinds[1]}], lr=0.01)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.01)


# One rank


@dataclass(frozen=True)
class Case:
    """Say how to train: which rows each rank has is the same for all."""

    sync: str
    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    pieces: int = 1
    clipping: Clipping = field(default_factory=Clipping)
    apart: bool = False  # each rank begins with weights and state of its own


def shares(size: int) -> Iterator[list[torch.Tensor]]:
    """Yield the rows of each rank, step by step: uneven, and in every other step the last of several has none."""
    for step, rows in enumerate(torch.arange(len(X)).split(BATCH)):
        cuts = {1: [], 2: [7 / 12], 3: [5 / 12, 9 / 12]}[size]
        if step % 2:
            cuts = [*cuts[:-1], 1.0][: len(cuts)]
        yield list(rows.tensor_split([int(cut * len(rows)) for cut in cuts]))


@dataclass(frozen=True)
class HandsOn:
    """Train the sum of two models as a user does who calls backward and step herself; return both states."""

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> list[dict[str, Any]]:
        models, optimizers = pair()
        syncs = [
            HorovodSync(model, optimizer, world, hands_on=True)
            for model, optimizer in zip(models, optimizers, strict=True)
        ]
        for ranks in shares(world.size):
            mine = ranks[world.rank]
            for sync in syncs:
                sync.weight = len(mine) * world.size / sum(map(len, ranks))
            hand_step(models, optimizers, mine if len(mine) else torch.arange(2))
            for sync in syncs:
                sync.step(0, lambda: None)
        for sync in syncs:
            sync.close()
        return [model.state_dict() for model in models]


def pair() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    torch.manual_seed(3)
    models = [perceptron(), perceptron()]
    return models, [adam(models[0].parameters()), momentum(models[1].parameters())]


def hand_step(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], rows: torch.Tensor) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.mse_loss(sum(model(X[rows]) for model in models), Y[rows]).backward()
    nn.utils.clip_grad_norm_(models[1].parameters(), 0.1)
    for optimizer in optimizers:
        optimizer.step()


@dataclass(frozen=True)
class Leave:
    """Train until the second rank leaves in the midst of it, with a word or without."""

    end: Callable[[], None]

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> None:
        model, optimizer = begin(Case(HOROVOD, perceptron, adam), 0)
        sync = sync_of(HOROVOD, model, optimizer, world)
        try:
            for step in range(1000):
                if step == 3 and world.rank == 1:
                    self.end()
                sync.zero()
                backward(sync, torch.arange(4), 4, 1)
                sync.step(0, optimizer.step)
        finally:
            sync.close()


def stumble() -> None:
    raise KeyError("out of luck")


def vanish() -> None:
    os._exit(9)


@dataclass(frozen=True)
class Train:
    """Train cases one after the other in the same processes; return the states of each."""

    cases: tuple[Case, ...]

    def __call__(self, world: Any, rows: Any, heartbeat: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [train(case, world) for case in self.cases]


def begin(case: Case, rank: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3 + rank if case.apart else 3)
    model = case.model()
    optimizer = case.optimizer(model.parameters())
    if case.apart:
        model(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def train(case: Case, world: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    model, optimizer = begin(case, world.rank)
    sync = sync_of(case.sync, model, optimizer, world)
    for _ in range(EPOCHS):
        for ranks in shares(world.size):
            mine, step_rows = ranks[world.rank], sum(map(len, ranks))
            sync.zero()
            if len(mine):
                *early, last = torch.tensor_split(mine, case.pieces)
                with sync.no_sync():
                    for piece in early:
                        backward(sync, piece, step_rows, world.size)
                backward(sync, last, step_rows, world.size)
            else:
                sync.idle(sync.module(X[:2]))
            if case.clipping:
                sync.clip(case.clipping)
            sync.step(0, optimizer.step)
    states = sync.model_state(), sync.optimizer_state()
    sync.close()
    return states


def backward(sync: Any, rows: torch.Tensor, step_rows: int, size: int) -> None:
    sync.backward(nn.functional.mse_loss(sync.module(X[rows]), Y[rows]), len(rows) * size / step_rows)


def run(size: int, *cases: Case) -> list[Any]:
    """Return what the first rank says, after all others were found to say the same."""
    results = LocalEngine(size).run(Train(cases), shards_of([(np.zeros(1), np.zeros(1))] * size), Settings())
    for other in results[1:]:
        for (model, optimizer), (its_model, its_optimizer) in zip(results[0], other, strict=True):
            assert_same(its_model, model, 0.0)
            assert_same(moments(its_optimizer), moments(optimizer), 0.0)
    return results[0]


def moments(optimizer: dict[str, Any]) -> dict[str, Any]:
    entries = {f"{number}.{key}": value for number, state in optimizer["state"].items() for key, value in state.items()}
    return {name: value for name, value in entries.items() if isinstance(value, torch.Tensor)}


def alone(case: Case, size: int = 1) -> dict[str, Any]:
    """Train as a PyTorch tutorial does: no ranks, no sync; with a size, the forward passes are those of the ranks."""
    model, optimizer = begin(case, 0)
    for _ in range(EPOCHS):
        for ranks in shares(size):
            optimizer.zero_grad()
            for rows in ranks:
                if len(rows):
                    share = len(rows) / sum(map(len, ranks))
                    (nn.functional.mse_loss(model(X[rows]), Y[rows]) * share).backward()
            if case.clipping.norm:
                nn.utils.clip_grad_norm_(model.parameters(), case.clipping.norm)
            optimizer.step()
    return model.state_dict()


def assert_same(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


# Same results as DistributedDataParallel and as one process


@built
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_learn_what_one_process_learns(size: int) -> None:
    cases = [
        Case(HOROVOD, perceptron, momentum),
        Case(HOROVOD, perceptron, adam),
        Case(HOROVOD, perceptron, momentum, pieces=2, clipping=Clipping(norm=0.5)),
        Case(HOROVOD, perceptron, methods.Adam(0.01, 0.1).build),
        Case(HOROVOD, perceptron, methods.SGD(0.1, momentum=0.9, learningrate_schedule=Step(3, 0.5)).build),
        Case(HOROVOD, perceptron, methods.Ftrl(0.1).build, pieces=2),
        Case(HOROVOD, normalized, momentum),
        Case("replicated", perceptron, momentum),
        Case("replicated", normalized, momentum),
    ]
    *exact, norm, ddp, ddp_norm = run(size, *cases)
    for (model, _), case in zip(exact, cases, strict=False):
        assert_same(model, alone(case), 1e-5)
    assert_same(exact[0][0], ddp[0], 1e-5)
    assert_same(moments(exact[0][1]), moments(ddp[1]), 1e-5)
    assert_same(norm[0], ddp_norm[0], 1e-5)
    assert float(norm[0]["1.running_mean"].abs().sum()) > 0.1


@built
@pytest.mark.slow
def test_weights_of_all_kinds_agree() -> None:
    mixed = Case(HOROVOD, Mixed, decaying)
    apart = Case(HOROVOD, normalized, adam, apart=True)
    (given, _), (_, its_moments) = run(2, mixed, apart)
    expected = alone(mixed, 2)
    assert_same({"coarse": given.pop("coarse")}, {"coarse": expected.pop("coarse")}, 0.05)
    assert_same(given, expected, 1e-5)
    begun = begin(mixed, 0)[0].state_dict()
    assert torch.equal(given["unused.weight"], begun["unused.weight"])  # a gradient of zero would let it decay
    assert not torch.equal(given["rare.weight"], begun["rare.weight"])
    assert its_moments["state"][0]["step"] == EPOCHS * 5 + 1  # the first rank's step before it joined counts


@built
@pytest.mark.slow
def test_a_users_own_steps_agree_too() -> None:
    results = LocalEngine(2).run(HandsOn(), shards_of([(np.zeros(1), np.zeros(1))] * 2), Settings())
    models, optimizers = pair()
    for rows in torch.arange(len(X)).split(BATCH):
        hand_step(models, optimizers, rows)
    for states in results:
        for state, model in zip(states, models, strict=True):
            assert_same(state, model.state_dict(), 1e-5)


# On clusters


class Witness(nn.Module):
    """A model that writes down how many ranks of Horovod there were when it was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron()
        self.register_buffer("ranks", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            import horovod.torch as horovod

            self.ranks.fill_(horovod.size() if horovod.is_initialized() else 0)
        return self.layers(x)


def witness(config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(3)
    return Witness()


def assert_estimator_learns(engine: str) -> None:
    """Train with two workers on the cluster that is up; compare with a plain loop over whole batches."""
    est = Estimator.from_torch(
        model=witness,
        optimizer=lambda model, config: momentum(model.parameters()),
        loss=nn.MSELoss(),
        backend="horovod",
        workers_per_node=2,
    )
    assert est.engine.name == engine
    for _ in range(2):  # the second fit goes on from the first, with its momentum
        est.fit((X.numpy(), Y.numpy()), epochs=2, batch_size=len(X))
    given = est.get_model().state_dict()
    assert given.pop("ranks") == 2
    expected = witness({})
    optimizer = momentum(expected.layers.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.mse_loss(expected.layers(X), Y).backward()
        optimizer.step()
    wanted = expected.state_dict()
    del wanted["ranks"]
    assert_same(given, wanted, 1e-5)


@built
@pytest.mark.full
def test_on_ray(ray_context: Any) -> None:
    assert_estimator_learns("ray")


@built
@pytest.mark.full
@pytest.mark.timeout(240)
def test_on_spark_where_no_ray_is_up(run_program: Callable[..., Any]) -> None:
    code = """
        from classic.horovod.test_sync import assert_estimator_learns
        from orca.cluster.context import init_orca_context, stop_orca_context

        init_orca_context(cluster_mode="local", cores=2)
        assert_estimator_learns("spark")
        stop_orca_context()
        print("all is well")
    """
    assert "all is well" in run_program(code, timeout=220).stdout


@built
@pytest.mark.full
@pytest.mark.timeout(240)
def test_programs_of_the_documentation_run(run_program: Callable[..., Any]) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("tensorflow")
    page = Path(__file__).resolve().parents[3] / "docs" / "classic" / "horovod.md"
    said = run_program(program_of(page), timeout=220).stdout
    assert "'horovod': [" in said


@built
@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "reason"),
    [(stumble, "rank 1 .* failed: KeyError: 'out of luck'"), (vanish, "rank 1 .* was lost: .* exit code 9")],
)
def test_a_rank_that_leaves_is_named(end: Callable[[], None], reason: str) -> None:
    with pytest.raises(WorkerFailed, match=reason):
        LocalEngine(2).run(Leave(end), shards_of([(np.zeros(1), np.zeros(1))] * 2), Settings(stall_timeout=60))
