from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frameworks.torch.alone import alone, on_ranks
from orca.core.world import World
from orca.errors import ArgumentError
from orca.frameworks.torch.fsdp import FullySharded, _blocks
from orca.frameworks.torch.sync import Clipping, Replicated, Sync
from orca.monitor.heartbeat import Heartbeat

# Rows of each rank in each step: uneven, one alone, none.
SHARES = {1: [[5], [4], [6], [5]], 2: [[4, 1], [0, 4], [3, 3], [5, 0]], 3: [[2, 0, 3], [1, 2, 1], [5, 0, 1], [2, 2, 1]]}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 7), nn.Linear(7, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Have what is hard to shard: blocks, tied and frozen weights, a scalar, sizes no rank count divides, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.enter = nn.Linear(5, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.blocks[3].up.weight = self.blocks[0].up.weight
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.leave = nn.Linear(8, 1)
        self.leave.bias.requires_grad = False
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        x = x + self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]
        return self.leave(x) * self.scale


def groups_of(net: nn.Module) -> list[dict[str, Any]]:
    """Return two groups, in another order than the model's."""
    params = list(net.parameters())
    return [{"params": params[5:]}, {"params": params[:5], "lr": 0.02, "weight_decay": 0.1}]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(groups_of(net), lr=0.05, momentum=0.9),
    "adam": lambda net: torch.optim.Adam(groups_of(net), lr=0.01),
}
CLIPS = {"sgd": Clipping(norm=0.5), "adam": Clipping(bounds=(-0.01, 0.02))}


def data(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=draw), torch.randn(rows, 1, generator=draw)


def train_alone(name: str, steps: list[list[int]]) -> dict[str, Any]:
    """Return the states of one process after half of the steps and after all, and what it then answers."""
    net, halves = Net(), []
    optimizer = OPTIMIZERS[name](net)
    for number, shares in enumerate(steps):
        x, y = data(sum(shares), number)
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        if CLIPS[name].norm:
            nn.utils.clip_grad_norm_(net.parameters(), CLIPS[name].norm)
        else:
            for param in net.parameters():
                if param.grad is not None:
                    param.grad.clamp_(*CLIPS[name].bounds)
        optimizer.step()
        halves.append(copy.deepcopy((net.state_dict(), optimizer.state_dict())))
    return {"half": halves[1], "end": halves[3], "answers": net.eval()(data(3, 9)[0]).detach()}


def train(sync: Sync, optimizer: torch.optim.Optimizer, name: str, steps: dict[int, list[int]], world: World) -> None:
    """Train as the learner does."""
    for number, shares in steps.items():
        x, y = (tensor.split(shares)[world.rank] for tensor in data(sum(shares), number))
        sync.zero()
        if len(x):
            sync.backward(F.mse_loss(sync.module(x), y), len(x) * world.size / sum(shares))
        else:
            sync.idle(sync.module(torch.ones(2, 5)))
        sync.clip(CLIPS[name])
        sync.step(next(rank for rank, rows in enumerate(shares) if rows), optimizer.step)


