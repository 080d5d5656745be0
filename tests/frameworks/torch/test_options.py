from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from frameworks.torch.alone import AloneEngine
from frameworks.torch.pair import Recording, once_on_two_ranks
from orca import Estimator
from orca.callbacks import MainCallback
from orca.errors import ArgumentError, DataError, WorkerFailed
from orca.estimators.torch import TorchEstimator
from orca.frameworks.torch.operator import TrainingOperator
from orca.frameworks.torch.options import Options, clipping_of
from orca.frameworks.torch.sync import Clipping

ROWS, BATCH = 21, 5  # the last step has one row: a rank of two has none
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = X.sum(axis=1, keepdims=True) + 0.5
CLASSES = (X[:, 0] > 0).astype(np.int64)
WEIGHTS = np.random.default_rng(1).random(ROWS) * 3
WEIGHTS[5:8] = 0.0  # all that one rank of two has in the second step


class Alone(TorchEstimator):
    """An Estimator whose one rank runs in this process."""

    engine = AloneEngine()  # type: ignore[assignment]


def net(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def classifier(config: dict[str, Any]) -> nn.Module:
    return nn.Linear(3, 2).double()


def single(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.05), momentum=0.5)


def estimator(kind: type[Estimator] = Alone, **options: Any) -> Estimator:
    given = {"model": net, "optimizer": sgd, "loss": nn.MSELoss(), "backend": "local", "seed": 3, "use_tqdm": False}
    return kind.from_torch(**{**given, **options})


def fit(made: Estimator, epochs: int = 2, **options: Any) -> list[Any]:
    return made.fit(**{"data": (X, Y), "epochs": epochs, "batch_size": BATCH, "shuffle": False, **options})


def same_weights(one: Estimator, other: Estimator) -> bool:
    models = (made.get_state_dict()["models"][0] for made in (one, other))
    return all(torch.equal(*pair) for pair in zip(*(model.values() for model in models), strict=True))


# What is refused


