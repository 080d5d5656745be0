from __future__ import annotations

import importlib.util
import os
import tempfile
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
from orca.core.metrics import Accuracy
from orca.errors import ArgumentError, DataError, MissingDependency, WorkerFailed

N = 10
X = np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
KEYS = {"num_samples", "epoch", "batch_count", "train_loss", "last_train_loss"}


def net(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, config.get("width", 4)), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2))


def adam(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=config.get("lr", 0.05), betas=(0.8, 0.9))


def shift(output: Any, target: Any) -> float:
    """Be a metric of the user's own."""
    return float(target.sum()) + len(output)


class Alone(Estimator):
    """Be an Estimator whose one rank runs in this process."""

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


def test_a_profile_tells_where_time_went() -> None:
    made = estimator()
    (line,) = made.fit((X, Y), batch_size=4, profile=True, validation_data=(X, Y))
    steps = {f"mean_{name}_s" for name in ("data", "fwd", "bwd", "optimizer", "eval_fwd", "train_epoch")}
    profile = line["profile"]
    assert set(profile) == steps | {"ranks"}
    assert [set(own) for own in profile["ranks"]] == [steps]
    assert all(profile[name] == profile["ranks"][0][name] > 0 for name in steps)
    assert profile["mean_train_epoch_s"] > profile["mean_fwd_s"]
    evaluated = made.evaluate((X, Y), profile=True)["profile"]
    assert evaluated["mean_eval_fwd_s"] > 0
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
    assert set(state) == {"epoch", "models", "optimizers", "schedulers"}
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
    with pytest.raises(ArgumentError, match=r"If you trust it, call load\(path, weights_only=False\)"):
        bare.load(path)
    bare.load(path, loss=nn.NLLLoss(), weights_only=False)
    np.testing.assert_array_equal(bare.predict(X), made.predict(X))
    assert isinstance(bare.learner.loss, nn.NLLLoss)
    before = weights(bare)[0].clone()
    bare.fit((X, Y))
    assert not torch.equal(weights(bare)[0], before)
    mine = net({})
    bound = estimator(mine, torch.optim.Adam(mine.parameters())).load(path, weights_only=False)
    with pytest.raises(ArgumentError, match="You must provide the optimizer for train"):
        bound.fit((X, Y))


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
        ({"metrics": ["accuracy"]}, r"Only orca metrics and customized functions are supported, but get str"),
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


@pytest.mark.skipif(importlib.util.find_spec("horovod") is not None, reason="Horovod is installed here")
def test_horovod_says_how_to_get_it() -> None:
    with pytest.raises(
        MissingDependency, match="needs Horovod with its binding for torch, which is not installed"
    ) as told:
        estimator(backend="horovod")
    assert "backend='ray'" in str(told.value)


def test_callbacks_must_be_callbacks() -> None:
    made = estimator()
    for call in (made.fit, made.evaluate, made.predict):
        with pytest.raises(ArgumentError, match="callback"):
            call((X, Y), callbacks=[object])


def test_what_training_needs_is_asked_for() -> None:
    with pytest.raises(ArgumentError, match="You must provide the optimizer for train"):
        estimator(optimizer=None).fit((X, Y))
    with pytest.raises(ArgumentError, match="there is no model to train"):
        estimator(model=None).fit((X, Y))
    lossless = estimator()
    lossless.learner.loss = None
    with pytest.raises(ArgumentError, match="You must provide the loss for train"):
        lossless.fit((X, Y))
    with pytest.raises(ArgumentError, match="there is no model. Pass model= to from_torch"):
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
    with pytest.raises(WorkerFailed, match="LossNotFinite: the loss became nan at step 1 of epoch 3"):
        made.fit((X * np.nan, Y), batch_size=5)
    assert made.get_state_dict()["epoch"] == 2
    made.shutdown()
    assert made.predict(X[:1]).shape == (1, 2)
