"""Storage that is damaged, away, or of one machine alone: a fit goes on from a whole checkpoint, or says why not."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.test_resume import BATCH, Trouble, data, estimator
from orca.callbacks import Callback
from orca.errors import ArgumentError, OrcaError, WorkerFailed
from orca.storage.checkpoints import newest_run, versions
from orca.triggers import SeveralIteration

pytestmark = pytest.mark.timeout(240)
STEPS = 8  # of an epoch, as in test_resume


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the model_dir of a fit of one epoch that kept a checkpoint after the steps 3, 6 and 8."""
    folder = tmp_path_factory.mktemp("kept")
    estimator(ranks=1, model_dir=str(folder)).fit(data(), 1, BATCH, checkpoint_trigger=SeveralIteration(3))
    assert versions(newest_run(str(folder)) or "") == [3, 6]
    return folder


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept, tmp_path / "models"))


def rewritten(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def replaced_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def other_shapes(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = folder / "weights.safetensors"
    save_file({name: np.zeros((7, 7)) for name in load_file(file)}, file)


def other_numbers(content: bytes) -> bytes:
    return content[:-9] + bytes(255 - byte for byte in content[-9:])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda folder: rewritten(folder / "weights.safetensors", lambda content: content[:-20]),
    "empty": lambda folder: rewritten(folder / "optimizer.safetensors", lambda content: b""),
    "missing": lambda folder: (folder / "weights.safetensors").unlink(),
    "without its marker": lambda folder: (folder / "state.json").unlink(),
    "garbage": lambda folder: rewritten(folder / "weights.safetensors", lambda content: os.urandom(len(content))),
    "other numbers": lambda folder: rewritten(folder / "weights.safetensors", other_numbers),
    "no JSON": lambda folder: rewritten(folder / "state.json", lambda content: content[:40]),
    "other JSON": lambda folder: rewritten(folder / "state.json", lambda content: b"[[2]]"),
    "deep JSON": lambda folder: rewritten(folder / "state.json", lambda content: b"[" * 100_000 + b"]" * 100_000),
    "changed JSON": lambda folder: rewritten(
        folder / "state.json", lambda content: content.replace(b'"steps": 6', b'"steps": 7', 1)
    ),
    "other shapes": other_shapes,
    "unreadable": lambda folder: replaced_by_a_folder(folder / "weights.safetensors"),
}


def run_of(models: Path) -> Path:
    return Path(newest_run(str(models)) or newest_run(str(models), damaged=True) or "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    damage: str, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = run_of(copy) / "orca.6"
    DAMAGES[damage](damaged)
    caplog.set_level(logging.WARNING)
    made = estimator(ranks=1).load_orca_checkpoint(str(copy))
    assert made.get_state_dict()["steps"] == 3
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert said.startswith(f"the checkpoint {damaged} cannot be read and is left out: ")
    with pytest.raises(ArgumentError):
        estimator(ranks=1).load_orca_checkpoint(str(copy), version=6)


@pytest.mark.parametrize("damage", ["truncated", "without its marker"])
def test_a_fit_is_resumed_from_a_whole_checkpoint_or_not_at_all(
    damage: str, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGES[damage](run_of(copy) / "orca.6")
    caplog.set_level(logging.INFO)
    whole = estimator(ranks=1)
    made = estimator(ranks=1, model_dir=str(copy))
    assert made.fit(data(), 1, BATCH, resume=True) == [pytest.approx(each) for each in whole.fit(data(), 1, BATCH)]
    assert re.search(r"resuming the fit in .* after 3 steps", caplog.text)
    run = run_of(copy)
    for version in list(versions(str(run))):
        DAMAGES[damage](run / f"orca.{version}")
    before = sorted(path.name for path in copy.rglob("*"))
    made = estimator(ranks=1, model_dir=str(copy))
    with pytest.raises(OrcaError, match=r"none of the \d checkpoint\(s\) in .*run-000001.* can be read") as raised:
        made.fit(data(), 1, BATCH, resume=True)
    assert str(run) in str(raised.value).splitlines()[0]
    assert sorted(path.name for path in copy.rglob("*")) == before  # nothing trained anew
    with pytest.raises(OrcaError, match=r"none of the \d checkpoint\(s\) in .*run-000001"):
        made.load_orca_checkpoint(str(copy))


class Damaging(Trouble):
    """Damage the newest checkpoint just before the kill."""

    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == 1 and runner.global_step == self.step and os.path.exists(self.mark):
            time.sleep(0.5)  # until it is written
            DAMAGES["truncated"](run_of(Path(self.mark).parent / "models") / "orca.10")
        super().after_train_iter(runner)


def test_a_lost_worker_costs_no_more_than_the_damaged_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    whole, made = estimator(), estimator(model_dir=str(tmp_path / "models"))
    lines = made.fit(
        data(), 2, BATCH, checkpoint_trigger=SeveralIteration(5), callbacks=[Damaging(13, str(mark))], max_failures=1
    )
    assert [pytest.approx(each, rel=1e-9) for each in whole.fit(data(), 2, BATCH, callbacks=[Callback()])] == lines
    assert "orca.10 cannot be read and is left out" in caplog.text and "going on after step 5" in caplog.text


class Outage(Callback):
    """Put a file in the place of the folder of checkpoints, and write down when each step ended."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def after_train_iter(self, runner: Any) -> None:
        run = run_of(Path(self.folder))
        if runner.global_step == 4:
            time.sleep(0.5)  # until the third step is written
            run.rename(run.with_name("away"))
            run.write_text("in the way")
        with open(f"{self.folder}/steps", "a") as steps:
            steps.write(f"{runner.global_step} {time.time()}\n")


def back_soon(folder: Path, seconds: float) -> None:
    while not (folder / "away").exists():
        time.sleep(0.05)
    time.sleep(seconds)
    (file,) = folder.glob("run-*")
    file.unlink()
    (folder / "away").rename(file)


def test_training_goes_on_while_storage_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    threading.Thread(target=back_soon, args=(tmp_path, 3.0), daemon=True).start()
    made = estimator(ranks=1, model_dir=str(tmp_path))
    began = time.time()
    lines = made.fit(data(), 2, BATCH, checkpoint_trigger=SeveralIteration(1), callbacks=[Outage(str(tmp_path))])
    ended = time.time()
    times = dict(map(float, line.split()) for line in (tmp_path / "steps").read_text().splitlines())
    assert times[16] - times[4] < 2.5 and ended - times[4] > 2.5, (began, times, ended)
    assert re.search(r"checkpoint .*orca\.\d+ could not be written \(.*; trying again in 1 s", caplog.text)
    assert versions(newest_run(str(tmp_path)) or "")[-1] == 2 * STEPS
    assert lines == estimator(ranks=1).fit(data(), 2, BATCH, callbacks=[Callback()])
    state = estimator(ranks=1).load_orca_checkpoint(str(tmp_path)).get_state_dict()
    for name, value in made.get_state_dict()["models"][0].items():
        np.testing.assert_array_equal(state["models"][0][name], value)


def test_storage_that_stays_away_is_one_error_that_names_it(tmp_path: Path) -> None:
    made = estimator(ranks=1, model_dir=str(tmp_path), storage_timeout=1.0)
    with pytest.raises(OrcaError) as raised:
        made.fit(data(), 2, BATCH, checkpoint_trigger=SeveralIteration(1), callbacks=[Outage(str(tmp_path))])
    first = str(raised.value).splitlines()[0]
    assert re.search(rf"{tmp_path}/run-.* could not be written in 1 s \(storage_timeout\): \w+Error", first), first


def hide(folder: str) -> None:
    """Put a disk of this process alone over a folder, as another machine would have it."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private = 0x20000, 0x44000
    assert not libc.unshare(new_mounts) and not libc.mount(None, b"/", None, private, None)
    assert not libc.mount(b"none", folder.encode(), b"tmpfs", 0, None), os.strerror(ctypes.get_errno())


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a disk of its own")
def test_a_folder_that_rank_0_does_not_share_with_the_driver_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path)
    made = estimator(ranks=1, model_dir=folder, initialization_hook=lambda: hide(folder))
    says = rf"model_dir must be on storage that the driver and all workers share: the folder {folder}/run-"
    with pytest.raises(WorkerFailed, match=says) as raised:
        made.fit(data(), 1, BATCH, checkpoint_trigger=SeveralIteration(3))
    assert isinstance(raised.value, ArgumentError)
