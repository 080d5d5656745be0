from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from frameworks.torch.alone import AloneEngine
from orca.callbacks import Callback
from orca.core.draws import kept_draws
from orca.core.engine import Settings
from orca.core.learner import FitPlan
from orca.core.loop import History
from orca.core.metrics import MSE
from orca.core.resources import Inventory
from orca.core.state import OutputSpec, State
from orca.core.world import TorchWorld
from orca.errors import ArgumentError, DataError, LossNotFinite
from orca.frameworks.torch.build import build_loss, build_models, build_optimizers
from orca.frameworks.torch.learner import TorchLearner
from orca.frameworks.torch.operator import TrainingOperator
from orca.frameworks.torch.options import Options
from orca.frameworks.torch.tensors import device_of
from orca.job import EvaluateJob, FitJob, PredictJob
from orca.monitor.heartbeat import Heartbeat
from orca.testing import shards_of
from orca.triggers import SeveralIteration

X = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
Y = X.sum(axis=1) + 0.5


def linear(outputs: int = 1, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(3, outputs, dtype=dtype)


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1), momentum=0.9)


def learner_of(model: Any, loss: Any, optimizer: Any = sgd, **config: Any) -> TorchLearner:
    return TorchLearner.of(model, optimizer, loss, config, "replicated")


def fit(learner: TorchLearner, x: Any, y: Any, **options: Any) -> tuple[History, State]:
    plan = FitPlan(**{"batch_size": 4, "shuffle": False, **options})
    return AloneEngine().run(FitJob(learner, plan, (), None), shards_of([(x, y)]), Settings())[0]


def evaluate(learner: TorchLearner, x: Any, y: Any, metrics: Any = ()) -> dict[str, Any]:
    return AloneEngine().run(EvaluateJob(learner, 4, metrics, None), shards_of([(x, y)]), Settings())[0][0]


def predict(learner: TorchLearner, x: Any) -> Any:
    return PredictJob.of(learner, learner.initial_state(0), 4)(x)


def plain_torch(net: nn.Module, loss: Callable[..., torch.Tensor], x: Any, y: Any, epochs: int = 1) -> list[float]:
    """Train as a PyTorch tutorial does; return the mean loss a row of each epoch (losses here are means)."""
    optimizer, lines = sgd(net, {}), []
    for _ in range(epochs):
        total = 0.0
        for at in range(0, len(x), 4):
            optimizer.zero_grad()
            value = loss(net(x[at : at + 4]), y[at : at + 4])
            value.backward()
            optimizer.step()
            total += float(value.detach()) * len(x[at : at + 4])
        lines.append(total / len(x))
    return lines


# Building


class Net(nn.Linear):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config["width"], 1)


class Fixed(nn.Linear):
    def __init__(self, width: int = 7) -> None:
        super().__init__(width, 1)


def test_a_model_is_an_instance_a_creator_or_a_class() -> None:
    net, config = linear(), {"width": 5}
    assert build_models(net, config)[0] is net
    assert build_models(lambda config: nn.Linear(config["width"], 1), config)[0].weight.shape == (1, 5)
    assert build_models(lambda: nn.Linear(2, 1), config)[0].weight.shape == (1, 2)
    assert build_models(lambda config, width=4: nn.Linear(width, config["width"]), config)[0].weight.shape[0] == 5
    assert build_models(lambda *args: nn.Linear(args[0]["width"], 1), config)[0].weight.shape == (1, 5)
    assert build_models(Net, config)[0].weight.shape == (1, 5)
    assert build_models(Fixed, config)[0].weight.shape == (1, 7)


def test_an_optimizer_is_an_instance_or_a_creator() -> None:
    net, config = linear(), {"lr": 0.25}
    made = torch.optim.SGD(net.parameters(), lr=0.5)
    assert build_optimizers(made, [net], config)[0] is made
    for creator in (sgd, lambda model, config: sgd(model, config), lambda model, config, lr=1: sgd(model, config)):
        assert build_optimizers(creator, [net], config)[0].param_groups[0]["lr"] == 0.25
    assert build_optimizers(lambda model: sgd(model, {}), [net], config)[0].param_groups[0]["lr"] == 0.1