@pytest.mark.parametrize(
    ("options", "sync", "message"),
    [
        ({"scheduler": "cosine"}, "replicated", r"scheduler_creator must be a function .*scheduler; got str"),
        ({"step_freq": "day"}, "replicated", "scheduler_step_freq must be 'batch', 'epoch' or 'manual'; got 'day'"),
        ({"precision": "int8"}, "replicated", "precision must be 'bf16', 'fp16' or None; got 'int8'"),
        ({"accumulate": 0}, "replicated", "accumulate must be a positive whole number of pieces; got 0"),
        ({"accumulate": True}, "replicated", "accumulate must be a positive whole number of pieces; got True"),
        ({"accumulate": 2.0}, "replicated", "accumulate must be a positive whole number of pieces; got 2.0"),
        ({"ema": 1.0}, "replicated", "ema must be a decay between 0 and 1, such as 0.999; got 1.0"),
        ({"ema": True}, "replicated", "ema must be a decay between 0 and 1, such as 0.999; got True"),
        ({"precision": "fp16"}, "sharded", r"precision='fp16' and backend='bigdl' \(precision='bf16' does\) do not go"),
        ({"precision": "fp16"}, "fully sharded", r"precision='fp16' and shard_model \(precision='bf16' does\) do not"),
        ({"accumulate": 2, "sync_batchnorm": True}, "replicated", "accumulate and sync_batchnorm do not go together"),
        ({"ema": 0.9}, "fully sharded", "ema and shard_model do not go together yet. Leave one of them out"),
        ({"unused": True}, "fully sharded", "find_unused_parameters and shard_model do not go together yet"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], sync: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Options(**options).check(sync)


def test_what_goes_together_is_taken() -> None:
    Options().check("replicated")
    Options(precision="bf16", ema=0.9, accumulate=3, step_freq=None).check("sharded")
    Options(precision="fp16", sync_batchnorm=True).check("replicated")
    Options(precision="bf16", accumulate=2).check("fully sharded")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"accumulate": 2}, "accumulate"),
        ({"clipping": Clipping(norm=1.0)}, "gradient clipping"),
        ({"clipping": Clipping((-1.0, 1.0))}, "gradient clipping"),
        ({"precision": "fp16"}, "precision='fp16'"),
        ({"ema": 0.9}, "ema"),
        ({"sync_batchnorm": True}, "sync_batchnorm"),
    ],
)
def test_what_belongs_into_an_update_is_refused_where_the_user_updates(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Options(**options).check_hands_on("the operator Mine", "replicated")
    said = f"the operator Mine does the backward pass and the update itself, where {name} cannot be brought in."
    assert str(caught.value) == f"{said} Do it there, or leave {name} out."
    Options(precision="bf16", deterministic=True, compiled=True, unused=True).check_hands_on(
        "the operator Mine", "replicated"
    )


class Trains(TrainingOperator):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().train_batch(batch, batch_info)


class Validates(TrainingOperator):
    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().validate_batch(batch, batch_info)


class Backwards(MainCallback):
    def on_iter_backward(self, runner: Any) -> None:
        super().on_iter_backward(runner)


def test_operators_and_callbacks_that_update_are_named_with_what_they_exclude() -> None:
    with pytest.raises(ArgumentError, match="^the operator Trains does the backward pass .* accumulate"):
        estimator(training_operator_cls=Trains, accumulate=2)
    estimator(training_operator_cls=Validates, accumulate=2, ema=0.9, clip_norm=1.0)
    with pytest.raises(ArgumentError, match="^the callback Backwards does the backward pass .* ema"):
        fit(estimator(ema=0.9), callbacks=[Backwards()])


def test_clipping_that_an_operator_excludes_is_refused_when_it_is_set() -> None:
    made = estimator(training_operator_cls=Trains)
    with pytest.raises(ArgumentError, match="^the operator Trains does the backward pass .* gradient clipping"):
        made.set_l2_norm_gradient_clipping(1.0)
    with pytest.raises(ArgumentError, match="^the operator Trains does the backward pass .* gradient clipping"):
        made.set_constant_gradient_clipping(-1.0, 1.0)
    made.clear_gradient_clipping()


@pytest.mark.parametrize(
    ("norm", "value", "message"),
    [
        (None, -1, r"clip_value must be a positive number or \(low, high\) with low < high; got -1"),
        (None, 0, r"clip_value must be a positive number or \(low, high\) with low < high; got 0"),
        (None, (1, 0), r"clip_value must be a positive number or \(low, high\) with low < high; got \(1, 0\)"),
        (None, (1, 2, 3), r"clip_value must be a positive number or \(low, high\) .*; got \(1, 2, 3\)"),
        (None, ("a", "b"), r"clip_value must be a positive number or \(low, high\) .*; got \('a', 'b'\)"),
        (None, float("nan"), r"clip_value must be a positive number or \(low, high\) .*; got nan"),
        (None, True, r"clip_value must be a positive number or \(low, high\) .*; got True"),
        (None, "0.1", r"clip_value must be a positive number or \(low, high\) .*; got '0.1'"),
        (None, object, r"clip_value must be a positive number or \(low, high\) .*; got <class 'object'>"),
        (0, None, "clip_norm must be a positive number; got 0"),
        (-1.0, None, "clip_norm must be a positive number; got -1.0"),
        (float("inf"), None, "clip_norm must be a positive number; got inf"),
        (True, None, "clip_norm must be a positive number; got True"),
        ("1", None, "clip_norm must be a positive number; got '1'"),
    ],
)
def test_wrong_bounds_of_gradients_are_named(norm: Any, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        clipping_of(norm, value)


def test_bounds_of_gradients_come_in_several_forms() -> None:
    assert clipping_of(None, None) == Clipping() and not clipping_of(None, None)
    assert clipping_of(2, None) == Clipping(norm=2.0)
    assert clipping_of(None, 0.5) == Clipping((-0.5, 0.5))
    assert clipping_of(None, [0.0, 1]) == Clipping((0.0, 1))
    assert clipping_of(np.float32(2.0), np.float64(0.5)) == Clipping((-0.5, 0.5), 2.0)


# Schedulers


def plateau(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def halving(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def test_a_scheduler_that_watches_a_number_gets_the_validation_loss() -> None:
    made = estimator(scheduler_creator=plateau, scheduler_step_freq="epoch")
    lines = fit(made, 4, validation_data=(X, -Y))  # learning makes it worse
    watched = [line["val_loss"] for line in lines]
    assert watched == sorted(watched)
    (kept,) = made.get_state_dict()["schedulers"]
    assert kept["best"] == pytest.approx(watched[0], rel=1e-12)
    assert made.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"] == 0.05 * 0.5**3
    bare = estimator(scheduler_creator=plateau, scheduler_step_freq="epoch")
    lines = fit(bare, 2)
    assert bare.get_state_dict()["schedulers"][0]["best"] == pytest.approx(
        min(line["train_loss"] for line in lines), rel=1e-12
    )


@pytest.mark.parametrize(("freq", "steps"), [("batch", 10), ("epoch", 2), ("manual", 0), (None, 0)])
def test_a_scheduler_steps_when_it_is_told(freq: str | None, steps: int) -> None:
    made = estimator(scheduler_creator=halving, scheduler_step_freq=freq)
    fit(made, 2)  # of 5 steps each
    state = made.get_state_dict()
    assert state["schedulers"][0]["last_epoch"] == steps
    assert state["optimizers"][0]["param_groups"][0]["lr"] == pytest.approx(0.05 * 0.5**steps)
    # What the optimizer was given at each step is in the trace.
    rates = np.concatenate([trace.rates for trace in made.history.traces if trace])
    each = {"batch": np.arange(10), "epoch": np.repeat([0, 1], 5)}.get(str(freq), np.zeros(10))
    np.testing.assert_allclose(rates, 0.05 * 0.5**each, rtol=1e-12)


@pytest.mark.parametrize("way", ["the same", "folder", "file.pt", "state dict"])
@pytest.mark.parametrize("freq", ["epoch"])
def test_a_scheduler_goes_on_where_it_was(way: str, freq: str, tmp_path: Path) -> None:
    options = {"scheduler_creator": halving, "scheduler_step_freq": freq}
    whole, first, second = (estimator(**options) for _ in range(3))
    long = fit(whole, 3)
    fit(first, 1)
    if way == "the same":
        second = first
    elif way == "state dict":
        second.load_state_dict(first.get_state_dict())
    else:
        second.load(first.save(str(tmp_path / way)))
    assert fit(second, 2) == long[1:]
    assert second.get_state_dict()["schedulers"] == whole.get_state_dict()["schedulers"]
    assert same_weights(whole, second)


def test_a_scheduler_that_watches_a_number_cannot_step_after_each_batch() -> None:
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau.*scheduler_step_freq='epoch'"):
        fit(estimator(scheduler_creator=plateau))


def test_a_creator_must_return_a_scheduler() -> None:
    with pytest.raises(
        ArgumentError, match="scheduler_creator must return a scheduler .*; got NoneType. Return it from"
    ):
        fit(estimator(scheduler_creator=lambda optimizer, config: None))


def test_several_schedulers_step_together() -> None:
    made = estimator(
        scheduler_creator=lambda optimizer, config: [halving(optimizer, config), halving(optimizer, config)]
    )
    fit(made, 1, max_steps=3)
    assert [kept["last_epoch"] for kept in made.get_state_dict()["schedulers"]] == [3, 3]


# Weights of rows


def distances(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss of the user's own: one number a row."""
    return (output - target).abs().reshape(-1)


WEIGHED: dict[str, dict[str, Any]] = {
    "squares": {"loss": nn.MSELoss()},
    "classes": {"loss": nn.CrossEntropyLoss(), "model": classifier},
    "own": {"loss": distances},
    "sum": {"loss": nn.MSELoss(reduction="sum"), "config": {"lr": 0.01}},
    "accumulated": {"loss": nn.MSELoss(), "accumulate": 2},
    "sharded": {"loss": nn.MSELoss(), "backend": "bigdl"},
}
UNUSED: dict[str, Any] = {"model": lambda config: Forgetful(), "find_unused_parameters": True}


class Forgetful(nn.Module):
    """Have a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 1), nn.Linear(3, 1)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def weighed_data(name: str) -> TensorDataset:
    y = CLASSES if name == "classes" else Y
    return TensorDataset(*map(torch.from_numpy, (X, y, WEIGHTS)))


@cache
def pair() -> Callable[[], dict[str, list[Any]]]:
    """Train and evaluate all cases on two ranks."""
    calls: dict[str, Callable[[], Any]] = {}
    for name, options in WEIGHED.items():
        made, data = estimator(Recording, **options), weighed_data(name)
        how = {"batch_size": BATCH, "sample_weight": True}
        calls[name] = lambda made=made, data=data, how=how: made.fit(
            data, 2, shuffle=False, validation_data=data, **how
        )
        calls[f"{name} evaluated"] = lambda made=made, data=data, how=how: made.evaluate(data, **how)
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    calls["unused"] = lambda: fit(estimator(Recording, **UNUSED), data=data)
    return once_on_two_ranks(calls)


def loss_of_rows(name: str, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the loss of each row by its definition."""
    if name == "classes":
        return -F.log_softmax(output, 1)[torch.arange(len(y)), y]
    return (output - y).abs()[:, 0] if name == "own" else (output - y).square()[:, 0]


def weighed_by_hand(name: str) -> tuple[list[float], list[float], nn.Module]:
    """Train a plain loop on the weighted mean (or sum) of each step; return its losses, a row, and those after."""
    torch.manual_seed(3)
    model = WEIGHED[name].get("model", net)({})
    optimizer = sgd(model, WEIGHED[name].get("config", {}))
    x, y, w = weighed_data(name).tensors
    lines, after = [], []
    for _ in range(2):
        total = mass = 0.0
        for at in range(0, ROWS, BATCH):
            cut = slice(at, at + BATCH)
            each = loss_of_rows(name, model(x[cut]), y[cut]) * w[cut]
            loss = each.sum() if name == "sum" else each.sum() / w[cut].sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(each.detach().sum())
            mass += len(each) if name == "sum" else float(w[cut].sum())
        lines.append(total / mass)
        with torch.no_grad():
            each = loss_of_rows(name, model(x), y) * w
        after.append(float(each.sum()) / (ROWS if name == "sum" else float(w.sum())))
    return lines, after, model


@pytest.mark.parametrize("name", WEIGHED)
def test_rows_count_by_their_weights_on_uneven_ranks_as_in_one_process(name: str) -> None:
    lines, after, model = weighed_by_hand(name)
    history, state = pair()()[name][0]
    assert [line["train_loss"] for line in history.epochs] == pytest.approx(lines, rel=1e-9)
    assert [line["val_loss"] for line in history.epochs] == pytest.approx(after, rel=1e-9)
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(state.payload["models"][0][key], value, 1e-9, 1e-9)


@pytest.mark.parametrize("name", WEIGHED)
def test_an_evaluation_weighs_rows_too(name: str) -> None:
    torch.manual_seed(3)
    model = WEIGHED[name].get("model", net)({})
    x, y, w = weighed_data(name).tensors
    with torch.no_grad():
        each = loss_of_rows(name, model(x), y) * w
    expected = float(each.sum()) / (ROWS if name == "sum" else float(w.sum()))
    stats = pair()()[f"{name} evaluated"][0][0]
    assert stats["val_loss"] == pytest.approx(expected, rel=1e-9)
    assert stats["num_samples"] == ROWS


def test_weights_come_as_a_column_or_beside_the_labels() -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": list(X), "y": Y[:, 0], "w": WEIGHTS})
    results = [
        fit(estimator(), data=(X, Y, WEIGHTS), sample_weight=True),
        fit(estimator(), data={"x": X, "y": Y, "weights": WEIGHTS}, sample_weight=True),
        fit(estimator(), data=frame, feature_cols=["x"], label_cols=["y"], sample_weight="w"),
        fit(estimator(), data=weighed_data("squares"), sample_weight=True),
    ]
    assert [[line["train_loss"] for line in lines] for lines in results] == [
        pytest.approx(weighed_by_hand("squares")[0])
    ] * 4
    alike = fit(estimator(), data=(X, Y, np.full(ROWS, 7.0)), sample_weight=True)
    assert [line["train_loss"] for line in alike] == pytest.approx([line["train_loss"] for line in fit(estimator())])


def test_wrong_weights_are_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"sample_weight must be the name of a column, or True .*; got ndarray. Put"
    ):
        fit(estimator(), sample_weight=WEIGHTS)
    with pytest.raises(ArgumentError, match=r"sample_weight must be the name of a column.*; got list"):
        estimator().evaluate((X, Y), sample_weight=[1.0] * ROWS)
    with pytest.raises(DataError, match=r"must be \(x, y, weights\) or .*; got a tuple of 2"):
        fit(estimator(), sample_weight=True)
    with pytest.raises(DataError, match="weights must be finite and not negative; got -1.0"):
        fit(estimator(), data=(X, Y, -np.ones(ROWS)), sample_weight=True)


def test_a_loss_that_gives_one_number_cannot_weigh_rows() -> None:
    message = (
        r"sample weights need the loss of each row, but the loss gave a tensor of shape \(\) for 5 rows. Use a torch"
    )
    with pytest.raises(ArgumentError, match=message):
        fit(estimator(loss=F.mse_loss), data=(X, Y, WEIGHTS), sample_weight=True)


class Weighs(MainCallback):
    """Compute the loss in the user's words, which know of no weights."""

    def on_iter_forward(self, runner: Any) -> None:
        runner.forward()


def test_weights_are_refused_where_the_user_computes_the_loss() -> None:
    for made, callbacks in ((estimator(), [Weighs()]), (estimator(training_operator_cls=Trains), [])):
        with pytest.raises(ArgumentError, match="sample weights cannot reach a loss of your own. Weigh the rows there"):
            fit(made, data=(X, Y, WEIGHTS), sample_weight=True, callbacks=callbacks)


# Precision


@pytest.mark.in_rank
def test_half_precision_with_a_scaler_trains_and_keeps_the_scaler(tmp_path: Path) -> None:
    full, half, once = (estimator(model=single, precision=precision) for precision in (None, "fp16", "fp16"))
    lines, results = fit(full, 3), fit(half, 2)
    first = half.get_state_dict()["scaler"]
    assert first["_growth_tracker"] > 0
    other = estimator(model=single, precision="fp16").load(half.save(str(tmp_path / "model")))
    assert other.get_state_dict()["scaler"] == first
    results += fit(half, 1)
    assert fit(other, 1) == results[2:]
    assert results == fit(once, 3)
    assert half.get_state_dict()["scaler"] == once.get_state_dict()["scaler"] != first
    assert results[2]["train_loss"] < 0.3 * results[0]["train_loss"]  # some steps are skipped, until the scale fits
    assert results != lines
    assert {value.dtype for value in half.get_state_dict()["models"][0].values()} == {torch.float32}


@pytest.mark.in_rank
@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.HuberLoss(), lambda output, target: (output - target).abs().mean()])
def test_targets_lose_no_digits_to_outputs_of_half_precision(loss: Any) -> None:
    x, y = X.astype(np.float32), (Y * 30 + 1001).astype(np.float32)  # bfloat16 has eight bits: 1000 is 1001
    made = estimator(model=single, loss=loss, precision="bf16", metrics=["mae"])
    lines = fit(made, 2, data=(x, y))
    torch.manual_seed(3)
    plain = single({})
    stepper = sgd(plain, {})
    for _ in range(2):
        total = 0.0
        for at in range(0, ROWS, BATCH):
            stepper.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = plain(torch.from_numpy(x[at : at + BATCH]))
                value = loss(output.float(), torch.from_numpy(y[at : at + BATCH]))
            value.backward()
            stepper.step()
            total += value.item() * len(x[at : at + BATCH])
    assert lines[-1]["train_loss"] == pytest.approx(total / ROWS, rel=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        error = (plain(torch.from_numpy(x)).float() - torch.from_numpy(y)).abs().mean()
    assert made.evaluate((x, y), batch_size=ROWS)["mae"] == pytest.approx(error.item(), rel=1e-6)


@pytest.mark.in_rank
def test_answers_in_half_precision_come_in_single_precision() -> None:
    made = estimator(model=single)
    fit(made)
    exact, rough = made.predict(X), made.predict(X, precision="bf16")
    assert rough.dtype == exact.dtype == np.float32
    np.testing.assert_allclose(rough, exact, rtol=0.05, atol=0.05)
    assert not np.array_equal(rough, exact)
    assert np.array_equal(made.predict(X), exact)  # only where it was asked for
    with pytest.raises(ArgumentError, match="precision must be 'bf16', 'fp16' or None; got 'int4'"):
        made.predict(X, precision="int4")
    trained = estimator(model=single, precision="bf16")
    fit(trained)
    assert trained.predict(X).dtype == np.float32


# Modes of torch


class Asks(nn.Linear):
    """Remember whether torch was deterministic."""

    def __init__(self) -> None:
        super().__init__(3, 1, dtype=torch.float64)
        self.register_buffer("deterministic", torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.deterministic.fill_(float(torch.are_deterministic_algorithms_enabled()))
        return super().forward(x)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_deterministic_mode_is_put_back_afterwards(before: bool, asked: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        made = estimator(model=lambda config: Asks(), deterministic=asked)
        fit(made)
        assert float(made.get_state_dict()["models"][0]["deterministic"]) == (before or asked)
        made.evaluate((X, Y))
        assert torch.are_deterministic_algorithms_enabled() is before
        with pytest.raises(Exception, match="the loss became nan"):
            fit(made, data=(X * np.nan, Y))
        assert torch.are_deterministic_algorithms_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_model_that_is_compiled_by_another_backend_trains_alike() -> None:
    plain, compiled = estimator(), estimator(compile={"backend": "aot_eager"})
    for one, other in zip(fit(plain), fit(compiled), strict=True):
        assert other == pytest.approx(one, rel=1e-9)
    np.testing.assert_allclose(compiled.predict(X), plain.predict(X), rtol=1e-9)
    assert set(compiled.get_state_dict()["models"][0]) == set(plain.get_state_dict()["models"][0])


def test_a_model_of_torchs_own_layers_alone_is_compiled_too() -> None:
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    fit(estimator(compile={"backend": "eager"}))
    assert counters["stats"]["unique_graphs"] > before


@pytest.mark.full
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch.compile needs a C++ compiler")
def test_a_compiled_model_trains_like_one_that_is_not() -> None:
    plain, compiled = estimator(), estimator(compile=True)
    for one, other in zip(fit(plain), fit(compiled), strict=True):
        assert other == pytest.approx(one, rel=1e-9)
    np.testing.assert_allclose(compiled.evaluate((X, Y))["val_loss"], plain.evaluate((X, Y))["val_loss"], rtol=1e-9)


# Unused parameters


def test_a_layer_may_stay_unused_where_it_is_told() -> None:
    history, state = pair()()["unused"][0]
    alone = estimator(**UNUSED)
    lines = fit(alone, data=TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))
    for one, other in zip(history.epochs, lines, strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    kept, expected = state.payload["models"][0], alone.get_state_dict()["models"][0]
    assert torch.equal(kept["unused.weight"], expected["unused.weight"])
    np.testing.assert_allclose(kept["used.weight"], expected["used.weight"], rtol=1e-9)


def test_a_layer_that_stays_unused_is_named_with_what_to_do() -> None:
    made = estimator(Estimator, **UNUSED | {"find_unused_parameters": False}, workers_per_node=2)
    with pytest.raises(WorkerFailed, match="find_unused_parameters=True") as caught:
        fit(made)
    assert caught.value.reason.startswith("RuntimeError: Expected to have finished reduction")


# Clipping


def test_clipping_is_set_changed_and_cleared() -> None:
    def after(*calls: tuple[str, Any], **options: Any) -> list[Any]:
        made = estimator(**options)
        for name, arguments in calls:
            getattr(made, name)(*arguments)
        return fit(made)

    free, bounds, norm = after(), after(clip_value=(-0.01, 0.02)), after(clip_norm=0.05)
    assert free != bounds != norm != free
    constant, l2, clear = "set_constant_gradient_clipping", "set_l2_norm_gradient_clipping", "clear_gradient_clipping"
    assert after((constant, (-0.01, 0.02))) == bounds
    assert after((l2, (0.05,))) == norm
    assert after((constant, (-0.01, 0.02)), (l2, (0.05,))) == norm  # the last one counts
    assert after((l2, (0.05,)), (constant, (-0.01, 0.02))) == bounds
    assert after((clear, ()), clip_norm=0.05) == after((l2, (0.05,)), (clear, ())) == free


def test_wrong_bounds_are_refused_when_they_are_set() -> None:
    made = estimator()
    with pytest.raises(ArgumentError, match=r"clip_value must be .* with low < high; got \(1.0, -1.0\)"):
        made.set_constant_gradient_clipping(1.0, -1.0)
    with pytest.raises(ArgumentError, match="clip_norm must be a positive number; got 0"):
        made.set_l2_norm_gradient_clipping(0)


# The moving average


@pytest.mark.parametrize("way", ["folder", "file.pt", "state dict"])
def test_an_average_of_the_weights_answers_and_goes_on(way: str, tmp_path: Path) -> None:
    made, plain, whole = estimator(ema=0.9), estimator(), estimator(ema=0.9)
    fit(made), fit(plain), fit(whole, 3)
    assert same_weights(made, plain)
    average = net({})
    average.load_state_dict(made.get_state_dict()["averages"][0])
    with torch.no_grad():
        expected = average(torch.from_numpy(X)).numpy()
    np.testing.assert_allclose(made.predict(X), expected, rtol=1e-12)
    assert not np.allclose(made.predict(X), plain.predict(X))
    other = estimator(ema=0.9)
    if way == "state dict":
        other.load_state_dict(made.get_state_dict())
    else:
        other.load(made.save(str(tmp_path / way)))
    np.testing.assert_array_equal(other.predict(X), made.predict(X))
    assert other.evaluate((X, Y))["val_loss"] == pytest.approx(float(((expected - Y) ** 2).mean()), rel=1e-9)
    fit(other, 1)
    np.testing.assert_allclose(other.predict(X), whole.predict(X), rtol=1e-12)
