"""Resume: a fit that is interrupted ends as if it had not been, on every engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from orca import Estimator
from orca.callbacks import Callback
from orca.errors import ArgumentError, WorkerFailed, WorkerLost
from orca.storage.checkpoints import newest_run, versions
from orca.triggers import EveryEpoch, MaxEpoch, MaxIteration, MinLoss, SeveralIteration, TriggerOr

pytestmark = pytest.mark.timeout(240)
ROWS, BATCH, EPOCHS = 46, 6, 3  # 8 steps an epoch
ENGINES = ("local", "spark", pytest.param("ray", marks=pytest.mark.full))


def model_creator(config: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 1)).double()


def optimizer_creator(model: nn.Module, config: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def scheduler_creator(optimizer: torch.optim.Optimizer, config: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(5).random((ROWS, 4))
    return x, x.sum(axis=1, keepdims=True)


def estimator(backend: str = "local", ranks: int = 2, seed: int | None = 3, **options: Any) -> Estimator:
    return Estimator.from_torch(
        model=model_creator,
        optimizer=optimizer_creator,
        loss=nn.MSELoss(),
        scheduler_creator=scheduler_creator,
        backend=backend,
        workers_per_node=ranks,
        seed=seed,
        use_tqdm=False,
        **{"ema": 0.9, **options},
    )


@dataclass
class Trouble(Callback):
    """Make trouble on rank 1 after so many steps in all, as long as the mark is there."""

    step: int
    mark: str
    kill: bool = True

    def after_train_iter(self, runner: Any) -> None:
        if runner.rank == 1 and runner.global_step == self.step and os.path.exists(self.mark):
            if self.kill:
                time.sleep(0.3)  # the checkpoint before it is written aside
                os.remove(self.mark)
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("no more")


def unbroken(backend: str = "local", **options: Any) -> tuple[list[Any], dict[str, Any]]:
    made = estimator(backend, **options)
    lines = made.fit(data(), EPOCHS, BATCH, callbacks=[Callback()], validation_data=data())
    return lines, made.get_state_dict()


def check_alike(lines: list[Any], made: Estimator, expected: tuple[list[Any], dict[str, Any]]) -> None:
    state = made.get_state_dict()
    for name in ("models", "averages"):
        for key, value in expected[1][name][0].items():
            np.testing.assert_allclose(state[name][0][key], value, 1e-12, 1e-12)
    momenta = zip(state["optimizers"][0]["state"].values(), expected[1]["optimizers"][0]["state"].values(), strict=True)
    for one, other in momenta:
        np.testing.assert_allclose(one["momentum_buffer"], other["momentum_buffer"], 1e-12, 1e-12)
    assert state["schedulers"] == expected[1]["schedulers"]
    assert state["epoch"] == expected[1]["epoch"] == EPOCHS
    for line, notes in zip(lines, expected[0], strict=True):
        assert line == pytest.approx(notes, rel=1e-9)


def test_validation_mid_epoch_changes_nothing_of_training_and_is_resumed(tmp_path: Path) -> None:
    mark, often = tmp_path / "mark", {"validation_trigger": TriggerOr(EveryEpoch(), SeveralIteration(3))}
    mark.touch()
    whole = estimator()
    lines = whole.fit(data(), EPOCHS, BATCH, callbacks=[Callback()], validation_data=data(), **often)
    broken = estimator(model_dir=str(tmp_path / "models"))
    options = {"validation_data": data(), "checkpoint_trigger": SeveralIteration(5), "resume": True, **often}
    with pytest.raises(WorkerFailed, match="no more"):
        broken.fit(data(), EPOCHS, BATCH, callbacks=[Trouble(13, str(mark), kill=False)], **options)
    mark.unlink()
    resumed = broken.fit(data(), EPOCHS, BATCH, callbacks=[Callback()], **options)  # from step 10, mid-epoch
    validations = [[line.pop("validations") for line in some] for some in (lines, resumed)]
    steps = [[at["step"] for at in line] for line in validations[0]]
    assert steps == [[3, 6, 8], [9, 12, 15, 16], [18, 21, 24]]
    for one, other in zip(*(chain.from_iterable(some) for some in validations), strict=True):
        assert one == pytest.approx(other, rel=1e-9)
    expected = unbroken()  # validated after each epoch alone
    check_alike(lines, whole, expected)
    check_alike(resumed, broken, expected)


@pytest.mark.parametrize("backend", ENGINES)
def test_lost_worker_is_made_up_for(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    if backend != "local":
        pytest.importorskip({"spark": "pyspark", "ray": "ray"}[backend])
        request.getfixturevalue({"spark": "spark", "ray": "ray_context"}[backend])
    expected = unbroken()
    mark = tmp_path / "mark"
    mark.touch()
    made = estimator(backend, model_dir=str(tmp_path / "models"))
    lines = made.fit(
        data(),
        EPOCHS,
        BATCH,
        validation_data=data(),
        checkpoint_trigger=SeveralIteration(5),
        callbacks=[Trouble(13, str(mark))],
        max_failures=1,
    )
    check_alike(lines, made, expected)
    assert not mark.exists()
    assert "Failure 1 of the 1 that max_failures allows: going on after step 10." in caplog.text
    assert "rank 1 on" in caplog.text


@pytest.mark.full
def test_without_checkpoints_the_fit_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    made = estimator()
    lines = made.fit(data(), EPOCHS, BATCH, validation_data=data(), callbacks=[Trouble(11, str(mark))], max_failures=2)
    check_alike(lines, made, unbroken())
    assert "going on from where this fit began" in caplog.text


def test_failures_beyond_the_limit_are_raised(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    with pytest.raises(WorkerLost, match="rank 1 on"):
        estimator().fit(data(), 1, BATCH, callbacks=[Trouble(3, str(mark))])


def test_an_error_in_user_code_is_not_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    with pytest.raises(WorkerFailed, match="the callback Trouble failed in after_train_iter: RuntimeError: no more"):
        estimator().fit(data(), 1, BATCH, callbacks=[Trouble(3, str(mark), kill=False)], max_failures=5)


@pytest.mark.parametrize("seed", [3, pytest.param(None, marks=pytest.mark.full)])
def test_interrupted_program_goes_on_where_it_was(tmp_path: Path, seed: int | None) -> None:
    mark, folder = tmp_path / "mark", str(tmp_path / "models")
    mark.touch()
    arguments: dict[str, Any] = {"validation_data": data(), "checkpoint_trigger": SeveralIteration(5), "resume": True}
    first = estimator(model_dir=folder, seed=seed)
    with pytest.raises(WorkerFailed, match="no more"):
        first.fit(data(), EPOCHS, BATCH, callbacks=[Trouble(13, str(mark), kill=False)], **arguments)
    mark.unlink()
    assert 5 in versions(newest_run(folder) or "")  # the next may have been on its way to the disk
    torch.manual_seed(99)  # another program, with another seed of its own
    again = estimator(model_dir=folder, seed=seed)
    lines = again.fit(data(), EPOCHS, BATCH, callbacks=[Callback()], **arguments)
    check_alike(lines, again, unbroken(seed=first.seed))
    done = estimator(model_dir=folder, seed=seed)
    check_alike(done.fit(data(), EPOCHS, BATCH, **arguments), done, unbroken(seed=first.seed))  # nothing was left


@pytest.mark.full
def test_killed_program_goes_on_where_it_was(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import sys, time
            sys.path.insert(0, {str(Path(__file__).parents[1])!r})
            from contract.test_resume import *

            class Slow(Callback):
                def after_train_iter(self, runner):
                    time.sleep(0.15)

            made = estimator(model_dir=sys.argv[1])
            made.fit(data(), EPOCHS, BATCH, validation_data=data(), checkpoint_trigger=SeveralIteration(3), resume=True,
                     callbacks=[Slow()])
            """
        )
    )
    folder = tmp_path / "models"
    process = subprocess.Popen([sys.executable, str(program), str(folder)], start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and versions(newest_run(str(folder)) or str(folder))[-1:] < [9]:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = versions(newest_run(str(folder)) or "")
    assert 9 <= kept[-1] < 24
    made = estimator(model_dir=str(folder))
    lines = made.fit(data(), EPOCHS, BATCH, validation_data=data(), checkpoint_trigger=SeveralIteration(3), resume=True)
    check_alike(lines, made, unbroken())


def test_checkpoints_are_kept_by_triggers_and_loaded_by_version(tmp_path: Path) -> None:
    made = estimator(model_dir=str(tmp_path))
    lines = made.fit(data(), 3, BATCH, checkpoint_trigger=EveryEpoch(), keep_checkpoints=2)
    run = newest_run(str(tmp_path))
    assert run is not None and versions(run) == [16, 24]
    loaded = estimator().load_orca_checkpoint(str(tmp_path), version=16)
    assert loaded.get_state_dict()["epoch"] == 2
    (line,) = loaded.fit(data(), 1, BATCH)
    assert line == pytest.approx(lines[2], rel=1e-12)
    assert estimator().load_orca_checkpoint(run).get_state_dict()["epoch"] == 3
    assert Estimator.latest_checkpoint(str(tmp_path)).endswith("orca.24")
    with pytest.raises(ArgumentError, match=r"there is no checkpoint 8 in .*; there are orca.16, orca.24"):
        loaded.load_orca_checkpoint(str(tmp_path), version=8)


@pytest.mark.full
def test_end_triggers_stop_a_fit() -> None:
    assert len(estimator().fit(data(), 9, BATCH, end_trigger=MaxEpoch(2))) == 2
    lines = estimator().fit(data(), 9, BATCH, end_trigger=MaxIteration(11))
    assert [line["batch_count"] for line in lines] == [8, 3]
    losses = [line["train_loss"] for line in estimator().fit(data(), 9, BATCH)]
    below = [line["train_loss"] for line in estimator().fit(data(), 9, BATCH, end_trigger=MinLoss(losses[3] * 1.0001))]
    assert below == losses[: 1 + next(at for at, loss in enumerate(losses) if loss < losses[3] * 1.0001)]


def test_checkpoints_need_a_place_and_a_trigger() -> None:
    with pytest.raises(ArgumentError, match="checkpoints need a place to go to. Pass model_dir= to the Estimator"):
        estimator().fit(data(), checkpoint_trigger=EveryEpoch())
    with pytest.raises(ArgumentError, match=r"a trigger must come from orca.triggers"):
        estimator(model_dir="/nowhere").fit(data(), checkpoint_trigger="every epoch")
    with pytest.raises(ArgumentError, match="max_failures must be a whole number, 0 or more; got -1"):
        estimator().fit(data(), max_failures=-1)