class Scaled(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.scale = config["scale"]

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.scale * F.mse_loss(output, target)


def test_a_loss_is_an_instance_a_class_a_function_or_a_creator() -> None:
    instance, config = nn.L1Loss(), {"scale": 3.0}
    assert build_loss(instance, config) is instance
    assert build_loss(None, config) is None
    assert isinstance(build_loss(nn.L1Loss, config), nn.L1Loss)
    assert build_loss(F.mse_loss, config) is F.mse_loss
    assert build_loss(lambda config: Scaled(config), config).scale == 3.0
    assert build_loss(Scaled, config).scale == 3.0
    mine = lambda output, target, weight=2: (output - target).abs().sum() * weight  # noqa: E731
    assert build_loss(mine, config) is mine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, None, None), "the model must be a torch.nn.Module or a function that returns one; got int"),
        ((nn.Linear(1, 1), "adam", None), r"the optimizer must be a torch.optim.Optimizer or a function .*; got str"),
        ((nn.Linear(1, 1), None, "mse"), "the loss must be a torch loss, a function .* or a creator; got str"),
    ],
)
def test_wrong_kinds_are_refused_before_anything_travels(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TorchLearner.of(*arguments, {}, "replicated")


def test_an_optimizer_instance_needs_its_model() -> None:
    net, other = linear(), linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="got a model creator. Pass the module itself, or an optimizer creator"):
        learner_of(lambda config: net, nn.MSELoss(), optimizer)
    with pytest.raises(ArgumentError, match="the optimizer has none of the model's parameters"):
        learner_of(other, nn.MSELoss(), optimizer)
    assert learner_of(net, nn.MSELoss(), optimizer).optimizer is optimizer


