from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from frameworks.torch.alone import AloneEngine
from orca import Estimator
from orca.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from orca.core.metrics import AUC, Accuracy, BinaryAccuracy, F1Score, Precision, Recall
from orca.errors import ArgumentError, DataError, LossNotFinite, OrcaError
from orca.estimators.torch import TorchEstimator
from orca.operator import TrainingOperator
from orca.storage.checkpoints import newest_run, path_of, versions
from orca.triggers import MaxEpoch, MaxScore, Or, SeveralIteration
from raised import raises

N = 10
X = np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
KEYS = {"num_samples", "epoch", "batch_count", "train_loss", "last_train_loss"}


def net(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, config.get("width", 4)), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))


def adam(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=config.get("lr", 0.05), betas=(0.8, 0.9))


def shift(output: Any, target: Any) -> float:
    """A metric of the user's own."""
    return float(target.sum()) + len(output)


class Alone(TorchEstimator):
    """An Estimator whose one rank runs in this process."""

    engine = AloneEngine()  # type: ignore[assignment]


def estimator(model: Any = net, optimizer: Any = adam, loss: Any = None, **options: Any) -> Estimator:
    """Return an Estimator whose one rank runs in this process."""
    loss = nn.CrossEntropyLoss() if loss is None else loss
    return Alone.from_torch(
        **{"model": model, "optimizer": optimizer, "loss": loss, "backend": "local", "seed": 7, **options}
    )


def weights(made: Estimator) -> list[torch.Tensor]:
    return [tensor for _, tensor in sorted(made.get_state_dict()["models"][0].items())]


def same_weights(one: Estimator, other: Estimator) -> bool:
    return all(map(torch.equal, weights(one), weights(other)))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("orca-")}
    yield
    left = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("orca-")} - before
    assert {name for name in left if not name.startswith("orca-java-")} == set()


# Statistics


def test_fit_returns_a_line_an_epoch_with_the_documented_keys() -> None:
    made = estimator()
    stats = made.fit((X, Y), epochs=2, batch_size=4)
    assert [set(line) for line in stats] == [KEYS, KEYS]
    assert [line["epoch"] for line in stats] == [1, 2]
    assert [(line["num_samples"], line["batch_count"]) for line in stats] == [(N, 3)] * 2
    assert all(type(line[key]) is float for line in stats for key in ("train_loss", "last_train_loss"))


def test_validation_adds_its_own_keys() -> None:
    made = estimator(metrics=[Accuracy(), shift])
    (line,) = made.fit((X, Y), batch_size=4, validation_data=(X[:3], Y[:3]))
    assert set(line) == KEYS | {"val_loss", "val_accuracy", "val_shift", "val_num_samples"}
    assert line["val_num_samples"] == 3
    assert line["val_shift"] == Y[:3].sum() + 3
    assert line["val_accuracy"] == pytest.approx(made.evaluate((X[:3], Y[:3]))["Accuracy"])


def test_evaluate_returns_the_loss_and_the_metrics_by_name() -> None:
    made = estimator(metrics=[Accuracy(), shift])
    stats = made.evaluate((X, Y), batch_size=4)
    assert set(stats) == {"num_samples", "val_loss", "Accuracy", "shift"}
    model = made.get_model().eval()
    output = model(torch.from_numpy(X))
    assert stats["num_samples"] == N
    assert stats["shift"] == Y.sum() + N
    assert stats["Accuracy"] == pytest.approx(float((output.argmax(1).numpy() == Y).mean()))
    assert stats["val_loss"] == pytest.approx(float(nn.functional.cross_entropy(output, torch.from_numpy(Y))), rel=1e-5)


def test_evaluate_may_be_given_other_metrics() -> None:
    made = estimator(metrics=[Accuracy()])
    assert set(made.evaluate((X, Y), validation_methods=[shift])) == {"num_samples", "val_loss", "shift"}
    assert set(made.evaluate((X, Y), validation_methods=[])) == {"num_samples", "val_loss"}


