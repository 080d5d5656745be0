"""Which gradients count: those that the optimizer holds, of parameters that had a part in the step."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from frameworks.torch.alone import AloneEngine, alone
from frameworks.torch.pair import BY_GLOO, Recording, once_on_two_ranks
from orca import Estimator
from orca.errors import ArgumentError
from orca.estimators.torch import TorchEstimator
from orca.frameworks.torch.sync import Replicated
from orca.monitor.heartbeat import Heartbeat

ROWS, BATCH, EPOCHS = 17, 4, 3  # the last step has one row: a rank of two has none
X = np.random.default_rng(0).normal(size=(ROWS, 3))
X[:, 0] = 0
X[[5, 6, 13], 0] = 1  # in the second step of five, and in the fourth, where one rank of two has none of them
Y = X.sum(axis=1, keepdims=True) + 0.5
DATA = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Alone(TorchEstimator):
    engine = AloneEngine()  # type: ignore[assignment]


class Parts(nn.Module):
    """A layer that is always used, one that some rows use, and one that no row uses."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(3, 1).double() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x[:, :1] > 0
        output = self.always(x)
        return output + self.sometimes(x) * chosen if chosen.any() else output


class Beside(nn.Module):
    """A layer that is trained, and a larger one beside it that gets gradients and is not."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.other = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.trained(x) + 5 * self.other(x)


def adamw(model: Any, config: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.5)


def heavy(model: Any, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.5)


def some(model: Any, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.trained.parameters(), lr=0.05, momentum=0.9)


WAYS: dict[str, dict[str, Any]] = {
    "replicated": {"backend": "local", "find_unused_parameters": True},
    "sharded": {"backend": "bigdl"},
    "fully sharded": {"backend": "local", "shard_model": True},
}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "adamw": (Parts, adamw, {}),
    "momentum": (Parts, heavy, {}),
    "pieces": (Parts, adamw, {"accumulate": 2, "clip_norm": 0.5}),
    "norm": (Beside, some, {"clip_norm": 0.5}),
    "value": (Beside, some, {"clip_value": 0.2}),
}
CASES = [
    (way, name)
    for way in WAYS
    for name in MODELS
    if way != "fully sharded" or MODELS[name][0] is Beside  # which every row uses
]


def estimator(kind: type[Estimator], way: str, name: str) -> Estimator:
    model, optimizer, options = MODELS[name]
    given = {"model": lambda config: model(), "optimizer": optimizer, "loss": nn.MSELoss(), "seed": 3}
    return kind.from_torch(**given, use_tqdm=False, **WAYS[way], **options)


def fit(made: Estimator, epochs: int = EPOCHS) -> Any:
    return made.fit(DATA, epochs, batch_size=BATCH, shuffle=False)


@cache
def plain(name: str) -> dict[str, torch.Tensor]:
    """Train in a plain loop that clips what it optimizes."""
    model, optimizer, options = MODELS[name]
    torch.manual_seed(3)
    net = model()
    stepper = optimizer(net, {})
    held = [param for group in stepper.param_groups for param in group["params"]]
    for _ in range(EPOCHS):
        for at in range(0, ROWS, BATCH):
            x, y = DATA[at : at + BATCH]
            stepper.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(held, options["clip_norm"])
            if "clip_value" in options:
                nn.utils.clip_grad_value_(held, options["clip_value"])
            stepper.step()
    return net.state_dict()


@cache
def pair() -> Callable[[], dict[str, list[Any]]]:
    """Train all cases on two ranks."""
    ways = {f"{way} {name}": (way, name) for way, name in CASES}
    ways |= {f"replicated {name}{BY_GLOO}": ("replicated", name) for name in MODELS}
    calls = {key: lambda way=way: fit(estimator(Recording, *way)) for key, way in ways.items()}
    return once_on_two_ranks(calls | dict.fromkeys(HALVES, halves))


def halves() -> Any:
    """Fit numbers of 16 bits, all of which have so few digits that each sum is exact: a step to 1, one back to -1."""
    net = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.zeros_(net.weight)
    made = Recording.from_torch(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.5), loss=nn.MSELoss(), backend="local"
    )
    x, y = torch.ones(8, 1, dtype=torch.bfloat16), torch.tensor([[1.0]] * 4 + [[-1.0]] * 4, dtype=torch.bfloat16)
    return made.fit(TensorDataset(x, y), 1, batch_size=4, shuffle=False)


HALVES = ("halves", f"halves{BY_GLOO}")


def check(weights: dict[str, torch.Tensor], name: str) -> None:
    for key, value in plain(name).items():
        torch.testing.assert_close(weights[key], value, rtol=1e-9, atol=1e-12, msg=key)


@pytest.mark.parametrize(("way", "name"), CASES)
def test_two_ranks_update_what_a_plain_loop_updates(way: str, name: str) -> None:
    _, state = pair()()[f"{way} {name}"][0]
    check(state.payload["models"][0], name)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_that_share_no_memory_update_what_a_plain_loop_updates(name: str) -> None:
    _, state = pair()()[f"replicated {name}{BY_GLOO}"][0]
    check(state.payload["models"][0], name)


@pytest.mark.parametrize("key", HALVES)
def test_gradients_of_16_bits_are_averaged(key: str) -> None:
    _, state = pair()()[key][0]
    assert state.payload["models"][0]["weight"].item() == -1.0


@pytest.mark.parametrize(("way", "name"), CASES)
def test_one_rank_updates_what_a_plain_loop_updates(way: str, name: str) -> None:
    made = estimator(Alone, way, name)
    for epochs in (1, EPOCHS - 1):  # the second goes on with a state whose parameters took different numbers of steps
        fit(made, epochs)
    check(made.get_state_dict()["models"][0], name)


def test_a_sync_goes_with_its_wrapper() -> None:
    """Else workers that are used again would keep the models, sockets and threads of all fits."""
    net = nn.Linear(3, 1)
    with alone(Heartbeat()) as world:
        assert world.sums is not None or sys.platform != "linux"
        sync = Replicated(net, torch.optim.SGD(net.parameters(), lr=0.1), world, hands_on=True)
        wrapper = weakref.ref(sync.module)
        del sync
        gc.collect()
        assert wrapper() is None


@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared so on Linux alone")
@pytest.mark.parametrize("shared", [True, False])
def test_the_time_of_averaging_is_counted_once(shared: bool) -> None:
    net, heartbeat = nn.Linear(3, 1), Heartbeat()
    with alone(heartbeat) as world:
        sums, world.sums = world.sums, world.sums if shared else None
        heartbeat.profiling = True
        sync = Replicated(net, torch.optim.SGD(net.parameters(), lr=0.1), world)
        for _ in range(20):
            sync.module(torch.ones(2, 3)).sum().backward()
        assert (heartbeat.profile["wait"] > 0) == shared
        assert (sync.communicated() > 0) != shared
        sync.close()
        world.sums = sums


def test_a_loss_scaler_cannot_follow_an_optimizer_that_asks_several_times() -> None:
    message = "LBFGS asks for loss and gradients several times a step, .* Pass precision='bf16', or another optimizer"
    net = nn.Linear(3, 1)
    given = {"loss": nn.MSELoss(), "backend": "local", "precision": "fp16"}
    with pytest.raises(ArgumentError, match=message):
        Estimator.from_torch(model=net, optimizer=torch.optim.LBFGS(net.parameters()), **given)
    made = Alone.from_torch(model=net, optimizer=lambda model, config: torch.optim.LBFGS(model.parameters()), **given)
    with pytest.raises(ArgumentError, match=message):
        made.fit((X.astype(np.float32), Y.astype(np.float32)))


def test_several_optimizers_of_one_model_are_refused_where_nobody_steps_them() -> None:
    def both(model: Any, config: Any) -> list[torch.optim.Optimizer]:
        return [some(model, config), torch.optim.SGD(model.other.parameters(), lr=0.1)]

    made = Alone.from_torch(model=lambda config: Beside(), optimizer=both, loss=nn.MSELoss(), backend="local")
    with pytest.raises(ArgumentError, match="2 optimizers need to be told when each of them steps. Pass one optimizer"):
        fit(made)
