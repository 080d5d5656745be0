from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
from frameworks.torch.pair import Recording, on_two_ranks, once_on_two_ranks
from orca import Estimator
from orca.callbacks import Callback, MaxstepsCallback
from orca.core.metrics import MSE
from orca.core.plan import even_split
from orca.errors import ArgumentError, LossNotFinite, WorkerFailed
from orca.estimators.torch import TorchEstimator
from orca.operator import TrainingOperator
from orca.triggers import SeveralIteration

ROWS, BATCH = 21, 5  # 5 steps; the last has one row: a rank of two has none
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = X.sum(axis=1, keepdims=True) + 0.5
DATA = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Alone(TorchEstimator):
    """An Estimator whose one rank runs in this process."""

    engine = AloneEngine()  # type: ignore[assignment]


def net(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def halving(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def estimator(operator: type | None = None, kind: type[Estimator] = Alone, **options: Any) -> Estimator:
    given = {"model": net, "optimizer": sgd, "loss": nn.MSELoss(), "backend": "local", "seed": 3, "use_tqdm": False}
    return kind.from_torch(training_operator_cls=operator, **{**given, **options})


def fit(made: Estimator, epochs: int = 2, **options: Any) -> list[Any]:
    return made.fit(**{"data": DATA, "epochs": epochs, "batch_size": BATCH, "shuffle": False, **options})


def weights(made: Estimator, number: int = 0) -> dict[str, torch.Tensor]:
    items: dict[str, torch.Tensor] = made.get_state_dict()["models"][number]
    return items


def alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return set(one) == set(other) and all(torch.allclose(one[key], other[key], rtol=1e-9, atol=0) for key in one)


# Operators of a user


class ByEpoch(TrainingOperator):
    """Have a loop of her own; tell what she was told."""

    def setup(self, config: dict[str, Any]) -> None:
        self.seen: list[dict[str, Any]] = []
        self.factor = config.get("factor", 1.0)

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
        total = rows = 0
        for features, target in iterator:
            loss = self.factor * self.criterion(self.model(features), target)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total, rows = total + float(loss.detach()) * iterator.rows, rows + iterator.rows
        self.seen.append(info)
        last = float(loss.detach())
        return {
            "train_loss": total / max(rows, 1),
            "last_train_loss": last,
            "share": float(self.world_rank),
            "note": "no number",
        }

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = list(state_dict["seen"])


class ByBatch(TrainingOperator):
    """Train one batch in her own words, and tell more of it."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        assert features.dtype == target.dtype == torch.float64
        loss = self.criterion(self.model(features), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        results = {"first": features[:, 0].mean(), "train_top": float(target.mean()), "at": batch_info["batch_idx"]}
        return {"train_loss": loss.item(), "num_samples": len(target)} | results


class Absolute(TrainingOperator):
    """Have another loss, in training and in evaluation."""

    def forward_batch(self, batch: Any, batch_info: dict[str, Any]) -> tuple[Any, Any, Any]:
        *features, target = batch
        output = self.model(*features)
        return output, target, F.l1_loss(output, target)


class Validates(TrainingOperator):
    """Evaluate in her own words: all at once."""

    def validate(self, val_iterator: Any, info: dict[str, Any], metrics: Any = None, num_steps: Any = None) -> Any:
        total = rows = 0
        for features, target in val_iterator:
            total += float((self.model(features) - target).abs().mean()) * val_iterator.rows
            rows += val_iterator.rows
        learning = torch.is_grad_enabled() or self.model.training
        return {"val_loss": total / max(rows, 1), "val_rows": rows, "learning": float(learning)}


class ValidatesBatch(TrainingOperator):
    """Evaluate a batch, as in 0.9."""

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, target = batch
        return {"val_loss": (self.model(features) - target).abs().mean(), "target": target.mean()}


class Doubles(TrainingOperator):
    """Answer in her own words."""

    def predict_batch(self, batch: Any) -> Any:
        return 2 * super().predict_batch(batch)


class Counts(TrainingOperator):
    """Keep something of her own."""

    def setup(self, config: dict[str, Any]) -> None:
        self.batches, self.largest = 0, torch.zeros(2)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self.batches += 1
        self.largest = torch.maximum(self.largest, batch[0].abs().max().float().cpu())
        return super().train_batch(batch, batch_info)

    def predict_batch(self, batch: Any) -> Any:
        return super().predict_batch(batch) * 0 + self.batches

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "largest": self.largest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches, self.largest = state_dict["batches"], state_dict["largest"]


# Two models


def makers(config: dict[str, Any]) -> list[nn.Module]:
    return [nn.Linear(3, 1).double(), nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()]


def two_optimizers(models: list[nn.Module], config: dict[str, Any]) -> list[torch.optim.Optimizer]:
    return [sgd(models[0], config), torch.optim.Adam(models[1].parameters(), lr=0.01)]


class Duel(TrainingOperator):
    """Let one model make what the other is to tell from the truth."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        features, truth = batch
        maker, critic = self.models
        made = maker(features)
        verdict = F.softplus(-critic(truth)).mean() + F.softplus(critic(made.detach())).mean()
        self.optimizers[1].zero_grad()
        verdict.backward()
        self.optimizers[1].step()
        loss = F.softplus(-critic(made)).mean()
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()
        return {"train_loss": loss.item(), "verdict": verdict.item()}


TWO: dict[str, Any] = {"operator": Duel, "model": makers, "optimizer": two_optimizers, "loss": None}
CASES: dict[str, dict[str, Any]] = {
    "by epoch": {"operator": ByEpoch},
    "by batch": {"operator": ByBatch, "scheduler_creator": halving},
    "forward": {"operator": Absolute},
    "validate": {"operator": Validates},
    "validate batch": {"operator": ValidatesBatch},
    "counts": {"operator": Counts},
    "two": TWO,
}


@cache
def pair() -> Callable[[], dict[str, list[Any]]]:
    """Train all cases on two ranks."""
    calls = {
        name: lambda options=options: fit(estimator(kind=Recording, **options), **validation(options))
        for name, options in CASES.items()
    }
    return once_on_two_ranks(calls)


def validation(options: dict[str, Any]) -> dict[str, Any]:
    return {} if options["loss"] is None else {"validation_data": DATA}


CASES = {name: {"loss": nn.MSELoss()} | options for name, options in CASES.items()}


@cache
def lonely(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Train a case on one rank."""
    made = estimator(**CASES[name])
    return fit(made, **validation(CASES[name])), made.get_state_dict()


@pytest.mark.parametrize("name", CASES)
def test_two_uneven_ranks_equal_one(name: str) -> None:
    lines, state = lonely(name)
    history, both = pair()()[name][0]
    skipped = {"train_share", "val_rows", "val_learning"}  # what each rank tells of itself
    skipped |= {key for key in lines[0] if key.startswith("train_last_")}  # the last batch of a rank is its own
    for one, other in zip(history.epochs, lines, strict=True):
        assert set(one) == set(other)
        assert {key: one[key] for key in set(one) - skipped} == pytest.approx(
            {key: other[key] for key in set(other) - skipped}, rel=1e-9
        )
    assert len(both.payload["models"]) == len(state["models"])
    for mine, theirs in zip(both.payload["models"], state["models"], strict=True):
        assert alike(mine, theirs)
    for mine, theirs in zip(both.payload["optimizers"], state["optimizers"], strict=True):
        for number, entries in theirs["state"].items():
            assert alike(mine["state"][number], entries)


def test_an_operator_that_trains_as_everyone_does_changes_nothing() -> None:
    lines = fit(plain := estimator(), validation_data=DATA)
    for name in ("by epoch", "by batch without a scheduler", "validate batch"):
        made = estimator({"by epoch": ByEpoch, "validate batch": ValidatesBatch}.get(name, ByBatch))
        results = fit(made, validation_data=DATA)
        assert [line["train_loss"] for line in results] == pytest.approx([line["train_loss"] for line in lines])
        assert alike(weights(made), weights(plain)), name
        counts = [
            [(line["num_samples"], line["batch_count"], line["epoch"]) for line in each] for each in (results, lines)
        ]
        assert counts[0] == counts[1]


# An epoch in the user's words


def test_an_epoch_of_the_users_own_gets_the_config_and_the_info() -> None:
    made = estimator(ByEpoch, config={"factor": 0.5}, scheduler_creator=halving, scheduler_step_freq="epoch")
    lines = fit(made, info={"mood": "good"})
    slow = estimator(loss=lambda output, target: 0.5 * F.mse_loss(output, target))
    assert [line["train_loss"] for line in lines] == pytest.approx([line["train_loss"] for line in fit(slow)])
    seen = made.get_state_dict()["operator"]["seen"]
    assert [info["mood"] for info in seen] == ["good", "good"]
    assert [info["num_steps"] for info in seen] == [5, 5]
    assert {info["scheduler_step_freq"] for info in seen} == {"epoch"}
    assert made.get_state_dict()["schedulers"][0]["last_epoch"] == 0  # in a loop of her own, she steps it herself


def test_the_info_tells_the_epoch() -> None:
    made = estimator(ByEpoch)
    fit(made, 2)
    fit(made, 1)
    assert [info["epoch_idx"] for info in made.get_state_dict()["operator"]["seen"]] == [0, 1, 2]


def test_what_is_no_number_is_left_out_of_the_statistics() -> None:
    history, _ = pair()()["by epoch"][0]
    rows = sum(stop - start for size in (5, 5, 5, 5, 1) for start, stop in even_split(size, 2)[1:])
    for line in history.epochs:
        assert "train_note" not in line
        assert line["train_share"] == pytest.approx(rows / ROWS)  # 1 for each row of rank 1


class Silent(TrainingOperator):
    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> Any:
        for _ in iterator:
            pass


class SilentBatch(TrainingOperator):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {}


def test_an_epoch_that_tells_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match="train_epoch of a TrainingOperator must return a dict .*; got NoneType"):
        fit(estimator(Silent))


def test_an_epoch_without_a_loss_has_none_in_its_statistics() -> None:
    (line,) = fit(estimator(SilentBatch), 1)
    assert np.isnan(line["train_loss"]) and line["num_samples"] == ROWS and line["batch_count"] == 5


class Leaves(TrainingOperator):
    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> Any:
        for number, batch in enumerate(iterator):
            self.train_batch(batch, {})
            if number == 1:
                break
        return {"train_loss": 1.5}


def test_an_epoch_may_be_left_early() -> None:
    made = estimator(Leaves)
    for line in fit(made):
        assert (line["batch_count"], line["num_samples"], line["train_loss"]) == (2, 10, 1.5)
    short = estimator(ByBatch)
    fit(short, 1, max_steps=2)
    fit(short, 1, max_steps=2)
    assert alike(weights(made), weights(short))


class Breaks(TrainingOperator):
    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("mine")


def test_what_an_operator_raises_is_the_only_error(monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    with pytest.raises(KeyError, match="mine"):
        fit(estimator(Breaks))
    gc.collect()
    assert [other.exc_value for other in others] == []


class Uneven(TrainingOperator):
    """Run a second backward pass on one rank."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        for _ in range(2 if self.world_rank and self.global_step == 1 else 1):
            stats = super().train_batch(batch, batch_info)
        return stats


@pytest.mark.skipif(sys.platform != "linux", reason="memory is shared so on Linux alone")
def test_ranks_that_run_different_backward_passes_are_told_at_once() -> None:
    with pytest.raises(WorkerFailed, match="add up different arrays.*run the same backward passes on each of them"):
        on_two_ranks({"uneven": lambda: fit(estimator(Uneven, Recording))})


def test_a_batch_of_one_row_is_normalized_as_without_an_operator() -> None:
    norm = {"model": lambda config: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()}
    for line, other in zip(fit(estimator(Leaning, **norm)), fit(estimator(**norm)), strict=True):
        assert line == pytest.approx(other)


# A batch in the user's words


def test_numbers_of_a_batch_are_means_over_the_rows() -> None:
    lines, state = lonely("by batch")
    for line in lines:
        assert line["train_first"] == pytest.approx(X[:, 0].mean(), rel=1e-12)
        assert line["train_at"] == pytest.approx(np.average(range(5), weights=[5, 5, 5, 5, 1]))
    history, _ = pair()()["by batch"][0]
    assert [line["train_first"] for line in history.epochs] == pytest.approx([X[:, 0].mean()] * 2, rel=1e-12)
    assert state["schedulers"][0]["last_epoch"] == 10  # it steps after each batch by itself


def test_a_number_that_is_called_train_already_is_not_called_so_twice() -> None:
    lines, _ = lonely("by batch")
    assert lines[0]["train_top"] == pytest.approx(Y.mean())


def test_the_last_numbers_of_a_rank_are_not_among_the_statistics() -> None:
    lines, _ = lonely("by batch")
    assert not [key for key in lines[0] if key.startswith("train_last_")]


@pytest.mark.parametrize(("freq", "steps"), [("epoch", 2), ("manual", 0)])
def test_schedulers_step_when_the_operator_leaves_the_loop_alone(freq: str, steps: int) -> None:
    made = estimator(ByBatch, scheduler_creator=halving, scheduler_step_freq=freq)
    fit(made)
    assert made.get_state_dict()["schedulers"][0]["last_epoch"] == steps


def plateau(optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)


def test_a_scheduler_that_watches_the_loss_steps_beside_an_operator() -> None:
    made = estimator(ByBatch, scheduler_creator=plateau, scheduler_step_freq="epoch")
    lines = fit(made, validation_data=DATA)
    assert made.get_state_dict()["schedulers"][0]["best"] == pytest.approx(min(line["val_loss"] for line in lines))


def test_a_checkpoint_within_an_epoch_changes_nothing(tmp_path: Path) -> None:
    options = {"scheduler_creator": halving, "scheduler_step_freq": "epoch"}
    whole, broken = estimator(ByBatch, **options), estimator(ByBatch, model_dir=str(tmp_path), **options)
    lines, results = fit(whole), fit(broken, checkpoint_trigger=SeveralIteration(2))
    assert alike(weights(whole), weights(broken))
    assert broken.get_state_dict()["schedulers"] == whole.get_state_dict()["schedulers"]
    for line, other in zip(lines, results, strict=True):
        names = ("train_loss", "train_first", "num_samples", "batch_count")
        assert {name: other[name] for name in names} == pytest.approx({name: line[name] for name in names})


class Leaning(TrainingOperator):
    """Lean on what is there for the step itself."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        return super().train_batch(batch, batch_info)


@pytest.mark.parametrize("shape", ["flat", "whole numbers", "classes as floats", "two outputs"])
def test_labels_meet_outputs_as_without_an_operator(shape: str) -> None:
    labels, options = Y[:, 0], {}
    if shape == "whole numbers":
        labels = np.arange(ROWS).astype(np.int32)
    if shape == "classes as floats":
        labels = (Y > 0.5).astype(np.float64)
        options = {"model": lambda config: nn.Linear(3, 2).double(), "loss": nn.CrossEntropyLoss()}
    if shape == "two outputs":
        labels = (Y[:, 0], X[:, 0])
        options = {"model": lambda config: Heads(), "loss": lambda a, b, c, d: F.mse_loss(a, c) + F.l1_loss(b, d)}
    made, plain = estimator(Leaning, **options), estimator(**options)
    for line, other in zip(fit(made, data=(X, labels)), fit(plain, data=(X, labels)), strict=True):
        assert line == pytest.approx(other)
    assert alike(weights(made), weights(plain))


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.two(x)


def test_a_loss_that_is_not_finite_is_told_beside_an_operator() -> None:
    with pytest.raises(LossNotFinite, match="the loss became nan"):
        fit(estimator(ByBatch), data=(X * np.nan, Y))
    (line,) = fit(estimator(ByBatch), 1, data=(X * np.nan, Y), on_nan="ignore")
    assert np.isnan(line["train_loss"])


@dataclass
class Notes(Callback):
    """Write down the hooks of steps."""

    path: str

    def after_train_iter(self, runner: Any) -> None:
        with open(self.path, "a") as file:
            file.write(f"{runner.batch_idx} ")


def test_callbacks_see_every_step_of_an_operator(tmp_path: Path) -> None:
    fit(estimator(ByBatch), 1, callbacks=[Notes(str(tmp_path / "notes"))])
    assert (tmp_path / "notes").read_text() == "0 1 2 3 4 "
    (line,) = fit(estimator(ByBatch), 1, callbacks=[MaxstepsCallback(2)])
    assert line["batch_count"] == 2


# Forward, evaluation, answers


def test_a_forward_pass_of_the_users_own_trains_and_evaluates() -> None:
    lines, state = lonely("forward")
    twin = estimator(loss=nn.L1Loss())
    for line, other in zip(lines, fit(twin, validation_data=DATA), strict=True):
        assert line["val_loss"] == pytest.approx(other["val_loss"])
        assert line["train_loss"] == pytest.approx(other["train_loss"])
    assert alike(state["models"][0], weights(twin))
    made = estimator(Absolute, metrics=[MSE()])
    made.load_state_dict(state)
    stats = made.evaluate(DATA, batch_size=BATCH)
    output = made.predict(X)
    assert stats["val_loss"] == pytest.approx(np.abs(output - Y).mean())
    assert stats["MSE"] == pytest.approx(((output - Y) ** 2).mean())  # metrics see its outputs


@pytest.mark.parametrize("operator", [Validates, ValidatesBatch])
def test_an_evaluation_of_the_users_own(operator: type) -> None:
    made = estimator(operator)
    fit(made)
    stats = made.evaluate(DATA, batch_size=BATCH)
    assert stats["val_loss"] == pytest.approx(np.abs(made.predict(X) - Y).mean())
    assert stats["num_samples"] == ROWS
    if operator is Validates:
        assert (stats["val_rows"], stats["learning"]) == (ROWS, 0.0)
    else:
        assert stats["target"] == pytest.approx(Y.mean())
    (line,) = fit(made, 1, validation_data=DATA)
    assert line["val_loss"] == pytest.approx(np.abs(made.predict(X) - Y).mean())
    assert line["val_learning"] == 0.0 if operator is Validates else line["val_target"] == pytest.approx(Y.mean())
    assert line["val_num_samples"] == ROWS


def test_models_are_not_in_training_while_the_user_evaluates_on_several_ranks() -> None:
    history, _ = pair()()["validate"][0]
    assert [line["val_learning"] for line in history.epochs] == [0.0, 0.0]


def test_a_metric_is_exact_or_not_there_where_the_user_evaluates() -> None:
    made = estimator(ValidatesBatch, metrics=[MSE()])
    stats = made.evaluate(DATA, batch_size=BATCH)
    assert "MSE" not in stats or stats["MSE"] == pytest.approx(((made.predict(X) - Y) ** 2).mean())


class SilentValidation(TrainingOperator):
    def validate(self, val_iterator: Any, info: dict[str, Any], metrics: Any = None, num_steps: Any = None) -> Any:
        return 1.0


def test_an_evaluation_that_tells_no_dict_is_refused() -> None:
    with pytest.raises(ArgumentError, match="validate of a TrainingOperator must return a dict of numbers.*got float"):
        estimator(SilentValidation).evaluate(DATA)


def test_answers_of_the_users_own() -> None:
    made, plain = estimator(Doubles), estimator()
    np.testing.assert_allclose(made.predict(X, batch_size=4), 2 * plain.predict(X), rtol=1e-12)
    fit(made), fit(plain)
    np.testing.assert_allclose(made.predict(X), 2 * plain.predict(X), rtol=1e-12)
    assert alike(weights(made), weights(plain))  # it left training alone


# What an operator keeps


@pytest.mark.parametrize("way", ["folder", "file.pt", "state dict"])
def test_what_an_operator_keeps_is_saved_with_the_model(way: str, tmp_path: Path) -> None:
    made, other = estimator(Counts), estimator(Counts)
    fit(made)
    if way == "state dict":
        other.load_state_dict(made.get_state_dict())
    else:
        other.load(made.save(str(tmp_path / way)))
    assert other.get_state_dict()["operator"]["batches"] == 10
    assert torch.equal(other.get_state_dict()["operator"]["largest"], torch.full((2,), np.abs(X).max()).float())
    np.testing.assert_array_equal(other.predict(X), np.full((ROWS, 1), 10.0))
    fit(other, 1)
    assert other.get_state_dict()["operator"]["batches"] == 15
    assert estimator(Counts).predict(X)[0, 0] == 0.0


# Several models


def test_two_models_are_trained_answer_and_go_on(tmp_path: Path) -> None:
    made, whole = estimator(**TWO), estimator(**TWO)
    lines = fit(made, 1)
    assert lines[0]["train_verdict"] > 0
    state = made.get_state_dict()
    assert [len(state[name]) for name in ("models", "optimizers")] == [2, 2]
    assert [type(net) for net in made.get_model()] == [nn.Linear, nn.Sequential]
    with torch.no_grad():
        np.testing.assert_allclose(made.predict(X), made.get_model()[0](torch.from_numpy(X)), rtol=1e-12)
    other = estimator(**TWO).load(made.save(str(tmp_path / "two")))
    long = fit(whole, 2)
    assert fit(other, 1) == long[1:]
    assert alike(weights(other), weights(whole)) and alike(weights(other, 1), weights(whole, 1))


def test_models_and_optimizers_may_be_instances() -> None:
    torch.manual_seed(3)
    models = makers({})
    before = [{name: value.clone() for name, value in model.state_dict().items()} for model in models]
    made, twin = estimator(**TWO | {"model": models, "optimizer": two_optimizers(models, {})}), estimator(**TWO)
    assert fit(made) == fit(twin)
    assert alike(weights(made, 1), weights(twin, 1))
    for model, old in zip(models, before, strict=True):
        assert alike(model.state_dict(), old)  # the user's own are left as they were


def test_several_models_without_an_operator_are_refused() -> None:
    message = "2 models need to be told how they are trained together. Pass training_operator_cls, or a MainCallback"
    with pytest.raises(ArgumentError, match=message):
        fit(estimator(**TWO | {"operator": None, "loss": nn.MSELoss()}))
    with pytest.raises(ArgumentError, match=message):
        fit(estimator(**TWO | {"operator": Validates, "loss": nn.MSELoss()}))


def test_what_is_no_operator_is_refused() -> None:
    for wrong in (object, ByBatch({}, net({}), None, 0)):
        with pytest.raises(ArgumentError, match="training_operator_cls must be a subclass of TrainingOperator, not an"):
            estimator(wrong)  # type: ignore[arg-type]


def test_steps_of_the_users_own_do_not_go_with_a_sharded_model() -> None:
    with pytest.raises(ArgumentError, match="^the operator ByBatch does the backward pass .*shard_model"):
        estimator(ByBatch, shard_model=True)  # its gradients cannot be weighed by the rows of each rank


# By itself


def test_an_operator_has_its_parts_under_the_names_of_all_releases() -> None:
    model = net({})
    optimizer = sgd(model, {})
    made = TrainingOperator(
        {"lr": 1}, model, optimizer, 1, nn.MSELoss(), [halving(optimizer, {})], sync_stats=True, dist_backend="gloo"
    )
    assert made.model is model and made.models == [model]
    assert made.optimizer is optimizer and made.optimizers == [optimizer]
    assert made.scheduler is made.schedulers[0] and isinstance(made.criterion, nn.MSELoss)
    assert (made.config, made.world_rank) == ({"lr": 1}, 1)
    assert not (made.use_fp16 or made.use_tqdm or made.use_gpu)
    assert TrainingOperator({}, model, optimizer, 0).scheduler is None
    batches = [(torch.from_numpy(X[:4]), torch.from_numpy(Y[:4])), (torch.from_numpy(X[4:6]), torch.from_numpy(Y[4:6]))]
    results = made.validate(iter(batches), {})
    with torch.no_grad():
        exact = float(F.mse_loss(model(torch.from_numpy(X[:6])), torch.from_numpy(Y[:6])))
    assert results["val_loss"] == pytest.approx(exact) and results["num_samples"] == 6
    assert [len(output) for output in made.predict([batch[:1] for batch in batches])] == [4, 2]
    before = [p.detach().clone() for p in model.parameters()]
    results = made.train_epoch(iter(batches), {"scheduler_step_freq": "batch"})
    assert made.scheduler.last_epoch == 2 and made.global_step == 2
    assert results["num_samples"] == 6 and results["last_train_loss"] != results["train_loss"]
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