def states(sync: Sync, world: World) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the whole states of rank 0 on every rank, as a checkpoint brings them there."""
    return world.broadcast((sync.model_state(), sync.optimizer_state()))


def built(name: str, kept: tuple[dict[str, Any], dict[str, Any]] | None = None) -> Any:
    net = Net()
    optimizer = OPTIMIZERS[name](net)
    if kept:
        net.load_state_dict(kept[0])
        optimizer.load_state_dict(copy.deepcopy(kept[1]))
    return net, optimizer


def train_in_turns(name: str, size: int, world: World) -> dict[str, Any]:
    """Train fully sharded; then go on with another sync after half of the steps, and the other way round."""
    steps = dict(enumerate(SHARES[size]))
    early, late = {n: steps[n] for n in (0, 1)}, {n: steps[n] for n in (2, 3)}
    net, optimizer = built(name)
    group = optimizer.param_groups[0]
    sync: Sync = FullySharded(net, optimizer, world)
    train(sync, optimizer, name, early, world)
    half = states(sync, world)
    train(sync, optimizer, name, late, world)
    seen: dict[str, Any] = {"half": half, "end": states(sync, world), "group": group["lr"]}
    net.eval()
    with torch.no_grad():
        seen["answers"] = sync.module(data(3, 9)[0])
    held = [entry for entries in optimizer.state.values() for entry in entries.values() if entry.dim()]
    seen["held"] = {"weights": _held(net.parameters()), "state": _held(held)}

    net, optimizer = built(name, half)
    sync = Replicated(net, optimizer, world)
    train(sync, optimizer, name, late, world)
    seen["then replicated"] = states(sync, world)

    net, optimizer = built(name)
    sync = Replicated(net, optimizer, world)
    train(sync, optimizer, name, early, world)
    kept = copy.deepcopy(states(sync, world))
    for how in ("the optimizer's own state", "a state"):
        net, optimizer = built(name, kept)
        if how == "a state":
            optimizer = OPTIMIZERS[name](net)
            optimizer.param_groups[1]["lr"] = 123.0  # the state's counts
        sync = FullySharded(net, optimizer, world, kept[1] if how == "a state" else None)
        train(sync, optimizer, name, late, world)
        seen[how] = states(sync, world)
    return seen


def _held(tensors: Any) -> int:
    return sum(getattr(tensor, "_local_tensor", tensor).numel() for tensor in tensors)


def check_states(got: Any, expected: Any, what: str) -> None:
    (weights, optimizer), (true_weights, true_optimizer) = got, expected
    assert list(weights) == list(true_weights), what
    for name, value in true_weights.items():
        assert type(weights[name]) is torch.Tensor and weights[name].device.type == "cpu"
        torch.testing.assert_close(weights[name], value, atol=1e-5, rtol=1e-5, msg=f"{what}: {name}")
    assert optimizer["param_groups"] == true_optimizer["param_groups"], what
    assert sorted(optimizer["state"]) == sorted(true_optimizer["state"]), what
    for number, entries in true_optimizer["state"].items():
        for key, value in entries.items():
            torch.testing.assert_close(
                optimizer["state"][number][key], value, atol=1e-5, rtol=1e-5, msg=f"{what}: {number} {key}"
            )


@pytest.mark.parametrize("size", SHARES)
def test_any_number_of_ranks_trains_as_one_process_and_others_go_on(size: int) -> None:
    ranks = on_ranks(size, lambda world: {name: train_in_turns(name, size, world) for name in OPTIMIZERS})
    for name in OPTIMIZERS:
        expected = train_alone(name, SHARES[size])
        whole = sum(value.numel() for value in Net().parameters())
        for seen in (rank[name] for rank in ranks):
            check_states(seen["half"], expected["half"], f"{name} half")
            for what in ("end", "then replicated", "the optimizer's own state", "a state"):
                check_states(seen[what], expected["end"], f"{name} {what}")
            torch.testing.assert_close(seen["answers"], expected["answers"], atol=1e-5, rtol=1e-5)
            assert seen["held"]["weights"] < whole / size + 45  # rows are not divided: a few too many
            assert seen["held"]["state"] < (2 if name == "adam" else 1) * (whole / size + 45)
        assert sum(rank[name]["held"]["weights"] for rank in ranks) == whole + size - 1  # the scalar is everywhere


def many_things(world: World) -> dict[str, Any]:
    """Return what two ranks see in cases that need a world."""
    seen: dict[str, Any] = {}
    net, optimizer = built("sgd")
    sync = FullySharded(net, optimizer, world)
    x, y = (tensor.split([2, 4])[world.rank] for tensor in data(6, 0))
    parts = [(x[:1], y[:1]), (x[1:], y[1:])]
    with sync.no_sync():
        sync.backward(F.mse_loss(sync.module(parts[0][0]), parts[0][1]), 2 * 1 / 6)
    sync.backward(F.mse_loss(sync.module(parts[1][0]), parts[1][1]), 2 * len(parts[1][0]) / 6)
    grads = [param.grad for param in net.parameters()]
    seen["grads"] = [grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads]
    net.eval()
    with torch.no_grad():
        seen["alone"] = [type(p).__name__ for p in net.parameters() if sync.module(x) is not None]
    sync.step(0, optimizer.step)
    seen["told"] = (len(sync.model_state()), len(sync.optimizer_state()["state"]))

    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    rows = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(3))
    expected = encoder.eval()(rows)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=0.01)
    sync = FullySharded(encoder, optimizer, world)
    sync.module.train()(rows).sum().backward()
    encoder.eval()
    with torch.no_grad():
        seen["encoder"] = (sync.module(rows), expected)
    seen["wrapped"] = [name for name, module in encoder.named_modules() if hasattr(module, "reshard")]
    return seen


def test_cases_between_two_ranks() -> None:
    ranks = on_ranks(2, many_things)
    net, (x, y) = Net(), data(6, 0)
    F.mse_loss(net(x), y).backward()
    for rank, seen in enumerate(ranks):
        for param, grad in zip(net.parameters(), seen["grads"], strict=True):
            assert (param.grad is None) == (grad is None)
            if grad is not None:
                torch.testing.assert_close(grad, param.grad, atol=1e-5, rtol=1e-5)
        assert seen["alone"].count("Parameter") == 1  # the scalar: nothing stays whole after an evaluation
        assert seen["told"] == ((0, 0) if rank else (len(net.state_dict()), 23))  # all but the frozen one
        torch.testing.assert_close(*seen["encoder"], atol=1e-5, rtol=1e-5)
        assert seen["wrapped"] == ["", "layers.0", "layers.1"]


def test_repeated_blocks_and_large_parts_are_gathered_on_their_own() -> None:
    net = Net()
    assert list(_blocks(net)) == list(net.blocks)
    with torch.device("meta"):
        wide = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1), nn.Linear(1, 1024))
        part = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model = nn.ModuleDict({"wide": wide, "part": part, "head": nn.Linear(1024, 1024)})
    assert list(_blocks(model)) == [wide[0]]


def test_what_cannot_be_sharded_is_refused() -> None:
    with alone(Heartbeat()) as world:
        net = nn.Linear(2, 1)
        for kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
            with pytest.raises(ArgumentError, match=f"cannot use {kind.__name__}: it must see whole weights. Pass one"):
                FullySharded(net, kind(net.parameters()), world)
        mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double())
        with pytest.raises(ArgumentError, match="in one precision; got torch.float32, torch.float64. Convert"):
            FullySharded(mixed, torch.optim.SGD(mixed.parameters(), lr=0.1), world)


def collectives_of_a_step(world: World) -> set[str]:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sync = FullySharded(net, optimizer, world)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        sync.backward(sync.module(torch.ones(1, 3)).sum(), 1.0)
    return {event.key for event in profile.key_averages() if event.key.startswith("c10d::")}


def test_gradients_between_cpus_are_not_summed_on_every_rank() -> None:
    # The reduce-scatter of gloo is an all-reduce of all gradients, of which each rank keeps its chunk.
    for collectives in on_ranks(2, collectives_of_a_step):
        assert "c10d::alltoall_base_" in collectives
        assert not [name for name in collectives if "reduce_scatter" in name or "allreduce" in name]
