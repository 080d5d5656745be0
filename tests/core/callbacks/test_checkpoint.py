from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from core.callbacks.fitting import STEPS, Say, difference, estimator, fit, resumed, weights
from orca import Estimator
from orca.callbacks import Callback, EarlyStopping, ModelCheckpoint
from orca.errors import ArgumentError, CallbackFailed
from orca.triggers import SeveralIteration


class Fail(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def after_train_epoch(self, runner: Any) -> None:
        if runner.epochs == self.epoch:
            raise RuntimeError("the power is gone")


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("test-{epoch}", {}, ["last", "test-epoch=1", "test-epoch=2", "test-epoch=3"]),
        ("test-{epoch}.ckpt", {"interval": 2}, ["last", "test-epoch=2"]),
        ("{epoch:03d}-{number:.1f}", {"interval": 3}, ["epoch=003-number=2.0", "last"]),
        ("{iter}", {"by_epoch": False, "interval": 5}, ["iter=10", "iter=5", "last"]),
        ("", {"by_epoch": False, "interval": 6}, ["iter=12", "iter=6", "last"]),
        ("", {"interval": 2}, ["epoch=2", "last"]),
        ("", {}, ["last"]),
        ("same", {"interval": 1}, ["last", "same"]),
        ("same", {}, ["last"]),
        ("{epoch}", {"monitor": "number", "save_best_only": True}, ["epoch=1", "epoch=2", "last"]),
        ("{epoch}", {"monitor": "number", "mode": "max", "save_best_only": True}, ["epoch=1", "last"]),
        ("", {"monitor": "number", "save_best_only": True}, ["best", "last"]),
    ],
)
def test_files_are_named_and_written_as_asked(
    tmp_path: Path, name: str, options: dict[str, Any], expected: list[str]
) -> None:
    fit(estimator(), Say("number", 3, 1, 2), ModelCheckpoint(f"{tmp_path}/{name}", **options), epochs=3)
    assert names(tmp_path) == [f"{each}.ckpt" for each in expected]


def test_best_file_is_of_an_epoch_that_was_validated(tmp_path: Path) -> None:
    seldom = {"valid": True, "validation_trigger": SeveralIteration(2 * STEPS)}  # after every second epoch
    fit(estimator(), ModelCheckpoint(f"{tmp_path}/{{epoch}}", save_best_only=True), epochs=3, **seldom)
    assert names(tmp_path) == ["epoch=2.ckpt", "last.ckpt"]


def test_best_file_has_the_weights_of_the_best_epoch(tmp_path: Path) -> None:
    best = estimator()
    fit(best, epochs=2)
    checkpoint = ModelCheckpoint(tmp_path / "best", monitor="number", mode="min", save_best_only=True)
    fit(estimator(), Say("number", 3, 1, 2), checkpoint, epochs=3)
    loaded = estimator().load_checkpoint(str(tmp_path / "best.ckpt"))
    assert difference(weights(loaded), weights(best)) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2])
def test_fit_that_failed_goes_on_from_its_newest_file_as_if_unbroken(tmp_path: Path, ranks: int) -> None:
    unbroken = estimator(ranks)
    expected = fit(unbroken, epochs=4)
    checkpoint = ModelCheckpoint(f"{tmp_path}/run-{{epoch}}")
    with pytest.raises(RuntimeError, match="the power is gone"):
        fit(estimator(ranks), checkpoint, Fail(3), epochs=4)
    # The third was being written when the end came: it is complete, or a draft that the next fit clears away.
    (tmp_path / "run-epoch=3.ckpt").unlink(missing_ok=True)
    newest = Estimator.latest_checkpoint(str(tmp_path))
    assert newest == f"{tmp_path}/run-epoch=2.ckpt"
    est = estimator(ranks)
    est.load_checkpoint(newest)
    stats = fit(est, checkpoint, epochs=2)
    assert [line["epoch"] for line in stats] == [3, 4]
    assert [line["train_loss"] for line in stats] == pytest.approx([line["train_loss"] for line in expected[2:]])
    assert difference(weights(est), weights(unbroken)) < 1e-6
    assert names(tmp_path) == ["last.ckpt", *(f"run-epoch={epoch}.ckpt" for epoch in (1, 2, 3, 4))]


def test_last_file_of_an_earlier_fit_goes_when_there_is_a_newer_one(tmp_path: Path) -> None:
    est = estimator()
    fit(est, ModelCheckpoint(f"{tmp_path}/{{epoch}}"), epochs=2)
    assert ModelCheckpoint.get_latest_checkpoint(tmp_path) == f"{tmp_path}/last.ckpt"
    with pytest.raises(CallbackFailed, match="the power is gone"):
        fit(est, ModelCheckpoint(f"{tmp_path}/{{epoch}}"), Fail(3), epochs=2)
    assert ModelCheckpoint.get_latest_checkpoint(tmp_path) == f"{tmp_path}/epoch=3.ckpt"