class Exact(nn.Module):
    """A model whose logits are right by construction."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x[:, :1]


def still(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.0)


SIGNS = Y.astype(np.float32)[:, None]
DECISIONS = ["accuracy", BinaryAccuracy(), F1Score(), Precision(), Recall()]


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss, lambda config: nn.SoftMarginLoss()])
def test_logits_are_cut_at_0_if_the_loss_takes_them_in_fit_and_evaluate(loss: Any) -> None:
    made = estimator(lambda config: Exact(), still, loss, metrics=DECISIONS)
    (line,) = made.fit((X, SIGNS), batch_size=4, validation_data=(X, SIGNS))
    stats = made.evaluate((X, SIGNS), batch_size=4)
    for metric in made.metrics:
        assert stats[metric.name] == line[f"val_{metric.name.lower()}"] == 1.0
        assert metric.link == ""


def test_scores_are_refused_if_the_loss_says_nothing_and_there_is_no_threshold() -> None:
    def loss(output: Any, target: Any) -> Any:
        return nn.functional.binary_cross_entropy_with_logits(output, target)

    large = (20 * X, SIGNS)
    made = estimator(lambda config: Exact(), still, loss, metrics=["accuracy", AUC()])
    with pytest.raises(DataError, match=r"accuracy needs probabilities .*BCEWithLogitsLoss.*Accuracy\(threshold=0.0\)"):
        made.evaluate(large)
    stats = made.evaluate(large, validation_methods=[Accuracy(threshold=0.0), AUC()])
    assert (stats["Accuracy"], stats["AUC"]) == (1.0, 1.0)


def test_metrics_of_outputs_that_the_users_operator_makes_do_not_follow_the_loss() -> None:
    class Squashed(TrainingOperator):
        def forward_batch(self, batch: Any, batch_info: Any) -> Any:
            x, y = batch
            output = self.model(x)
            return output.sigmoid(), y, self.criterion(output, y)

    made = estimator(
        lambda config: Exact(), still, nn.BCEWithLogitsLoss(), metrics=["accuracy"], training_operator_cls=Squashed
    )
    assert made.evaluate((X, SIGNS))["accuracy"] == 1.0


def test_a_fit_without_validation_data_says_once_that_it_computes_no_metrics(caplog: pytest.LogCaptureFixture) -> None:
    made = estimator(metrics=[Accuracy(), shift])
    counts = []
    for data in ({"validation_data": (X, Y)}, {}, {}):
        made.fit((X, Y), **data)
        lines = [record.getMessage() for record in caplog.records]
        counts.append(
            sum(line.startswith("metrics (Accuracy, shift) are computed on validation data") for line in lines)
        )
    assert counts == [0, 1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"callbacks": EarlyStopping()}, "EarlyStopping watches 'val_loss', but .* Pass validation_data to fit"),
        (
            {"callbacks": [LearningRateMonitor(), EarlyStopping("val_acc")], "validation_data": (X, Y)},
            "watches 'val_acc', .* last_train_loss, train_loss, val_accuracy, val_loss. Did you mean 'val_accuracy'",
        ),
        (
            {"callbacks": ModelCheckpoint("c/", monitor="loss", save_best_only=True)},
            "ModelCheckpoint watches 'loss', .* Pass one of them as monitor",
        ),
        ({"end_trigger": Or(MaxScore(0.5), MaxEpoch(2))}, "MaxScore watches .* never fire. Pass validation_data="),
        (
            {"end_trigger": MaxScore(0.5), "validation_data": (X, Y), "validation_methods": []},
            "MaxScore watches .* never fire. Pass metrics=",
        ),
    ],
)
def test_a_number_that_no_epoch_will_have_is_refused_before_anything_starts(
    options: dict[str, Any], words: str
) -> None:
    calls: list[Any] = []
    made = estimator(lambda config: calls.append(config) or net(config), metrics=[Accuracy()])
    with pytest.raises(ArgumentError, match=words):
        made.fit((X, Y), **options)
    assert not calls


def test_numbers_that_may_come_are_watched() -> None:
    class Adds(Callback):
        def after_train_epoch(self, runner: Any) -> None:
            runner.epoch_stats["extra"] = 1.0

    made = estimator(metrics=[Accuracy()])
    stops = [LearningRateMonitor(), EarlyStopping("lr", 5), EarlyStopping("val_accuracy", 5), Adds()]
    made.fit((X, Y), validation_data=(X, Y), callbacks=[*stops, EarlyStopping("extra", 5)], end_trigger=MaxScore(2))


def test_a_model_that_changed_since_the_last_fit_asks_for_a_new_estimator() -> None:
    sizes = [3]
    made = estimator(lambda config: nn.Sequential(nn.Linear(3, sizes[0]), nn.Linear(sizes[0], 2)))
    made.fit((X, Y))
    sizes[0] = 5
    words = r"trained so far does not fit the model: other shapes: 0.weight \(3, 3\).*Make a new Estimator"
    for verb in (made.fit, made.evaluate, lambda data: made.predict(data[0])):
        with pytest.raises(ArgumentError, match=words):
            verb((X, Y))


def test_integer_columns_are_named_where_the_model_takes_floating_point_numbers() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.sizes, self.head = nn.Embedding(4, 2), nn.Linear(1, 2), nn.Linear(2, 2)

        def forward(self, kind: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
            return self.head(self.kinds(kind) + self.sizes(size.reshape(-1, 1)))

    frame = pd.DataFrame({"kind": np.arange(N) % 4, "age": np.arange(N), "y": Y})
    columns = {"feature_cols": ["kind", "age"], "label_cols": "y"}
    words = r"columns 'kind', 'age' \(int64\). Cast .*cast\('float'\)"
    for made in (estimator(lambda config: Joined()), estimator(lambda config: Joined(), backend="bigdl")):
        for verb in (made.fit, made.evaluate):
            with pytest.raises(DataError, match=words):
                verb(frame, **columns)
        with pytest.raises(DataError, match=words):
            made.predict(frame, feature_cols=["kind", "age"])
    with pytest.raises(DataError, match=r"input 1 of 1 \(int64\). Pass .*x.astype\('float32'\)"):
        estimator().fit((X.astype(np.int64), Y))


def test_the_bigdl_backend_casts_integers_where_the_model_takes_floating_point_numbers() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 2)

        def forward(self, size: torch.Tensor) -> torch.Tensor:
            return self.line(size.reshape(-1, 1))

    frame = pd.DataFrame({"age": np.arange(N), "y": Y})
    made = [estimator(lambda config: Doubled(), backend="bigdl") for _ in range(2)]
    for each, column in zip(made, (frame, frame.astype({"age": "float32"})), strict=True):
        each.fit(column, epochs=2, feature_cols="age", label_cols="y", shuffle=False)
        each.predict(column, feature_cols="age")
    assert same_weights(*made)


def test_a_profile_tells_where_time_went() -> None:
    made = estimator()
    (line,) = made.fit((X, Y), batch_size=4, profile=True, validation_data=(X, Y))
    names = ("data", "fwd", "bwd", "comm", "optimizer", "eval_fwd", "train_epoch", "validation")
    steps = {f"mean_{name}_s" for name in names}
    profile = line["profile"]
    assert set(profile) == steps | {"ranks"}
    assert [set(own) for own in profile["ranks"]] == [steps]
    assert all(profile[name] == profile["ranks"][0][name] > 0 for name in steps - {"mean_comm_s"})
    assert profile["mean_comm_s"] >= 0  # one rank alone has nobody to wait for
    assert profile["mean_train_epoch_s"] > profile["mean_fwd_s"]
    evaluated = made.evaluate((X, Y), profile=True)["profile"]
    assert evaluated["mean_validation_s"] > evaluated["mean_eval_fwd_s"] > 0
    assert "mean_validation_s" not in made.fit((X, Y), profile=True)[0]["profile"]
    assert "profile" not in made.fit((X, Y))[0]


def test_steps_may_be_limited() -> None:
    made = estimator()
    stats = made.fit((X, Y), epochs=5, batch_size=4, max_steps=4)
    assert [(line["epoch"], line["batch_count"], line["num_samples"]) for line in stats] == [(1, 3, N), (2, 1, 4)]
    assert made.evaluate((X, Y), batch_size=4, num_steps=2)["num_samples"] == 8
    assert made.evaluate((X, Y), batch_size=4, num_steps=9)["num_samples"] == N


def test_batches_have_32_rows_unless_told() -> None:
    x = np.zeros((70, 3), np.float32)
    assert estimator().fit((x, x[:, 0].astype(np.int64)))[0]["batch_count"] == 3


# Going on


@pytest.mark.parametrize("shuffle", [True, False])
def test_two_fits_are_one_longer_fit(shuffle: bool) -> None:
    once, twice = estimator(), estimator()
    long = once.fit((X, Y), epochs=3, batch_size=4, shuffle=shuffle)
    short = twice.fit((X, Y), epochs=1, batch_size=4, shuffle=shuffle)
    short += twice.fit((X, Y), epochs=2, batch_size=4, shuffle=shuffle)
    assert short == long
    assert [line["epoch"] for line in short] == [1, 2, 3]
    assert same_weights(once, twice)


def test_every_epoch_is_shuffled_anew_unless_told() -> None:
    # Without learning, an epoch's last loss tells which rows came last.
    still = {"lr": 0.0}
    plain = nn.Linear(3, 2)

    def lasts(config: dict[str, Any], **options: Any) -> set[float]:
        made = estimator(plain, lambda model, config: torch.optim.SGD(model.parameters(), lr=0.0), config=config)
        return {round(line["last_train_loss"], 5) for line in made.fit((X, Y), epochs=4, batch_size=4, **options)}

    assert len(lasts(still)) > 1
    assert len(lasts(still, shuffle=False)) == 1
    assert len(lasts(still | {"shuffle": False})) == 1
    assert lasts(still) == lasts(still)


def test_the_seed_decides_everything() -> None:
    first, again, other = (estimator(seed=seed) for seed in (1, 1, 2))
    stats = [made.fit((X, Y), epochs=2, batch_size=4) for made in (first, again, other)]
    assert stats[0] == stats[1] != stats[2]
    assert same_weights(first, again) and not same_weights(first, other)


@pytest.mark.parametrize("name", ["folder", "file.pt", "state dict"])
def test_a_saved_estimator_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    whole, half, loaded = estimator(), estimator(), estimator(seed=7)
    long = whole.fit((X, Y), epochs=2, batch_size=4)
    half.fit((X, Y), epochs=1, batch_size=4)
    if name == "state dict":
        loaded.load_state_dict(half.get_state_dict())
    else:
        assert half.save(str(tmp_path / name)) == str(tmp_path / name)
        assert loaded.load(str(tmp_path / name)) is loaded
    assert loaded.get_state_dict()["epoch"] == 1
    assert loaded.fit((X, Y), epochs=1, batch_size=4) == long[1:]
    assert same_weights(loaded, whole)


def test_checkpoints_are_saved_and_loaded_too(tmp_path: Path) -> None:
    made = estimator()
    made.fit((X, Y))
    made.save_checkpoint(str(tmp_path / "ckpt"))
    other = estimator()
    other.load_checkpoint(str(tmp_path / "ckpt"))
    assert same_weights(made, other)


def test_a_state_dict_has_the_documented_parts() -> None:
    made = estimator()
    assert made.get_state_dict()["epoch"] == 0
    made.fit((X, Y), epochs=2)
    state = made.get_state_dict()
    assert set(state) == {"epoch", "steps", "models", "optimizers", "schedulers"}
    assert state["epoch"] == 2
    assert state["optimizers"][0]["param_groups"][0]["betas"] == (0.8, 0.9)
    assert float(state["optimizers"][0]["state"][0]["step"]) == 2
    made.get_model().load_state_dict(state["models"][0])


def test_the_weights_of_a_module_are_taken_over() -> None:
    made, trained = estimator(), net({})
    made.load_state_dict(trained.state_dict())
    assert torch.equal(made.get_model()[0].weight, trained[0].weight)
    made.fit((X, Y))


@pytest.mark.parametrize("kind", ["plain.pt", "weights.safetensors"])
def test_weights_of_others_are_loaded_and_trained_on(tmp_path: Path, kind: str) -> None:
    from safetensors.torch import save_file

    trained, path = net({}), tmp_path / kind
    (torch.save if kind.endswith(".pt") else save_file)(trained.state_dict(), path)
    made = estimator().load(str(path))
    np.testing.assert_allclose(made.predict(X), trained.eval()(torch.from_numpy(X)).detach(), rtol=1e-5)
    assert made.fit((X, Y))[0]["epoch"] == 1


def test_an_entire_model_is_loaded_and_trained_on(tmp_path: Path) -> None:
    path = str(tmp_path / "entire.pt")
    made = estimator()
    made.fit((X, Y))
    made.save(path, entire=True)
    assert isinstance(torch.load(path, weights_only=False), nn.Sequential)
    bare = estimator(model=None)
    with raises("file-holds-code"):
        bare.load(path)
    bare.load(path, loss=nn.NLLLoss(), weights_only=False)
    np.testing.assert_array_equal(bare.predict(X), made.predict(X))
    assert isinstance(bare.learner.loss, nn.NLLLoss)
    before = weights(bare)[0].clone()
    bare.fit((X, Y))
    assert not torch.equal(weights(bare)[0], before)
    mine = net({})
    bound = estimator(mine, torch.optim.Adam(mine.parameters())).load(path, weights_only=False)
    with raises("missing-optimizer"):
        bound.fit((X, Y))


def deeper(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("kind", ["folder", "file.pt", "plain.pt", "weights.safetensors", "state dict", "checkpoint"])
def test_weights_of_another_model_are_refused_by_name_and_the_old_ones_stay(tmp_path: Path, kind: str) -> None:
    other, made, path = estimator(deeper, model_dir=str(tmp_path / "run")), estimator(), str(tmp_path / kind)
    made.fit((X, Y))
    before = [weight.clone() for weight in weights(made)]
    words = (
        r"does not fit the model: it lacks 2.running_mean, 2.running_var, 2.num_batches_tracked; "
        r"the model has no 1.bias, 1.weight, 3.num_batches_tracked and 4 more; "
        r"other shapes: 0.weight \(5, 3\) where the model has \(4, 3\), 0.bias \(5,\) where .* and 2 more\. "
        r"The weights stay as they were"
    )
    with pytest.raises(ArgumentError, match=words):
        if kind == "state dict":
            made.load_state_dict(other.get_state_dict())
        elif kind == "checkpoint":
            other.fit((X, Y), checkpoint_trigger=SeveralIteration(1))
            made.load_orca_checkpoint(str(tmp_path / "run"))
        elif kind == "plain.pt":
            torch.save(deeper({}).state_dict(), path)
            made.load(path)
        else:
            made.load(other.save(path))
    assert all(map(torch.equal, weights(made), before))
    made.fit((X, Y))


def test_number_of_models_and_the_resumed_fit_are_checked_too(tmp_path: Path) -> None:
    made = estimator()
    with raises("weights-do-not-fit"):
        made.load_state_dict({"models": [net({}).state_dict()] * 2})
    other = estimator(deeper, model_dir=str(tmp_path))
    other.fit((X, Y), checkpoint_trigger=SeveralIteration(1))
    with raises("checkpoints-unreadable", match="does not fit the model"):
        estimator(model_dir=str(tmp_path)).fit((X, Y), resume=True)


def test_modules_that_bring_other_names_together_are_asked() -> None:
    class Renamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.LazyLinear(2)
            self._register_load_state_dict_pre_hook(self._rename)

        def _rename(self, weights: dict[str, Any], prefix: str, *more: Any) -> None:
            for key in [key for key in weights if key.startswith("old.")]:
                weights["body." + key.removeprefix("old.")] = weights.pop(key)

        def forward(self, x: Any) -> Any:
            return self.body(x)

    trained = nn.Linear(3, 2)
    made = estimator(lambda config: Renamed())
    made.load_state_dict({f"old.{key}": value for key, value in trained.state_dict().items()})
    assert torch.equal(made.get_model().body.weight, trained.weight)


def test_creator_that_fails_here_leaves_the_check_to_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    made = estimator(lambda config: 1 / 0)
    made.load_state_dict(net({}).state_dict())
    assert "the model cannot be built here, to compare it with the state dict: ZeroDivisionError" in caplog.text


# What belongs to the user


def test_the_users_module_and_optimizer_are_not_changed() -> None:
    mine = net({})
    optimizer = torch.optim.Adam(mine.parameters(), lr=0.1)
    before = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    made = estimator(mine, optimizer)
    made.fit((X, Y), epochs=2, batch_size=4)
    made.predict(X)
    assert all(torch.equal(tensor, before[name]) for name, tensor in mine.state_dict().items())
    assert not optimizer.state
    assert made.get_model() is not mine
    assert not torch.equal(made.get_model()[0].weight, mine[0].weight)


def test_the_config_reaches_all_creators_and_is_not_changed() -> None:
    config = {"width": 4, "lr": 0.25, "rows": 6}

    def data(config: dict[str, Any], batch_size: int) -> Any:
        config["lr"] = "spoilt"
        rows = config["rows"]
        return DataLoader(TensorDataset(torch.from_numpy(X[:rows]), torch.from_numpy(Y[:rows])), batch_size=batch_size)

    def greedy(config: dict[str, Any]) -> nn.Module:
        width = config.pop("width")
        return net({"width": width})

    made = estimator(greedy, config=config)
    for _ in range(2):
        (line,) = made.fit(data, batch_size=4)
        assert (line["num_samples"], line["batch_count"]) == (6, 2)
    for _ in range(2):
        assert len(made.get_model()) == 4
        assert made.predict(X).shape == (N, 2)
    untrained = estimator(greedy, config=config)
    assert untrained.predict(X).shape == untrained.predict(X).shape == (N, 2)
    assert made.get_state_dict()["optimizers"][0]["param_groups"][0]["lr"] == 0.25
    assert config == {"width": 4, "lr": 0.25, "rows": 6}


# Answers


def test_predictions_before_a_fit_are_those_of_the_first_weights() -> None:
    made = estimator()
    expected = made.get_model().eval()(torch.from_numpy(X)).detach().numpy()
    for size in (1, 3, 64, None):  # dropout and batch norm rest: how rows are batched makes no difference
        np.testing.assert_allclose(made.predict(X, batch_size=size), expected, rtol=1e-5)
    torch.manual_seed(7)
    made.get_model()  # draws none of the user's random numbers
    assert torch.equal(made.get_model()[0].weight, net({})[0].weight)
    assert made.fit((X, Y), batch_size=4) == estimator().fit((X, Y), batch_size=4)


class Scaled(nn.Linear):
    """Multiply by a number that is no weight."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def test_a_model_is_packed_again_only_where_it_changed() -> None:
    model = Scaled(3, 2)
    made = estimator(model=model)
    made.predict(X)  # the first pickling of a class that travels by value leaves a note in it
    first = made.predict(X)
    packed = made._answering[1].work  # type: ignore[index]
    np.testing.assert_allclose(made.predict(X, batch_size=3), first, rtol=1e-6)
    assert made._answering[1].work is packed  # type: ignore[index]
    model.scale = 2.0
    np.testing.assert_allclose(made.predict(X), first * 2, rtol=1e-6)
    for weights in made.get_state_dict()["models"][0].values():
        weights.mul_(2)
    np.testing.assert_allclose(made.predict(X), first * 4, rtol=1e-6)
    for weights in made.get_state_dict()["models"][0].values():
        weights.data.mul_(2)  # which torch does not count as a change
    np.testing.assert_allclose(made.predict(X), first * 8, rtol=1e-6)
    for weights in made.get_state_dict()["models"][0].values():
        weights.numpy()[...] = weights.numpy() / 2
    np.testing.assert_allclose(made.predict(X), first * 4, rtol=1e-6)
    made.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    assert not made.predict(X).any()
    made.fit((X, Y), batch_size=4)
    assert made.predict(X).any()


