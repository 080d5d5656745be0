"""Each optim method against its formula in numpy, over 50 steps; resumed in between; on every sync."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from orca import Estimator  # noqa: E402
from orca.errors import ArgumentError, WorkerFailed  # noqa: E402
from orca.registry import BACKENDS, Backend  # noqa: E402
from orca.triggers import SeveralIteration  # noqa: E402
from orca_classic.bigdl.optimizers import (  # noqa: E402
    LBFGS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamWeightDecay,
    Ftrl,
    KerasAdam,
    OptimMethod,
    ParallelAdam,
    RMSprop,
    TorchOptim,
    schedules,
)

STEPS, SIZE = 50, 5
START = np.linspace(-1, 1, SIZE)
Update = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def gradient(x: np.ndarray, step: int) -> np.ndarray:
    """Return a gradient that changes from step to step, of a size from tiny to large."""
    return (x - 0.3) * np.logspace(-3, 1, SIZE) + 0.1 * np.sin(step + np.arange(SIZE))


# The formulas, in double precision: each returns a function (weights, gradient, steps done) -> new weights.


def sgd(lr: float, decay: float = 0.0, wd: Any = 0.0, mom: float = 0.0, damp: float = 0.0, nesterov: bool = False,
        rates: Any = 1.0) -> Update:  # fmt: skip
    memory: list[np.ndarray] = []

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        g = g + wd * x
        if mom:
            memory[:] = [g.copy() if not memory else mom * memory[0] + (1 - damp) * g]
            g = g + mom * memory[0] if nesterov else memory[0]
        return x - lr / (1 + n * decay) * rates * g

    return update


def adam(lr: float, decay: float = 0.0, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Update:
    m = v = 0.0

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal m, v
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        size = lr / (1 + n * decay) * np.sqrt(1 - b2 ** (n + 1)) / (1 - b1 ** (n + 1))
        return x - size * m / (np.sqrt(v) + eps)

    return update


def adam_weight_decay(lr: float, warmup: float, total: int, wd: float, eps: float = 1e-6) -> Update:
    m = v = 0.0

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal m, v
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        done = n / total
        rate = lr * (done / warmup if done < warmup else 1 - done)
        return x - rate * (m / (np.sqrt(v) + eps) + wd * x)

    return update


def adagrad(lr: float, decay: float, wd: float) -> Update:
    s = 0.0

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal s
        g = g + wd * x
        s = s + g * g
        return x - lr / (1 + n * decay) * g / (np.sqrt(s) + 1e-10)

    return update


def adadelta(rho: float, eps: float) -> Update:
    s = u = 0.0

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal s, u
        s = rho * s + (1 - rho) * g * g
        d = np.sqrt(u + eps) / np.sqrt(s + eps) * g
        u = rho * u + (1 - rho) * d * d
        return x - d

    return update


def adamax(lr: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-38) -> Update:
    m = u = 0.0

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal m, u
        m, u = b1 * m + (1 - b1) * g, np.maximum(b2 * u, np.abs(g) + eps)
        return x - lr / (1 - b1 ** (n + 1)) * m / u

    return update


def rmsprop(lr: float, decay: float, rho: float, eps: float = 1e-8) -> Update:
    s = 0.0

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal s
        s = rho * s + (1 - rho) * g * g
        return x - lr / (1 + n * decay) * g / (np.sqrt(s) + eps)

    return update


def ftrl(lr: float, power: float, initial: float, l1: float, l2: float, shrinkage: float) -> Update:
    n_sum, z = np.full(SIZE, initial), np.zeros(SIZE)

    def update(x: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
        nonlocal n_sum, z
        new = n_sum + g * g
        z = z + g + 2 * shrinkage * x - (new**-power - n_sum**-power) / lr * x
        n_sum = new
        return np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / (new**-power / lr + 2 * l2), 0.0)

    return update


RATES, DECAYS = np.linspace(0.5, 2, SIZE), np.linspace(0, 0.2, SIZE)
CASES: list[tuple[OptimMethod, Callable[[], Update]]] = [
    (SGD(0.05), lambda: sgd(0.05)),
    (SGD(0.05, 0.1, 0.01), lambda: sgd(0.05, 0.1, 0.01)),
    (SGD(0.05, momentum=0.9), lambda: sgd(0.05, mom=0.9, damp=0.9)),
    (SGD(0.05, momentum=0.9, dampening=0.0), lambda: sgd(0.05, mom=0.9)),
    (SGD(0.01, momentum=0.9, nesterov=True), lambda: sgd(0.01, mom=0.9, nesterov=True)),
    (SGD(0.05, momentum=0.5, learningrates=RATES), lambda: sgd(0.05, mom=0.5, damp=0.5, rates=RATES)),
    (SGD(0.05, weightdecays=DECAYS), lambda: sgd(0.05, wd=DECAYS)),
    (SGD(0.05, weightdecay=0.1, learningrates=RATES), lambda: sgd(0.05, wd=0.1, rates=RATES)),
    (Adagrad(0.1, 0.05, 0.01), lambda: adagrad(0.1, 0.05, 0.01)),
    (Adadelta(0.8, 1e-6), lambda: adadelta(0.8, 1e-6)),
    (Adam(0.02, 0.01), lambda: adam(0.02, 0.01)),
    (Adam(0.02, epsilon=0.1), lambda: adam(0.02, eps=0.1)),
    (ParallelAdam(0.02, parallel_num=4), lambda: adam(0.02)),
    (KerasAdam(0.02, 0.8, 0.99, 1e-4, 0.1), lambda: adam(0.02, 0.1, 0.8, 0.99, 1e-4)),
    (AdamWeightDecay(0.02, 0.2, 100, weight_decay=0.1), lambda: adam_weight_decay(0.02, 0.2, 100, 0.1)),
    (Adamax(), lambda: adamax(0.002)),
    (RMSprop(0.01, 0.1, 0.9), lambda: rmsprop(0.01, 0.1, 0.9)),
    (Ftrl(0.1, -0.4, 0.2, 0.05, 0.01, 0.02), lambda: ftrl(0.1, -0.4, 0.2, 0.05, 0.01, 0.02)),
]
NAMES = [f"{number}-{type(method).__name__}" for number, (method, _) in enumerate(CASES)]


def trained(method: OptimMethod, cuts: tuple[int, ...] = ()) -> Iterator[np.ndarray]:
    """Yield the weights after each step; at each cut an optimizer of a fresh process takes over, by its state alone."""
    weights = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = method.build([weights])
    for step in range(STEPS):
        if step in cuts:
            state = pickle.loads(pickle.dumps(optimizer.state_dict()))
            weights = torch.nn.Parameter(weights.detach().clone())
            optimizer = pickle.loads(pickle.dumps(method)).build([weights])
            optimizer.load_state_dict(state)
        weights.grad = torch.from_numpy(gradient(weights.detach().numpy(), step))
        optimizer.step()
        yield weights.detach().numpy().copy()


@pytest.mark.parametrize(("method", "formula"), CASES, ids=NAMES)
def test_method_follows_its_formula_and_resumes_in_between(method: OptimMethod, formula: Callable[[], Update]) -> None:
    update, x = formula(), START
    for step, (whole, resumed) in enumerate(zip(trained(method), trained(method, cuts=(1, 23)), strict=True)):
        x = update(x, gradient(x, step), step)
        np.testing.assert_allclose(whole, x, rtol=1e-6, atol=1e-9, err_msg=f"step {step}")
        np.testing.assert_array_equal(whole, resumed)
    assert np.abs(x - START).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        (Adam(0.02, 0.01), lambda: adam(0.02, 0.01)),
        (KerasAdam(0.02, decay=0.01), lambda: adam(0.02, 0.01)),
        (AdamWeightDecay(0.02, 0.2, 100, weight_decay=0.0), lambda: adam_weight_decay(0.02, 0.2, 100, 0.0)),
        (Adamax(), lambda: adamax(0.002)),
    ],
    ids=["adam", "keras", "bert", "adamax"],
)
def test_weight_whose_gradients_begin_late_has_the_steps_of_the_others(
    method: OptimMethod, formula: Callable[[], Update]
) -> None:
    usual, late = (torch.nn.Parameter(torch.tensor(START, dtype=torch.float64)) for _ in range(2))
    optimizer, update, x = method.build([usual, late]), formula(), START
    for step in range(STEPS):
        usual.grad = torch.ones(SIZE, dtype=torch.float64)
        grad = gradient(x, step) if step >= STEPS // 2 else np.zeros(SIZE)
        late.grad = torch.from_numpy(grad) if step >= STEPS // 2 else None
        x = update(x, grad, step)
        optimizer.step()
    np.testing.assert_allclose(late.detach().numpy(), x, rtol=1e-6, atol=1e-9)


def test_lbfgs_takes_the_steps_of_the_two_loop_recursion() -> None:
    scale, goal = np.logspace(0, 1, SIZE), np.linspace(1, 2, SIZE)
    weights = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = LBFGS(max_iter=1, learningrate=0.5, ncorrection=3, tolfun=0.0, tolx=0.0).build([weights])

    def closure() -> float:
        loss = (torch.from_numpy(scale) * (weights - torch.from_numpy(goal)) ** 2).sum() / 2
        weights.grad = None
        loss.backward()
        return float(loss.detach())

    x, pairs, last = START, [], None
    for step in range(STEPS):
        g = scale * (x - goal)
        if last is not None:
            y, s = g - last[1], x - last[0]
            pairs = [*pairs, (s, y)][-3:] if y @ s > 1e-10 else pairs
        q, backwards = -g, []
        for s, y in reversed(pairs):
            a = (s @ q) / (y @ s)
            backwards.append(a)
            q = q - a * y
        if pairs:
            s, y = pairs[-1]
            q = q * ((y @ s) / (y @ y))
        for (s, y), a in zip(pairs, reversed(backwards), strict=True):
            q = q + s * (a - (y @ q) / (y @ s))
        last = x, g
        x = x + (min(1.0, 1 / np.abs(g).sum()) if step == 0 else 1.0) * 0.5 * q
        optimizer.step(closure)
        np.testing.assert_allclose(weights.detach().numpy(), x, rtol=1e-5, atol=1e-8, err_msg=f"step {step}")
        if np.abs(g).max() < 1e-7:
            break
    assert step > 5
    np.testing.assert_allclose(x, goal, atol=1e-6)


def test_rates_of_groups_have_the_schedule_of_their_own_base() -> None:
    first, second = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = SGD(0.1, learningrate_decay=1.0).build([{"params": [first]}, {"params": [second], "lr": 0.4}])
    first.grad = second.grad = torch.ones(1)
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.2]


def test_rate_that_nothing_changes_is_left_to_others() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = SGD(0.1).build([weight])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    weight.grad = torch.ones(1)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(0.1, nesterov=True), "needs a momentum above 0 and no dampening"),
        (lambda: SGD(0.1, weightdecay=0.1, weightdecays=[0.1]), "weightdecay and weightdecays do not go together"),
        (lambda: SGD(0.1, learningrates=[1.0]).build([torch.nn.Parameter(torch.ones(2))]), "of the model, 2; got 1"),
        (lambda: LBFGS(linesearch="lswolfe"), "must be 'strong_wolfe' or None"),
        (lambda: AdamWeightDecay(schedule="cosine"), "must be 'linear'; got 'cosine'"),
        (lambda: OptimMethod.load("/no/such/method"), "there is no optim method at /no/such/method"),
    ],
)
def test_wrong_arguments_are_refused_in_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()


def test_saved_method_comes_back_with_its_schedule(tmp_path: Path) -> None:
    schedule = schedules.SequentialSchedule(5).add(schedules.Warmup(0.1), 3).add(schedules.MultiStep([2, 4], 0.5), 9)
    for number, method in enumerate([SGD(0.2, momentum=0.5, learningrate_schedule=schedule), Adam(0.3), LBFGS()]):
        path = str(tmp_path / f"method{number}")
        method.save(path)
        assert OptimMethod.load(path) == method
        with pytest.raises(ArgumentError, match="there is a file at .* already"):
            method.save(path)


X = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)  # two ranks hold unequal shares
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32) + 0.1)[:, None]


@pytest.mark.parametrize("sync", ["replicated", "sharded", "fully sharded"])
@pytest.mark.parametrize(
    "method",
    [
        SGD(0.1, momentum=0.5, learningrate_schedule=schedules.Plateau("Loss", 0.5, 1, epsilon=10.0)),
        SGD(0.1, learningrates=[1.0, 2.0, 0.5, 1.0]),
        Adam(0.05, 0.1),
        Ftrl(0.1),
        AdamWeightDecay(0.05),
    ],
    ids=["plateau", "rates", "adam", "ftrl", "bert"],
)
def test_estimator_trains_with_a_method_as_a_plain_loop_does(
    method: OptimMethod, sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BACKENDS, "local", Backend("local", sync))
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    est = Estimator.from_torch(
        model=model, optimizer=method, loss=torch.nn.MSELoss(), backend="local", workers_per_node=2
    )
    # Two fits: the second one begins with the state that the first one left.
    lines = est.fit((X, Y), epochs=3, batch_size=23) + est.fit((X, Y), epochs=3, batch_size=23)

    alone = torch.nn.Linear(3, 1)
    alone.load_state_dict(model.state_dict())
    optimizer, losses, rates = method(alone), [], []
    for _ in lines:
        loss = torch.nn.functional.mse_loss(alone(torch.from_numpy(X)), torch.from_numpy(Y))
        optimizer.zero_grad()
        loss.backward()
        rates.append(optimizer.param_groups[0].get("rate", optimizer.param_groups[0]["lr"]))
        optimizer.step()
        losses.append(float(loss.detach()))
        optimizer.end_epoch(losses[-1])
    np.testing.assert_allclose([line["train_loss"] for line in lines], losses, rtol=1e-4)
    np.testing.assert_allclose(np.concatenate([trace.rates for trace in est.history.traces]), rates, rtol=1e-6)
    for name, value in est.get_model().state_dict().items():
        np.testing.assert_allclose(value, alone.state_dict()[name], rtol=1e-4, atol=1e-6)


def test_method_that_must_see_whole_weights_is_refused_where_none_is_whole() -> None:
    est = Estimator.from_torch(
        model=torch.nn.Linear(3, 1), optimizer=LBFGS(), loss=torch.nn.MSELoss(), backend="local", shard_model=True
    )
    with pytest.raises(WorkerFailed, match="fully sharded training cannot use LBFGS: it must see whole weights"):
        est.fit((X, Y), epochs=1)


def test_epochs_without_a_validation_have_no_score() -> None:
    model = torch.nn.Linear(3, 1)
    plateau = SGD(1e-6, learningrate_schedule=schedules.Plateau("score", 0.5, 1, "min", epsilon=1.0))
    reduced = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD(model.parameters(), lr=1e-6), factor=0.5, patience=0, threshold=0.5, eps=0.0
    )
    given = {"data": (X, Y), "batch_size": 23, "validation_data": (X, Y), "validation_trigger": SeveralIteration(2)}
    for method, rates in (
        (plateau, [1, 1, 1, 1, 1, 1, 0.5, 0.5]),  # the scores of epochs 2, 4 and 6; one is borne
        (TorchOptim.from_pytorch(reduced, "EpochDecayByScore"), [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]),
    ):
        est = Estimator.from_torch(
            model=model, optimizer=method, loss=torch.nn.MSELoss(), backend="local", metrics="mae"
        )
        lines = est.fit(epochs=8, **given)
        assert [line["epoch"] for line in lines if "val_loss" in line] == [2, 4, 6, 8]
        np.testing.assert_allclose(np.concatenate([t.rates for t in est.history.traces]), np.multiply(rates, 1e-6))


def test_plateau_watches_the_score_of_the_validation() -> None:
    model = torch.nn.Linear(3, 1)
    method = SGD(1e-6, learningrate_schedule=schedules.Plateau("score", 0.5, 1, "min", epsilon=1.0))
    est = Estimator.from_torch(model=model, optimizer=method, loss=torch.nn.MSELoss(), backend="local", metrics="mae")
    with pytest.raises(WorkerFailed, match="needs that number of every epoch, and this one has none"):
        est.fit((X, Y), epochs=1)
    est.fit((X, Y), epochs=5, batch_size=23, validation_data=(X, Y))
    rates = np.concatenate([trace.rates for trace in est.history.traces])
    np.testing.assert_allclose(rates, [1e-6, 1e-6, 1e-6, 5e-7, 2.5e-7])


def test_two_ways_to_change_the_rate_are_refused_together() -> None:
    with pytest.raises(ArgumentError, match="SGD changes the learning rate by itself, and so would scheduler_creator"):
        Estimator.from_torch(
            model=torch.nn.Linear(3, 1),
            optimizer=SGD(0.1, 0.1),
            loss=torch.nn.MSELoss(),
            scheduler_creator=lambda optimizer, config: None,
        )


def test_rate_that_a_method_does_not_have_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert Adadelta().with_rate(0.1) == Adadelta()
    assert Adamax().with_rate(0.1, decay=0.2) == Adamax(learningrate=0.1)
    assert "Adadelta has no learningrate: 0.1 is ignored." in caplog.text
    assert "Adamax has no learningrate_decay: 0.2 is ignored." in caplog.text