def test_newest_file_is_told_by_its_numbers(tmp_path: Path) -> None:
    for name in ("epoch=9.ckpt", "epoch=10.ckpt", "best.ckpt", "epoch=11.ckpt.draft-0a1b2c3d", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "epoch=12.ckpt").mkdir()  # of Keras
    assert ModelCheckpoint.get_latest_checkpoint(str(tmp_path) + "/") == f"{tmp_path}/epoch=10.ckpt"
    estimator().save(f"{tmp_path}/saved")  # which is no checkpoint
    assert Estimator.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/epoch=10.ckpt"


def test_folder_without_a_file_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ArgumentError, match=r"there is no checkpoint \(\*\.ckpt\) in the folder .*Pass the folder"):
            ModelCheckpoint.get_latest_checkpoint(folder)


def test_file_of_a_step_has_its_weights_and_the_epochs_that_were_complete(tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(f"{tmp_path}/{{iter}}", by_epoch=False, interval=STEPS // 2)
    fit(estimator(), checkpoint, epochs=2)
    content = {name: torch.load(tmp_path / name, weights_only=True) for name in names(tmp_path)}
    results = {name.removesuffix(".ckpt"): (state["epoch"], state["steps"]) for name, state in content.items()}
    assert results == {"iter=2": (0, 2), "iter=4": (1, 4), "iter=6": (1, 6), "iter=8": (2, 8), "last": (2, 8)}


def test_weights_alone_leave_the_optimizer_out(tmp_path: Path) -> None:
    est = estimator()
    fit(est, ModelCheckpoint(f"{tmp_path}/", save_weights_only=True))
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert "models" in state and "optimizers" not in state
    loaded = estimator().load_checkpoint(str(tmp_path / "last.ckpt"))
    assert difference(weights(loaded), weights(est)) == 0.0
    assert fit(loaded)[0]["epoch"] == 2


def test_files_go_to_any_file_system_of_fsspec() -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    est = estimator()
    fit(est, ModelCheckpoint(f"{folder}/run-{{epoch}}"), epochs=2)
    items = sorted(path.rsplit("/", 1)[-1] for path in fsspec.filesystem("memory").ls(folder, detail=False))
    assert items == ["last.ckpt", "run-epoch=1.ckpt", "run-epoch=2.ckpt"]
    loaded = estimator().load_checkpoint(ModelCheckpoint.get_latest_checkpoint(folder))
    assert difference(weights(loaded), weights(est)) == 0.0


def test_relative_path_is_one_of_the_drivers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = ModelCheckpoint("some/{epoch}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    fit(estimator(), checkpoint)
    assert names(tmp_path / "some") == ["epoch=1.ckpt", "last.ckpt"]


@pytest.mark.parametrize("first", [True, False])
def test_best_weights_that_were_put_back_are_in_the_last_file(tmp_path: Path, first: bool) -> None:
    pair = [EarlyStopping("number", restore_best_weights=True), ModelCheckpoint(f"{tmp_path}/")]
    est, best = estimator(), estimator()
    fit(est, Say("number", 1, 2), *pair[:: 1 if first else -1], epochs=3)
    fit(best)
    loaded = estimator().load_checkpoint(str(tmp_path / "last.ckpt"))
    assert difference(weights(loaded), weights(est)) == difference(weights(loaded), weights(best)) == 0.0


def test_best_file_stays_the_best_of_a_resumed_fit(tmp_path: Path) -> None:
    files = ModelCheckpoint(f"{tmp_path}/{{epoch}}", monitor="number", mode="min", save_best_only=True)
    est, _ = resumed(tmp_path / "models", 10, Say("number", 2, 1, 3, 0), files, epochs=4)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [
        *("epoch=1.ckpt", "epoch=2.ckpt", "epoch=4.ckpt", "last.ckpt")
    ]
    fit(est, Say("number", 2, 1, 3, 0), files, epochs=4, resume=True)  # complete: its last file is written again
    again = estimator().load_checkpoint(str(tmp_path / "last.ckpt"))
    assert again.get_state_dict()["epoch"] == 4


def test_evaluation_writes_nothing(tmp_path: Path) -> None:
    from core.callbacks.fitting import X, Y

    estimator().evaluate((X, Y), batch_size=6, callbacks=[ModelCheckpoint(f"{tmp_path}/{{epoch}}")])
    assert names(tmp_path) == []


def test_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CallbackFailed, match=r"callback ModelCheckpoint failed in .*could not be written"):
        fit(estimator(), ModelCheckpoint(f"{tmp_path}/file/{{epoch}}"), epochs=2)


def test_unknown_word_in_a_name_is_told(tmp_path: Path) -> None:
    words = r"the name 'x-\{val_loss\}' has \{val_loss\} in it, but there is only epoch, iter"
    with pytest.raises(CallbackFailed, match=words):
        fit(estimator(), ModelCheckpoint(f"{tmp_path}/x-{{val_loss}}"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"interval": 0}, "interval must be a positive whole number, or -1; got 0"),
        ({"monitor": "val_loss"}, "monitor='val_loss' has a meaning with save_best_only=True alone"),
        ({"save_best_only": True, "by_epoch": False}, "save_best_only looks at epochs"),
        ({"save_best_only": True, "mode": "best"}, "mode of ModelCheckpoint must be 'auto', 'min' or 'max'"),
        ({"filepath": 3}, "filepath must be a path; got int"),
    ],
)
def test_wrong_arguments_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        ModelCheckpoint(**options)