def test_a_model_that_answers_with_none_is_told() -> None:
    class Attention(nn.MultiheadAttention):
        def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
            return super().forward(x, x, x, need_weights=False)

    with raises("bad-output"):
        estimator(model=Attention(4, 1)).predict(np.zeros((2, 3, 4), np.float32))


def test_lists_and_tensors_train_and_are_answered() -> None:
    wanted = estimator()
    wanted.fit((X, Y), batch_size=4)
    made = estimator()
    made.fit((X.tolist(), torch.from_numpy(Y)), batch_size=4)
    np.testing.assert_allclose(made.predict(X.tolist()), wanted.predict(torch.from_numpy(X)), rtol=1e-5)


def test_predictions_after_a_fit_are_those_of_the_trained_model() -> None:
    made = estimator()
    made.fit((X, Y), batch_size=4)
    expected = made.get_model().eval()(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(made.predict(X), expected, rtol=1e-5)
    np.testing.assert_allclose(made.predict({"x": X, "y": Y}, batch_size=3), expected, rtol=1e-5)
    frame = pd.DataFrame({"x": list(X)})
    answer = made.predict(frame, feature_cols=["x"], output_cols=["scores"])["scores"]
    np.testing.assert_allclose(np.stack(answer), expected, rtol=1e-5)
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=3, shuffle=True)
    np.testing.assert_allclose(made.predict(loader), expected, rtol=1e-5)


