"""TorchOptim: groups, state and schedulers of torch optimizers, kept where they go."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler as schedulers  # noqa: E402

from orca import Estimator  # noqa: E402
from orca.errors import ArgumentError  # noqa: E402
from orca_classic.bigdl.optimizers import TorchOptim  # noqa: E402

X, Y = torch.arange(12.0).reshape(6, 2) / 12, torch.arange(6.0)[:, None] / 6


def net_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(2, 1)


def step(net: nn.Module, optimizer: Any) -> float:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(X), Y)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_groups_and_state_follow_to_another_copy_of_the_model() -> None:
    net = net_of()
    adam = torch.optim.Adam([{"params": [net.weight], "betas": (0.5, 0.9)}, {"params": [net.bias], "lr": 0.5}], lr=0.1)
    for _ in range(3):
        step(net, adam)
    copy = pickle.loads(pickle.dumps(net))
    built = TorchOptim.from_pytorch(adam)(copy)
    assert built is not adam and [group["lr"] for group in built.param_groups] == [0.1, 0.5]
    for _ in range(3):
        assert step(copy, built) == step(net, adam)


MAKERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("EpochDecay", lambda optimizer: schedulers.StepLR(optimizer, 2, 0.1)),
    ("IterationDecay", lambda optimizer: schedulers.ExponentialLR(optimizer, 0.9)),
    ("IterationDecay", lambda optimizer: schedulers.LambdaLR(optimizer, lambda count: 1 / (count + 1))),
    (
        "EpochDecay",
        lambda optimizer: schedulers.SequentialLR(
            optimizer, [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.5)], [2]
        ),
    ),
    ("EpochDecayByScore", lambda optimizer: schedulers.ReduceLROnPlateau(optimizer, patience=0, threshold=10.0)),
    ("EpochDecay", lambda optimizer: schedulers.CyclicLR(optimizer, 0.1, 0.4, 2, mode="exp_range", gamma=0.9)),
]


@pytest.mark.parametrize(("decay", "make"), MAKERS, ids=[str(number) for number in range(len(MAKERS))])
def test_scheduler_steps_when_it_shall_and_resumes(decay: str, make: Callable[[Any], Any]) -> None:
    net, alone = net_of(), net_of()
    method = TorchOptim.from_pytorch(make(torch.optim.SGD(net.parameters(), lr=0.4)), decay)
    optimizer = method(net)
    truth = torch.optim.SGD(alone.parameters(), lr=0.4)
    scheduler = make(truth)
    for epoch in range(4):
        for _ in range(2):
            assert step(net, optimizer) == step(alone, truth)
            if decay == "IterationDecay":
                scheduler.step()
        loss = step(alone, truth)
        assert step(net, optimizer) == loss
        if decay == "IterationDecay":
            scheduler.step()
        optimizer.end_epoch(loss)
        if decay != "IterationDecay":
            scheduler.step(*([loss] if decay == "EpochDecayByScore" else []))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(truth.param_groups[0]["lr"]), epoch
        if epoch == 1:  # another process takes over
            state = pickle.loads(pickle.dumps(optimizer.state_dict()))
            fresh = net_of()
            fresh.load_state_dict(net.state_dict())
            other = TorchOptim.from_pytorch(make(torch.optim.SGD(fresh.parameters(), lr=0.4)), decay)
            net, optimizer = fresh, other(fresh)
            optimizer.load_state_dict(state)
            optimizer.load_state_dict(optimizer.state_dict())  # that of a checkpoint before the scheduler steps


def test_rate_is_changed_where_it_was_the_default() -> None:
    net = net_of()
    sgd = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.7}], lr=0.1)
    changed = TorchOptim.from_pytorch(schedulers.ExponentialLR(sgd, 0.5)).with_rate(1.0)
    optimizer = changed(net)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.7]
    step(net, optimizer)
    optimizer.end_epoch(0.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.35]
    assert sgd.param_groups[0]["lr"] == 0.1
    decayed = TorchOptim.from_pytorch(torch.optim.SGD(net.parameters(), lr=0.1)).with_rate(None, 1.0)(net)
    step(net, decayed)
    assert decayed.param_groups[0]["lr"] == 0.05


def test_rate_that_was_set_reaches_the_parts_of_a_scheduler() -> None:
    net = net_of()

    def rates(rate: float, new: float | None = None) -> list[float]:
        sgd = torch.optim.SGD(net.parameters(), lr=rate)
        parts = [schedulers.ConstantLR(sgd, 0.5, 2), schedulers.LambdaLR(sgd, lambda epoch: 0.9**epoch)]
        method = TorchOptim.from_pytorch(schedulers.SequentialLR(sgd, parts, [3]))
        optimizer, seen = method.with_rate(new)(net), []
        for _ in range(6):
            seen.append(optimizer.param_groups[0]["lr"])
            step(net, optimizer)
            optimizer.end_epoch(0.0)
        return seen

    assert rates(0.1, new=0.01) == pytest.approx(rates(0.01))


def test_users_own_optimizer_stays_as_it_was() -> None:
    net = net_of()
    adam = torch.optim.Adam(net.parameters())
    step(net, TorchOptim.from_pytorch(adam)(net))
    assert not adam.state


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, TorchOptim.from_pytorch], ids=["torch", "wrapped"])
def test_lbfgs_of_the_user_follows_to_workers(wrap: Callable[[Any], Any]) -> None:
    net, alone = net_of(), net_of()
    optimizer = wrap(torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3))
    est = Estimator.from_torch(model=net, optimizer=optimizer, loss=nn.MSELoss(), backend="local")
    est.fit((X.numpy(), Y.numpy()), epochs=2, batch_size=6)
    truth = torch.optim.LBFGS(alone.parameters(), lr=0.1, max_iter=3)

    def closure() -> Any:
        truth.zero_grad()
        loss = nn.functional.mse_loss(alone(X), Y)
        loss.backward()
        return loss

    for _ in range(2):
        truth.step(closure)
    torch.testing.assert_close(est.get_model().weight, alone.weight)


def test_estimator_trains_with_it() -> None:
    net, alone = net_of(), net_of()
    method = TorchOptim.from_pytorch(schedulers.ExponentialLR(torch.optim.SGD(net.parameters(), lr=0.2), 0.5))
    est = Estimator.from_torch(model=net, optimizer=method, loss=nn.MSELoss(), backend="local", workers_per_node=2)
    est.fit((X.numpy(), Y.numpy()), epochs=2, batch_size=6)
    est.fit((X.numpy(), Y.numpy()), epochs=1, batch_size=6)
    truth = torch.optim.SGD(alone.parameters(), lr=0.2)
    scheduler = schedulers.ExponentialLR(truth, 0.5)
    for _ in range(3):
        step(alone, truth)
        scheduler.step()
    torch.testing.assert_close(est.get_model().weight, alone.weight)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TorchOptim.from_pytorch("adam"), "wraps a torch.optim.Optimizer or a scheduler"),
        (lambda: TorchOptim.from_pytorch(sgd(), "Yearly"), "must be one of EpochDecay, IterationDecay"),
        (lambda: TorchOptim.from_pytorch(schedulers.ReduceLROnPlateau(sgd())), "decayType='EpochDecayByScore'"),
        (lambda: TorchOptim.from_pytorch(schedulers.StepLR(sgd(), 1), "EpochDecayByScore"), "decayType='EpochDecay'"),
        (lambda: TorchOptim.from_pytorch(schedulers.StepLR(sgd(), 1)).with_rate(None, 0.1), "cannot decay"),
        (lambda: TorchOptim.from_pytorch(sgd(own=0.5)).with_rate(0.01), "0.01 cannot reach .* rates of their own"),
        (lambda: TorchOptim.from_pytorch(sgd(groups=2))(nn.Linear(3, 3)), "2 parameters in 2 groups"),
        (lambda: TorchOptim.from_pytorch(sgd()).as_json(), "cannot be written as JSON"),
    ],
)
def test_wrong_arguments_are_refused_in_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()


def sgd(groups: int = 1, own: float | None = None) -> Any:
    weights = list(net_of().parameters())
    rates = {} if own is None else {"lr": own}
    many = [{"params": [w], **rates} for w in weights]
    return torch.optim.SGD(many if groups > 1 or own else weights, lr=0.1)