def test_creators_that_return_something_else_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"got dict. Return the module from model_creator\(config\)"):
        build_models(lambda config: config, {})
    with pytest.raises(ArgumentError, match=r"got NoneType. Return it from optimizer_creator\(model, config\)"):
        build_optimizers(lambda model, config: None, [linear()], {})
    with pytest.raises(ArgumentError, match="there is no model. Pass model= to from_torch, or load an entire model"):
        build_models(None, {})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((None, sgd, nn.MSELoss()), "there is no model to train"),
        ((linear(), None, nn.MSELoss()), "You must provide the optimizer for train"),
        ((linear(), sgd, None), "You must provide the loss for train"),
    ],
)
def test_what_training_needs_is_named(parts: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TorchLearner(*parts).check_trainable()


def test_the_seed_decides_the_first_weights() -> None:
    learner = learner_of(lambda config: nn.Linear(3, 1), nn.MSELoss())
    first, again, other = (learner.initial_state(seed).payload["models"][0]["weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_drawing_first_weights_leaves_the_users_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learner_of(lambda config: nn.Linear(3, 1), nn.MSELoss()).initial_state(1)
    assert torch.equal(torch.rand(3), expected)


# Training


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_trains_as_in_plain_torch_whatever_its_reduction(reduction: str) -> None:
    net = linear()
    history, state = fit(learner_of(linear(), nn.MSELoss(reduction=reduction)), X, Y, epochs=3)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)[:, None]
    if reduction == "sum":  # the sum has the gradients of the mean times the rows; statistics are means of rows
        optimizer, expected = sgd(net, {}), []
        for _ in range(3):
            total = 0.0
            for at in range(0, 10, 4):
                optimizer.zero_grad()
                loss = F.mse_loss(net(x[at : at + 4]), y[at : at + 4], reduction="sum")
                loss.backward()
                optimizer.step()
                total += float(loss.detach())
            expected.append(total / 10)
        last = float(loss.detach()) / 2
    else:
        expected = plain_torch(net, F.mse_loss, x, y, epochs=3)
        last = None
    assert [line["train_loss"] for line in history.epochs] == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(state.payload["models"][0]["weight"], net.weight, rtol=1e-5)
    if last is not None:
        assert history.epochs[-1]["last_train_loss"] == pytest.approx(last, rel=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_of_an_evaluation_is_the_mean_of_the_rows(reduction: str) -> None:
    net = linear()
    expected = F.mse_loss(net(torch.from_numpy(X))[:, 0], torch.from_numpy(Y)).item()
    stats = evaluate(learner_of(net, nn.MSELoss(reduction=reduction)), X, Y, (MSE(),))
    assert stats["val_loss"] == pytest.approx(expected, rel=1e-5)
    assert stats["MSE"] == pytest.approx(expected, rel=1e-5)
    assert stats["num_samples"] == 10


def test_labels_in_any_shape_never_broadcast() -> None:
    losses = [
        fit(learner_of(linear(), loss), X, labels, epochs=2)[0].epochs[-1]["train_loss"]
        for labels in (Y, Y[:, None], Y.astype(np.float64))
        for loss in (nn.MSELoss(), nn.MSELoss, F.mse_loss)
    ]
    expected = plain_torch(linear(), F.mse_loss, torch.from_numpy(X), torch.from_numpy(Y)[:, None], epochs=2)[-1]
    assert losses == pytest.approx([expected] * 9, rel=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64, np.uint8])
@pytest.mark.parametrize("shape", [(10,), (10, 1)])
def test_classes_may_come_as_any_numbers(dtype: Any, shape: tuple[int, ...]) -> None:
    labels = (np.arange(10) % 2).astype(dtype).reshape(shape)
    history, _ = fit(learner_of(linear(2), nn.CrossEntropyLoss()), X, labels)
    x, y = torch.from_numpy(X), torch.arange(10) % 2
    assert history.epochs[0]["train_loss"] == pytest.approx(plain_torch(linear(2), F.cross_entropy, x, y)[0], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_come_in_the_precision_of_the_model(dtype: torch.dtype) -> None:
    for features in (X, X.astype(np.float64), X.astype(np.float16)):
        learner = learner_of(linear(dtype=dtype), nn.MSELoss())
        _, state = fit(learner, features, Y)
        assert state.payload["models"][0]["weight"].dtype == dtype
        assert predict(learner, features).dtype == np.dtype(str(dtype).removeprefix("torch."))


class Sum(nn.Module):
    """Take several inputs by position, or one dict of them; whole numbers come as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, first: Any, second: torch.Tensor | None = None) -> Any:
        if isinstance(first, dict):
            first, second = first["a"], first["inner"]["b"]
        assert first.dtype == torch.float32 and second.dtype == torch.int64
        total = first.sum(dim=1) + self.weight * second
        return {"total": total, "parts": (first, second)}


def test_inputs_and_outputs_may_be_trees() -> None:
    a, b = X.astype(np.float64), np.arange(10)
    learner = learner_of(Sum(), lambda *parts: F.mse_loss(parts[0], parts[3].float()))
    for x in ((a, b), [a, b], {"a": a, "inner": {"b": b}}):
        output = predict(learner, x)
        assert output["total"] == pytest.approx(X.sum(axis=1) + b, rel=1e-5)
        assert isinstance(output["parts"], tuple)
        assert output["parts"][1].dtype == np.int64
        assert np.array_equal(output["parts"][1], b)
        _, state = fit(learner, x, Y)
        structure = ("dict", ("total", "parts"), (None, ("tuple", (), (None, None))))
        assert state.output == OutputSpec((("float32", ()), ("float32", (3,)), ("int64", ())), structure)


def test_text_is_refused_with_what_to_do() -> None:
    with pytest.raises(DataError, match="a torch model cannot take values of type .*'red'.*StringIndexer or a cast"):
        fit(learner_of(linear(), nn.MSELoss()), np.array(["red"] * 10), Y)


def test_missing_labels_are_named() -> None:
    with pytest.raises(DataError, match="there are no labels to compare the outputs with. Pass label_cols"):
        fit(learner_of(linear(), nn.MSELoss()), X, None)


# A loss that is not finite


def poisoned(rows: int = 300, at: int = 280) -> tuple[np.ndarray, np.ndarray]:
    x = np.ones((rows, 3), np.float32)
    x[at] = np.inf
    return x, np.ones(rows, np.float32)


def test_a_loss_that_is_not_finite_ends_the_fit_and_names_its_step() -> None:
    message = r"the loss became (inf|nan) at step 141 of epoch 1. Lower the learning rate.* goes on with on_nan='warn'"
    with pytest.raises(LossNotFinite, match=message):
        fit(learner_of(linear(), nn.MSELoss(), lr=1e-3), *poisoned(), batch_size=2)


def test_a_loss_that_is_not_finite_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        history, _ = fit(learner_of(linear(), nn.MSELoss(), lr=1e-3), *poisoned(at=100), batch_size=1, on_nan="warn")
    messages = [record.getMessage() for record in caplog.records if "the loss became" in record.getMessage()]
    assert len(messages) == 1
    assert "at step 101 of epoch 1" in messages[0]
    assert history.epochs[0]["num_samples"] == 300
    assert not np.isfinite(history.epochs[0]["train_loss"])


def test_a_loss_that_is_not_finite_may_be_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        history, _ = fit(learner_of(linear(), nn.MSELoss(), lr=1e-3), *poisoned(), batch_size=2, on_nan="ignore")
    assert not [record for record in caplog.records if "the loss became" in record.getMessage()]
    assert history.epochs[0]["batch_count"] == 150


# What is left of a run


def test_the_users_module_is_not_trained_in_place() -> None:
    net = linear()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    learner = learner_of(net, nn.MSELoss(), optimizer)
    _, state = fit(learner, X, Y)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert not optimizer.state
    assert not torch.equal(state.payload["models"][0]["weight"], before["weight"])
    built = learner.build(state)
    assert built is not net
    assert torch.equal(built.weight, state.payload["models"][0]["weight"])


def test_the_hook_is_called_before_the_model_is_built() -> None:
    notes: list[str] = []
    learner = TorchLearner.of(
        lambda config: notes.append("model") or linear(),
        sgd,
        nn.MSELoss(),
        {},
        "replicated",
        lambda: notes.append("hook"),
    )
    learner.join(TorchWorld(0, "127.0.0.1", [Inventory("here", [], [])], Heartbeat()), None, 0).close()
    assert notes == ["hook", "model"]


def test_a_rank_trains_on_the_gpu_that_it_has_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)  # tests run without GPUs
    gpus = [Inventory("a", [], [(0, "one"), (1, "two")])] * 2
    assert str(device_of(TorchWorld(1, "127.0.0.1", gpus, Heartbeat()))) == "cuda:1" and chosen == [1]
    with pytest.raises(ArgumentError, match="3 workers need a GPU each and see 2"):
        device_of(TorchWorld(0, "127.0.0.1", [*gpus, gpus[0]], Heartbeat()))


@pytest.mark.parametrize("part", ["model", "optimizer", "loss"])
def test_a_join_that_fails_leaves_random_state_and_deterministic_mode_as_they_were(part: str) -> None:
    def fail(config: Any, *more: Any) -> Any:
        torch.rand(3)
        raise RuntimeError(f"there is no {part}")

    parts = {"model": lambda config: linear(), "optimizer": sgd, "loss": lambda config: nn.MSELoss()} | {part: fail}
    options = TorchLearner.options_of(deterministic=True)
    learner = TorchLearner.of(*parts.values(), {}, "replicated", None, options)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with pytest.raises(RuntimeError, match=f"there is no {part}"):
        learner.join(TorchWorld(0, "127.0.0.1", [Inventory("here", [], [])], Heartbeat()), None, 7, fit=FitPlan())
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_callbacks_reach_nothing_of_a_session_that_is_closed() -> None:
    learner = learner_of(linear(), nn.MSELoss())
    session = learner.join(TorchWorld(0, "127.0.0.1", [Inventory("here", [], [])], Heartbeat()), None, 0)
    runner = session.runner
    assert isinstance(runner.model, nn.Linear)
    session.close()
    with pytest.raises(AttributeError):
        _ = runner.model


def test_another_model_takes_the_creators_along_but_not_an_optimizer_of_the_old_one() -> None:
    net, other = linear(), linear()
    kept = learner_of(net, nn.MSELoss()).with_parts(other, None)
    assert kept.model is other and kept.optimizer is sgd and isinstance(kept.loss, nn.MSELoss)
    bound = learner_of(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.1))
    assert bound.with_parts(other, None).optimizer is None
    assert bound.with_parts(None, nn.L1Loss()).optimizer is bound.optimizer


# Looking at a fit from inside


class Lively(nn.Module):
    """A model with dropout and batch normalization, one of which does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1)
        )

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.layers[3].eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + torch.rand(1)


class Looks(Callback):
    """Takes the state in the midst of each step's callbacks, where it may."""

    def __init__(self, looks: bool) -> None:
        self.looks = looks

    def before_train_epoch(self, runner: Any) -> None:
        runner.model.layers[1].eval()

    def before_train_iter(self, runner: Any) -> None:
        self._look(runner)

    def after_train_iter(self, runner: Any) -> None:
        self._look(runner)
        with torch.no_grad():
            runner.model.layers[4].bias.add_(0.01 * torch.rand(1))

    def _look(self, runner: Any) -> None:
        before = [module.training for module in runner.model.modules()]
        batch, output = runner.batch, runner.output
        if self.looks:
            assert runner.get_state_dict()["models"]
        assert [module.training for module in runner.model.modules()] == before
        assert runner.batch is batch and runner.output is output


def test_looking_at_the_state_in_mid_epoch_changes_nothing(tmp_path: Any) -> None:
    torch.manual_seed(1)
    net = Lively()
    ways: dict[str, dict[str, Any]] = {
        "plain": {"callbacks": (Looks(False),)},
        "looked at": {"callbacks": (Looks(True),)},
        "kept": {
            "callbacks": (Looks(False),),
            "checkpoint_trigger": SeveralIteration(2),
            "checkpoint_folder": str(tmp_path),
        },
    }
    states = [fit(learner_of(copy.deepcopy(net), nn.MSELoss()), X, Y, epochs=2, **way)[1] for way in ways.values()]
    for state in states[1:]:
        for name, weight in state.payload["models"][0].items():
            assert torch.equal(weight, states[0].payload["models"][0][name]), name
    assert float(states[0].payload["models"][0]["layers.3.running_mean"].abs().sum()) == 0


class Counts(TrainingOperator):
    """An operator that returns its live state."""

    def setup(self, config: dict[str, Any]) -> None:
        self.live = {"rows": [], "mean": torch.zeros(1)}

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self.live["rows"].append(len(batch[0]))
        self.live["mean"] += 1
        return super().train_batch(batch, batch_info)

    def state_dict(self) -> dict[str, Any]:
        return self.live


class Collects(Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after_train_iter(self, runner: Any) -> None:
        self.seen.append(runner.get_state_dict()["operator"])

    def after_run(self, runner: Any) -> None:
        assert [state["rows"] for state in self.seen] == [[4], [4, 4], [4, 4, 2]]
        assert [float(state["mean"]) for state in self.seen] == [1, 2, 3]


def test_a_state_does_not_change_any_more_when_training_goes_on() -> None:
    learner = TorchLearner.of(linear(), sgd, nn.MSELoss(), {}, "replicated", options=Options(operator=Counts))
    fit(learner, X, Y[:, None], callbacks=(Collects(),))


def test_a_fit_in_this_process_leaves_its_random_numbers_alone() -> None:
    def drawn() -> tuple[float, ...]:
        return np.random.rand(), random.random(), float(torch.rand(()))

    learner = learner_of(linear(), nn.MSELoss())
    with kept_draws():
        expected = drawn()
    fit(learner, X, Y)
    evaluate(learner, X, Y)
    predict(learner, X)
    assert drawn() == expected


@pytest.mark.parametrize("options", [{}, {"sync_batchnorm": True}])
def test_batch_normalization_that_would_never_learn_is_refused(options: Any) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    learner = TorchLearner.of(net, sgd, nn.MSELoss(), {}, "replicated", options=Options(**options))
    with pytest.raises(ArgumentError, match="learns nothing from a step of one row, and no step has more. Pass"):
        fit(learner, X, Y, batch_size=1)
    bare = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))
    with pytest.raises(ArgumentError, match="a step of one row is left over, of which batch normalization"):
        fit(replace(learner, model=bare), X, Y, batch_size=3)
    wide = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1))  # three values of each row
    state = fit(replace(learner, model=wide), X, X[:, None], batch_size=1)[1]
    assert int(state.payload["models"][0]["1.num_batches_tracked"]) == len(X)