# Wrong arguments


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "32"])
def test_a_batch_size_must_be_positive(size: Any) -> None:
    made = estimator()
    for call in (made.fit, made.evaluate, made.predict):
        with pytest.raises(ArgumentError, match="batch_size must be a positive whole number; got"):
            call((X, Y), batch_size=size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be a positive whole number; got 0"),
        ({"max_steps": 0}, "max_steps must be a positive whole number; got 0"),
        ({"on_nan": "explode"}, "on_nan must be 'raise', 'warn' or 'ignore'; got 'explode'"),
        (
            {"validation_data": pd.DataFrame({"x": [1.0]}), "feature_cols": "x"},
            "Array and Pandas. Pass both in the same",
        ),
    ],
)
def test_wrong_arguments_of_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        estimator().fit((X, Y), **options)


def test_wrong_arguments_of_evaluate_are_named() -> None:
    with pytest.raises(ArgumentError, match="num_steps must be a positive whole number; got -1"):
        estimator().evaluate((X, Y), num_steps=-1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers_per_node": 0}, "workers_per_node must be a positive whole number; got 0"),
        ({"metrics": ["acuracy"]}, "There is no metric named 'acuracy'. Pass one of AUC, Accuracy"),
        ({"metrics": [Accuracy]}, r"Write Accuracy\(\), with the brackets"),
        ({"model": 5}, "the model must be a torch.nn.Module or a function that returns one; got int"),
        ({"backend": "mpi"}, "backend must be one of .*; got backend: 'mpi'"),
        ({"scheduler_creator": 3}, "scheduler_creator must be a function .* that returns a scheduler; got int"),
        ({"training_operator_cls": object}, "training_operator_cls must be a subclass of TrainingOperator.*object"),
        ({"seed": -1}, "seed must be a whole number, 0 or more; got -1"),
    ],
)
def test_wrong_arguments_of_from_torch_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        estimator(**options)


