from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from frameworks.torch.alone import on_ranks
from orca.core.world import World
from orca.frameworks.torch.batchnorm import Statistics
from orca.frameworks.torch.sync import _BEFORE_FORWARD

# Rows of each rank in each step: uneven, one alone, none.
SHARES = {1: [[5], [4], [5]], 2: [[4, 1], [0, 4], [3, 2]], 3: [[2, 0, 3], [1, 2, 1], [5, 0, 0]]}


def conv_net(**options: Any) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, bias=False),
        nn.BatchNorm2d(3, **options),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 4),
        nn.BatchNorm1d(4, **options),
        nn.Linear(4, 1),
    )
    return net.double()


def data(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, 4, 4, generator=draw, dtype=torch.float64) * 2 + 100  # the mean is far from 0
    return x, torch.randn(rows, 1, generator=draw, dtype=torch.float64)


def train_alone(net: nn.Module, steps: list[list[int]]) -> dict[str, Any]:
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), []
    for number, shares in enumerate(steps):
        x, y = data(sum(shares), number)
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, **net.state_dict()}


def train_together(net: nn.Module, steps: list[list[int]], world: World) -> dict[str, Any]:
    """Train as the learner does: idle ranks send template rows through and zeros back."""
    statistics = Statistics(net)
    model = nn.parallel.DistributedDataParallel(net, **{_BEFORE_FORWARD: False})
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), []
    for number, shares in enumerate(steps):
        x, y = (tensor.split(shares)[world.rank] for tensor in data(sum(shares), number))
        optimizer.zero_grad()
        statistics.counts = bool(len(x))
        mean = torch.zeros((), dtype=torch.float64)
        if len(x):
            loss = F.mse_loss(model(x), y)
            (loss * (len(x) * world.size / sum(shares))).backward()
            mean += loss.detach() * len(x) / sum(shares)
        else:
            output = model(torch.full((2, 2, 4, 4), 1e3, dtype=torch.float64))
            output.backward(torch.zeros_like(output))
        dist.all_reduce(mean)
        losses.append(float(mean))
        optimizer.step()
    statistics.release()
    return {"losses": losses, **net.state_dict()}


VARIANTS = [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}]


@pytest.mark.parametrize("size", SHARES)
def test_any_number_of_ranks_trains_as_one_process_does(size: int) -> None:
    steps = SHARES[size]
    work = lambda world: [train_together(conv_net(**options), steps, world) for options in VARIANTS]  # noqa: E731
    for variant, *ranks in zip(VARIANTS, *on_ranks(size, work), strict=True):
        expected = train_alone(conv_net(**variant), steps)
        assert expected["losses"][0] != pytest.approx(expected["losses"][2], rel=1e-3)  # something is learned
        for rank in ranks:
            assert rank.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(
                    torch.as_tensor(rank[name]), torch.as_tensor(value), atol=1e-6, rtol=1e-6, msg=f"{variant} {name}"
                )


def many_things(world: World) -> dict[str, Any]:
    """Return what two ranks see in cases that need a world."""
    seen: dict[str, Any] = {}
    x = data(4, 0)[0].split([3, 1])[world.rank]
    net = conv_net()
    Statistics(net)
    seen["eval"] = (net.eval()(x[:1]) if world.rank == 0 else None, conv_net().eval()(data(4, 0)[0][:1]))

    torch.manual_seed(3)
    half = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(4))
    with torch.autocast("cpu", torch.bfloat16):
        one = half(rows)
        alone = half[1].running_var.clone()
        half[1].reset_running_stats()
        Statistics(half)
        output = half(rows.split([5, 1])[world.rank])
    output.float().square().sum().backward()
    seen["half"] = (output, one.split([5, 1])[world.rank], half[1].running_var, alone, half[0].weight.grad.dtype)

    norm = nn.BatchNorm1d(2)
    statistics = Statistics(norm)
    statistics.counts = world.rank == 1
    try:
        norm(torch.ones(2 - world.rank, 2))
    except ValueError as error:
        seen["one row"] = str(error)
    statistics.counts = False
    before = copy.deepcopy(norm.state_dict())
    norm(torch.ones(2, 2))
    seen["no rows"] = all(torch.equal(before[name], value) for name, value in norm.state_dict().items())

    norm, rows = nn.BatchNorm1d(1, affine=False), torch.tensor([[1e4], [1e4 + 1], [1e4 + 2], [1e4 + 5]])
    expected = norm(rows)
    Statistics(norm)
    seen["far"] = (norm(rows.split([2, 2])[world.rank]), expected.split([2, 2])[world.rank])
    return seen


def test_cases_between_two_ranks() -> None:
    ranks = on_ranks(2, many_things)
    assert torch.equal(*ranks[0]["eval"])  # rank 0 evaluated alone
    for rank, seen in enumerate(ranks):
        output, expected, variance, alone, gradient = seen["half"]
        assert output.dtype == expected.dtype == torch.bfloat16 and gradient == torch.float32
        torch.testing.assert_close(output, expected, atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(variance, alone, atol=1e-2, rtol=1e-2)
        size = [2 - rank, 2]
        assert (
            seen["one row"]
            == f"Expected more than 1 value per channel when training, got input size {torch.Size(size)}"
        )
        assert seen["no rows"]
        torch.testing.assert_close(*seen["far"], atol=1e-3, rtol=1e-3)


def test_torch_gives_the_same_error_for_one_row() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got input size"):
        nn.BatchNorm1d(2)(torch.ones(1, 2))


def test_class_and_state_stay_and_release_puts_everything_back() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2), nn.InstanceNorm2d(2, affine=True), nn.SyncBatchNorm(2))
    keys, classes = list(net.state_dict()), [type(module) for module in net.modules()]
    statistics = Statistics(net)
    assert list(net.state_dict()) == keys and [type(module) for module in net.modules()] == classes
    assert ["forward" in vars(module) for module in net] == [True, False, False]
    twin = copy.deepcopy(net)
    assert twin[0].forward.args[0] is twin[0]  # a copy normalizes with its own weights
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        net[0](torch.ones(2, 2, 1, 1))
    statistics.release()
    assert not any("forward" in vars(module) for module in net)
    assert net[0](torch.ones(2, 2, 1, 1)).shape == (2, 2, 1, 1)


def test_wrong_dimensions_are_refused_as_by_torch() -> None:
    norm = nn.BatchNorm2d(2)
    Statistics(norm)
    with pytest.raises(ValueError, match=r"expected 4D input \(got 2D input\)"):
        norm(torch.ones(2, 2))
