from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from core.callbacks.fitting import STEPS, estimator, fit
from orca.callbacks import Callback, TensorBoardCallback
from orca.errors import ArgumentError, CallbackFailed
from orca.operator import TrainingOperator

pytest.importorskip("tensorboard")


def curves(folder: str) -> dict[str, dict[int, float]]:
    """Return what TensorBoard itself reads: {tag: {step: value}}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Any]:
    folder = f"/{uuid.uuid4().hex}"
    yield lambda: fsspec.filesystem("memory").get(folder, str(tmp_path / "got"), recursive=True), f"memory:/{folder}"
    fsspec.filesystem("memory").rm(folder, recursive=True)


def test_numbers_of_the_epochs_are_curves(tmp_path: Path) -> None:
    stats = fit(estimator(), TensorBoardCallback(tmp_path), epochs=2, valid=True)
    scalars = curves(str(tmp_path))
    assert set(scalars) == {"train_loss", "last_train_loss", "val_loss", "lr"}
    for tag in ("train_loss", "val_loss"):
        assert scalars[tag] == pytest.approx({line["epoch"]: line[tag] for line in stats}, rel=1e-6)
    assert scalars["lr"] == pytest.approx({1: 0.05, 2: 0.05})


@pytest.mark.parametrize(("freq", "steps"), [("batch", [*range(1, 2 * STEPS + 1)]), (3, [3, 6])])
def test_numbers_of_steps_are_curves(tmp_path: Path, freq: str | int, steps: list[int]) -> None:
    est = estimator()
    stats = fit(est, TensorBoardCallback(str(tmp_path), freq), epochs=2)
    scalars = curves(str(tmp_path))
    assert list(scalars["batch_loss"]) == list(scalars["lr"]) == steps
    assert list(scalars["batch_loss"].values()) == pytest.approx([est.history.losses[step - 1] for step in steps])
    assert scalars["train_loss"] == pytest.approx({STEPS: stats[0]["train_loss"], 2 * STEPS: stats[1]["train_loss"]})


def test_rate_of_an_operator_that_reads_its_own_data_is_that_of_each_epoch(tmp_path: Path) -> None:
    class Blind(TrainingOperator):
        def train_epoch(self, iterator: Any, info: dict[str, Any]) -> dict[str, Any]:
            self.optimizer.param_groups[0]["lr"] = 0.5 ** (info["epoch_idx"] + 1)
            return {"train_loss": 1.0}

    fit(estimator(training_operator_cls=Blind), TensorBoardCallback(tmp_path), epochs=3)
    assert curves(str(tmp_path))["lr"] == {1: 0.5, 2: 0.25, 3: 0.125}


def test_rank_0_alone_writes(tmp_path: Path) -> None:
    fit(estimator(2), TensorBoardCallback(tmp_path), valid=True)
    assert len(os.listdir(tmp_path)) == 1
    assert list(curves(str(tmp_path))["val_loss"]) == [1]


def test_folder_elsewhere_gets_a_file_an_epoch(tmp_path: Path, remote: Any) -> None:
    fetch, folder = remote
    fit(estimator(), TensorBoardCallback(folder, "batch"), epochs=2)
    fetch()
    assert len(os.listdir(tmp_path / "got")) == 2
    assert list(curves(str(tmp_path / "got"))["batch_loss"]) == [*range(1, 2 * STEPS + 1)]


def test_numbers_are_there_after_a_failure(tmp_path: Path) -> None:
    class Fail(Callback):
        def before_train_epoch(self, runner: Any) -> None:
            if runner.epochs == 2:
                raise RuntimeError("the power is gone")

    with pytest.raises(CallbackFailed, match="the power is gone"):
        fit(estimator(), TensorBoardCallback(tmp_path), Fail(), epochs=2)
    assert list(curves(str(tmp_path))["train_loss"]) == [1]


def test_second_fit_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    est = estimator()
    for _ in range(2):
        fit(est, TensorBoardCallback(tmp_path, "batch", filename_suffix=".mine"))
    assert list(curves(str(tmp_path))["batch_loss"]) == [*range(1, 2 * STEPS + 1)]
    assert all(name.endswith(".mine") for name in os.listdir(tmp_path))


def test_default_folder_is_one_of_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit(estimator(), TensorBoardCallback(comment="-first"))
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-first") and "train_loss" in curves(str(folder))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"freq": "step"}, "freq must be 'epoch', 'batch' or a positive number of steps; got 'step'"),
        ({"freq": 0}, "freq must be 'epoch', 'batch' or a positive number of steps; got 0"),
        ({"logdir": "x"}, "TensorBoardCallback does not know logdir. It takes log_dir, freq"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        TensorBoardCallback(**options)