def test_callbacks_must_be_callbacks() -> None:
    made = estimator()
    for call in (made.fit, made.evaluate, made.predict):
        with pytest.raises(ArgumentError, match="callback"):
            call((X, Y), callbacks=[object])


def test_what_training_needs_is_asked_for() -> None:
    with raises("missing-optimizer"):
        estimator(optimizer=None).fit((X, Y))
    with raises("missing-model"):
        estimator(model=None).fit((X, Y))
    lossless = estimator()
    lossless.learner.loss = None
    with raises("missing-loss"):
        lossless.fit((X, Y))
    with raises("missing-model"):
        estimator(model=None).predict(X)


def test_wrong_arguments_are_caught_as_both_families_did() -> None:
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="epochs must be"):
            estimator().fit((X, Y), epochs=0)


def test_validation_data_must_be_of_the_same_kind() -> None:
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))
    for one, other, names in (
        ((X, Y), loader, "Array and Loader"),
        (loader, lambda config: loader, "Loader and Creator"),
        (lambda config: loader, (X, Y), "Creator and Array"),
    ):
        with pytest.raises(
            DataError, match=f"validation_data must be of the same kind as data; got {names}. Pass both"
        ):
            estimator().fit(one, validation_data=other)


def test_a_failed_fit_leaves_the_last_state() -> None:
    made = estimator()
    made.fit((X, Y), batch_size=4)
    before = [tensor.clone() for tensor in weights(made)]
    with pytest.raises(Exception, match="the loss became"):
        made.fit((X * np.nan, Y), batch_size=4)
    assert all(map(torch.equal, weights(made), before))
    assert made.fit((X, Y), batch_size=4)[0]["epoch"] == 2


# What a fit leaves behind


def test_the_history_grows_with_every_fit() -> None:
    made = estimator()
    assert len(made.history) == 0
    lines = made.fit((X, Y), epochs=2, batch_size=4) + made.fit((X, Y), epochs=1, batch_size=5)
    assert list(made.history) == lines and made.history[-1]["epoch"] == 3
    assert len(made.history.losses) == 3 + 3 + 2
    assert made.history.losses[5] == pytest.approx(lines[1]["last_train_loss"])
    with pytest.raises(ArgumentError, match="on_nan"):
        made.fit((X, Y), on_nan="?")
    assert len(made.history) == 3


def test_summaries_have_a_value_a_step_and_a_validation_an_epoch(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made = estimator(metrics=[Accuracy()], optimizer=adam)
    assert made.get_train_summary("Loss") is None and made.get_validation_summary("Accuracy") is None
    made.set_tensorboard(str(tmp_path), "mine")
    lines = made.fit((X, Y), epochs=2, batch_size=4, validation_data=(X, Y))
    lines += made.fit((X, Y), epochs=1, batch_size=4, validation_data=(X, Y))
    losses, rates = made.get_train_summary("Loss"), made.get_train_summary("LearningRate")
    assert [step for step, _, _ in losses] == list(range(1, 10))
    assert [value for _, value, _ in losses] == pytest.approx(made.history.losses, rel=1e-6)
    assert [value for _, value, _ in rates] == pytest.approx([0.05] * 9)
    assert [time for _, _, time in losses] == sorted(time for _, _, time in losses)
    assert [step for step, _, _ in made.get_train_summary("Throughput")] == [3, 6, 9]
    validated = made.get_validation_summary("Accuracy")
    assert [(step, value) for step, value, _ in validated] == [
        (3 * number, pytest.approx(line["val_accuracy"])) for number, line in enumerate(lines, 1)
    ]
    assert [value for _, value, _ in made.get_validation_summary("Loss")] == pytest.approx(
        [line["val_loss"] for line in lines], rel=1e-6
    )
    with raises("unknown-tag", match="'Nope'"):
        made.get_train_summary("Nope")


def test_a_summary_that_nobody_asked_for_does_not_fail_a_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    monkeypatch.setattr(TorchEstimator, "_dated", True)  # as with the backend bigdl
    made = estimator(model_dir=str(tmp_path / "file" / "inside"))
    assert len(made.fit((X, Y), epochs=1, batch_size=4)) == 1
    assert "no summary was written under" in caplog.text


def test_a_state_dict_knows_its_steps_so_that_summaries_go_on(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    made = estimator(optimizer=adam)
    made.set_tensorboard(str(tmp_path), "mine")
    made.fit((X, Y), epochs=1, batch_size=4)
    state = made.get_state_dict()
    assert (state["epoch"], state["steps"]) == (1, 3)
    made.load_state_dict(state)
    made.fit((X, Y), epochs=1, batch_size=4)
    assert [step for step, _, _ in made.get_train_summary("Loss")] == list(range(1, 7))


def test_checkpoints_of_limited_steps_are_kept_and_loaded(tmp_path: Path) -> None:
    made, short = estimator(model_dir=str(tmp_path)), estimator()
    with raises("missing-model-dir"):
        short.fit((X, Y), checkpoint_trigger=SeveralIteration(2))
    lines = made.fit((X, Y), batch_size=4, max_steps=5, checkpoint_trigger=SeveralIteration(2))  # 3 steps an epoch
    assert [(line["epoch"], line["batch_count"]) for line in lines] == [(1, 3), (2, 2)]
    run = newest_run(str(tmp_path))
    assert run is not None and versions(run) == [2, 4]
    assert Estimator.latest_checkpoint(str(tmp_path)) == path_of(run, 4)
    short.fit((X, Y), batch_size=4, max_steps=2)
    loaded = estimator().load_orca_checkpoint(str(tmp_path), version=2)
    assert same_weights(loaded, short)
    with raises("missing-checkpoint"):
        estimator().load_orca_checkpoint(str(tmp_path), version=3)
    long = estimator()
    assert long.fit((X, Y), batch_size=4, max_steps=5) == lines  # checkpoints change nothing
    assert same_weights(made, long)
    made.fit((X, Y), batch_size=4, max_steps=6, checkpoint_trigger=SeveralIteration(1), keep_checkpoints=2)
    assert versions(newest_run(str(tmp_path)) or "") == [10, 11]


def test_a_fit_may_be_given_other_metrics() -> None:
    made = estimator(metrics=[Accuracy()])
    (line,) = made.fit((X, Y), validation_data=(X, Y), validation_methods=[shift])
    assert set(line) == KEYS | {"val_loss", "val_shift", "val_num_samples"}
    (line,) = made.fit((X, Y), validation_data=(X, Y))
    assert "val_accuracy" in line and "val_shift" not in line


def test_the_initialization_hook_is_called_before_anything_else(tmp_path: Path) -> None:
    path = str(tmp_path / "order")

    def note(word: str) -> None:
        with open(path, "a") as file:
            file.write(f"{word} ")

    def watched(config: dict[str, Any]) -> nn.Module:
        note("model")
        return net(config)

    made = estimator(watched, initialization_hook=lambda: note("hook"))
    made.fit((X, Y))
    made.evaluate((X, Y))
    assert Path(path).read_text() == "hook model hook model "


# Several outputs


class TwoHeads(nn.Module):
    """Tell a class and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.size = nn.Linear(3, 2).double(), nn.Linear(3, 1).double()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kind(x), self.size(x)


def both(kind: Any, size: Any, true_kind: Any, true_size: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(kind, true_kind.long()) + nn.functional.mse_loss(size, true_size)


def test_two_outputs_are_compared_with_two_targets() -> None:
    sizes = X.sum(axis=1, keepdims=True).astype(np.float64)
    made = estimator(lambda config: TwoHeads(), loss=both)
    assert isinstance(made.predict(X), tuple)
    with torch.no_grad():
        outputs = [torch.from_numpy(part) for part in made.predict(X)]
        before = float(both(*outputs, torch.from_numpy(Y), torch.from_numpy(sizes)))
    assert made.evaluate((X, (Y, sizes)), batch_size=N)["val_loss"] == pytest.approx(before)
    lines = made.fit((X, (Y, sizes)), epochs=3, batch_size=N, validation_data=(X, (Y, sizes)))
    assert lines[0]["train_loss"] == pytest.approx(before)
    kinds, numbers = made.predict(X)
    assert kinds.shape == (N, 2) and numbers.shape == (N, 1)
    after = both(*map(torch.from_numpy, (kinds, numbers, Y, sizes)))
    assert lines[-1]["val_loss"] == pytest.approx(float(after))
    frame = pd.DataFrame({"x": list(X), "kind": Y, "size": sizes[:, 0]})
    columns = {"feature_cols": ["x"], "label_cols": ["kind", "size"]}
    again = estimator(lambda config: TwoHeads(), loss=both)
    history = again.fit(frame, epochs=3, batch_size=N, **columns)  # labels of one dimension find their outputs
    assert [line["train_loss"] for line in history] == pytest.approx([line["train_loss"] for line in lines])
    answers = made.predict(frame, feature_cols=["x"], output_cols=["k", "s"])
    np.testing.assert_allclose(np.stack(answers["k"]), kinds)


# Several workers, on this machine


def smooth(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def sharded_estimator(model: Any = smooth, optimizer: Any = adam, workers: int = 2, **options: Any) -> Estimator:
    return Estimator.from_torch(
        model=model,
        optimizer=optimizer,
        loss=nn.CrossEntropyLoss(),
        metrics=[Accuracy()],
        backend="local",
        workers_per_node=workers,
        seed=7,
        shard_model=True,
        use_tqdm=False,
        **options,
    )


def test_a_sharded_model_learns_what_a_whole_one_does() -> None:
    data = TensorDataset(torch.from_numpy(X.astype(np.float64)), torch.from_numpy(Y))  # all ranks see the same batches
    how = {"epochs": 2, "batch_size": 3, "validation_data": data}  # the last step has one row: a rank has none
    sharded = sharded_estimator(clip_norm=0.5)
    whole = estimator(smooth, metrics=[Accuracy()], clip_norm=0.5)
    for line, other in zip(sharded.fit(data, **how), whole.fit(data, **how), strict=True):
        assert line == pytest.approx(other, rel=1e-9)
    for one, other in zip(weights(sharded), weights(whole), strict=True):
        assert type(one) is torch.Tensor
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sharded.predict(X), whole.predict(X), rtol=1e-9)
    later = estimator(smooth, clip_norm=0.5)
    later.load_state_dict(sharded.get_state_dict())  # the optimizer's state too fits any number of workers
    assert later.fit(data, batch_size=3)[0] == pytest.approx(whole.fit(data, batch_size=3)[0], rel=1e-9)


def anonymous() -> int:
    """Return the bytes that this process holds in memory of its own."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


class Scales(Callback):
    """Weigh a rank: how much it holds at most, above what it held before its model was built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def watch() -> None:
        held = vars(sys.modules["orca"])["_held"] = [anonymous()] * 2  # before, and at most

        def look() -> None:
            while True:
                held[1] = max(held[1], anonymous())
                time.sleep(0.002)

        threading.Thread(target=look, daemon=True).start()

    def after_run(self, runner: Any) -> None:
        before, most = vars(sys.modules["orca"])["_held"]
        (self.folder / f"{runner.rank}.{uuid.uuid4().hex}").write_text(str(most - before))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(1536), nn.Linear(1536, 1536)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(self.norm(x)))


def wide(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 1536), *[Wide() for _ in range(16)], nn.Linear(1536, 2))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_state_of_a_sharded_model_stays_where_checkpoints_are(tmp_path: Path) -> None:
    data = TensorDataset(torch.from_numpy(X.astype(np.float64)), torch.from_numpy(Y))
    folder = str(tmp_path / "models")

    scheduler = {"scheduler_creator": lambda optimizer, config: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)}

    def sharded() -> Estimator:
        return sharded_estimator(model_dir=folder, **scheduler)

    def same(one: Estimator, other: Estimator) -> None:
        for mine, theirs in zip(weights(one), weights(other), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)

    whole, made = estimator(smooth, metrics=[Accuracy()], **scheduler), sharded()
    for epochs in (2, 1):
        lines, others = (one.fit(data, epochs=epochs, batch_size=3) for one in (made, whole))
        for line, other in zip(lines, others, strict=True):
            assert line == pytest.approx(other, rel=1e-9)
        same(made, whole)
        assert len(pickle.dumps(made._state.to_send())) < 2000  # where it is, not what it is
    steps = made._state.steps
    assert made._state.path == path_of(newest_run(folder), steps)
    assert made.evaluate(data, batch_size=3) == pytest.approx(whole.evaluate(data, batch_size=3), rel=1e-9)
    np.testing.assert_allclose(made.predict(X), whole.predict(X), rtol=1e-9)

    later = sharded().load(made._state.path)  # under model_dir: it need not travel
    assert later._state.path
    away = sharded().load(made.save(str(tmp_path / "away")))
    assert away._state.path is None
    again = sharded()
    assert again.fit(data, epochs=1, batch_size=3, resume=True) == lines  # nothing is left to be done
    assert again._state.output == made._state.output is not None  # and what is known stays known
    expected = whole.fit(data, batch_size=3)[0]
    for one in (later, away, again):
        assert one.fit(data, batch_size=3)[0] == pytest.approx(expected, rel=1e-9)
        same(one, whole)


class Dies(Callback):
    """Kill rank 1 in the midst of its second epoch, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == 1 and runner.global_step == 6 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_sharded_model_goes_on_from_its_stored_state_when_a_worker_dies(tmp_path: Path) -> None:
    data = TensorDataset(torch.from_numpy(X.astype(np.float64)), torch.from_numpy(Y))
    made, whole = sharded_estimator(model_dir=str(tmp_path / "models")), estimator(smooth)
    mark = tmp_path / "died"
    lines = made.fit(
        data, epochs=3, batch_size=3, callbacks=[Dies(mark)], max_failures=1, checkpoint_trigger=SeveralIteration(3)
    )
    assert mark.exists()
    for line, other in zip(lines, whole.fit(data, epochs=3, batch_size=3), strict=True):
        assert line == pytest.approx(other, rel=1e-9)
    for one, other in zip(weights(made), weights(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_a_state_that_only_workers_see_is_named_with_its_place(tmp_path: Path) -> None:
    made = estimator(model_dir=str(tmp_path))
    words = (
        f"the fit is done, but its state, which the first worker left in {tmp_path}/run, cannot be read.*storage that"
    )
    with pytest.raises(OrcaError, match=words):
        made._left_in(f"{tmp_path}/run", 7)


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_no_worker_holds_a_sharded_model_as_a_whole(tmp_path: Path) -> None:
    made = sharded_estimator(
        wide,
        lambda model, config: torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9),
        workers=4,
        model_dir=str(tmp_path / "models"),
        initialization_hook=Scales.watch,
    )
    (results := tmp_path / "told").mkdir()
    for _ in range(2):  # from a creator, then from the state before
        made.fit((X, Y), epochs=1, batch_size=8, callbacks=[Scales(results)])
    made.evaluate((X, Y), batch_size=8, callbacks=[Scales(results)])
    weighed = sorted((path.name, int(path.read_text())) for path in results.iterdir())
    assert len(weighed) == 12
    whole = 4 * sum(param.numel() for param in wide({}).parameters())
    needed = 3 * whole  # weights, gradients and momentum
    assert whole > 140e6
    told_of = [f"rank {name[0]}: {grown / 1e6:.0f} MB" for name, grown in weighed]
    assert max(grown for _, grown in weighed) < 0.6 * needed, told_of


# Several workers, on Spark


def test_arrays_train_on_spark_and_every_worker_may_tell_its_own(spark: Any) -> None:
    made = Estimator.from_torch(
        model=net, optimizer=adam, loss=nn.CrossEntropyLoss(), metrics=[Accuracy()], workers_per_node=2, seed=7
    )
    assert made.backend.engine == "spark"
    lines = made.fit((X, Y), epochs=2, batch_size=5, reduce_results=False, validation_data=(X, Y), profile=True)
    assert [len(workers) for workers in lines] == [2, 2]
    for number, epoch in enumerate(lines):
        assert [set(line) for line in epoch] == [KEYS | {"val_loss", "val_accuracy", "val_num_samples", "profile"}] * 2
        assert [line["num_samples"] for line in epoch] == [5, 5]
        assert [line["val_num_samples"] for line in epoch] == [5, 5]
        assert {(line["epoch"], line["batch_count"]) for line in epoch} == {(number + 1, 2)}
        assert epoch[0]["train_loss"] != epoch[1]["train_loss"]

    own = made.evaluate((X, Y), batch_size=5, reduce_results=False)
    whole = made.evaluate((X, Y), batch_size=5)
    assert [set(stats) for stats in own] == [{"num_samples", "val_loss", "Accuracy"}] * 2
    assert whole["num_samples"] == sum(stats["num_samples"] for stats in own) == N
    assert whole["val_loss"] == pytest.approx(sum(stats["val_loss"] * 5 for stats in own) / N)

    model = made.get_model().eval()
    np.testing.assert_allclose(made.predict(X), model(torch.from_numpy(X)).detach(), rtol=1e-5)
    with pytest.raises(LossNotFinite, match="the loss became nan at step 1 of epoch 3"):
        made.fit((X * np.nan, Y), batch_size=5)
    assert made.get_state_dict()["epoch"] == 2
    made.shutdown()
    assert made.predict(X[:1]).shape == (1, 2)
