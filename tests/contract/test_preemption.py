"""Preemption: a fit that is asked to end keeps the running step, and goes on from it as if nothing had happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract.test_resume import BATCH, EPOCHS, ROWS, check_alike, data, estimator, unbroken
from orca.callbacks import Callback
from orca.errors import WorkerPreempted
from orca.storage.checkpoints import newest_run, versions
from orca.triggers import EveryEpoch

pytestmark = pytest.mark.timeout(240)
STEPS = -(-ROWS // BATCH)


@dataclass
class Asked(Callback):
    """Ask rank 1 to end after so many steps in all, once; write down the steps of rank 0."""

    step: int
    folder: str
    seconds: float = 0.02

    def after_train_iter(self, runner: Any) -> None:
        mark = Path(self.folder, "mark")
        time.sleep(self.seconds)
        if runner.rank == 0:
            with open(f"{self.folder}/steps", "a") as steps:
                steps.write(f"{runner.global_step}\n")
        if runner.rank == 1 and runner.global_step == self.step and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGTERM)


def steps_in(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "steps").read_text().split()]


@pytest.mark.parametrize("backend", ["local", "spark", "ray"])
def test_a_rank_that_is_asked_to_end_costs_no_step(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    if backend != "local":
        pytest.importorskip({"spark": "pyspark", "ray": "ray"}[backend])
        request.getfixturevalue({"spark": "spark", "ray": "ray_context"}[backend])
    made = estimator(backend, model_dir=str(tmp_path / "models"))
    lines = made.fit(
        data(), EPOCHS, BATCH, validation_data=data(), callbacks=[Asked(11, str(tmp_path))], max_failures=1
    )
    check_alike(lines, made, unbroken())
    assert re.search(
        r"rank 1 on \S+ was preempted: its process got SIGTERM\. A checkpoint of step 1\d is in", caplog.text
    )
    assert re.search(r"going on after step 1[12345]\.", caplog.text)
    assert steps_in(tmp_path) == list(range(1, EPOCHS * STEPS + 1))  # none twice


@pytest.mark.parametrize("step", [3, STEPS - 1, STEPS, 2 * STEPS])
def test_a_preempted_fit_is_resumed_at_its_next_step(step: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"validation_data": data(), "checkpoint_trigger": EveryEpoch(), "resume": True}
    made = estimator(model_dir=str(tmp_path / "models"))
    callbacks = [Asked(step, str(tmp_path), seconds=0.1)]
    began = time.monotonic()
    with pytest.raises(WorkerPreempted, match=r"rank 1 on \S+ was preempted: its process got SIGTERM\. A checkpoint"):
        made.fit(data(), EPOCHS, BATCH, callbacks=callbacks, **options)
    assert time.monotonic() - began < 60
    last = steps_in(tmp_path)[-1]
    assert step <= last <= step + 2 and versions(newest_run(str(tmp_path / "models")) or "")[-1] == last
    again = estimator(model_dir=str(tmp_path / "models"))
    check_alike(again.fit(data(), EPOCHS, BATCH, callbacks=callbacks, **options), again, unbroken())
    assert steps_in(tmp_path) == list(range(1, EPOCHS * STEPS + 1))


class AskedAtTheEnd(Callback):
    """Ask rank 1 to end in the last validation."""

    def before_val_epoch(self, runner: Any) -> None:
        if runner.rank == 1 and runner.global_step == EPOCHS * STEPS:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)


def test_a_fit_that_is_asked_to_end_after_its_last_step_is_complete(tmp_path: Path) -> None:
    made = estimator(model_dir=str(tmp_path))
    options: dict[str, Any] = {"validation_data": data(), "checkpoint_trigger": EveryEpoch()}
    check_alike(made.fit(data(), EPOCHS, BATCH, callbacks=[AskedAtTheEnd()], **options), made, unbroken())


def test_a_fit_without_checkpoints_ends_at_once_and_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(
        WorkerPreempted, match=r"rank 1 on \S+ was preempted: its process got SIGTERM\. No checkpoint"
    ) as caught:
        estimator().fit(data(), EPOCHS, BATCH, callbacks=[Asked(3, str(tmp_path))])
    assert "model_dir=" in str(caught.value) and steps_in(tmp_path)[-1] < STEPS


PROGRAM = """
import sys, time
sys.path.insert(0, {tests!r})
from contract.test_preemption import *

if __name__ == "__main__":
    made = estimator({backend!r}, **({{"model_dir": {folder!r} + "/models"}} if {keeps} else {{}}))
    options = {{"checkpoint_trigger": EveryEpoch(), "resume": True}} if {keeps} else {{}}
    callbacks = [Asked(-1, {folder!r}, seconds=0.15)]
    try:
        made.fit(data(), EPOCHS, BATCH, validation_data=data(), callbacks=callbacks, **options)
        print("done", flush=True)
    except KeyboardInterrupt:
        epochs = made.get_state_dict()["epoch"]
        print("epochs", epochs, flush=True)
        callbacks = [Asked(-1, {folder!r}, seconds=0)]
        made.fit(data(), EPOCHS - epochs, BATCH, callbacks=callbacks)
        state = made.get_state_dict()
        print("then", state["epoch"], float(sum(value.sum() for value in state["models"][0].values())), flush=True)
"""


def start(folder: Path, keeps: bool, backend: str = "local") -> subprocess.Popen[str]:
    program = folder / "program.py"
    text = PROGRAM.format(tests=str(Path(__file__).parents[1]), folder=str(folder), keeps=keeps, backend=backend)
    program.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not (folder / "steps").exists() or steps_in(folder)[-1:] < [step]):
        time.sleep(0.02)


@pytest.mark.parametrize("group", [False, True])
def test_a_driver_that_is_asked_to_end_keeps_the_running_step(group: bool, tmp_path: Path) -> None:
    process = start(tmp_path, keeps=True)
    wait_for_step(tmp_path, 5)
    children = psutil.Process(process.pid).children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
    shown = process.communicate(timeout=60)[1]
    assert process.returncode == 143 and "Traceback" not in shown, shown
    assert not psutil.wait_procs(children, timeout=5)[1]
    last = steps_in(tmp_path)[-1]
    assert 5 <= last < STEPS and versions(newest_run(str(tmp_path / "models")) or "") == [last]
    made = estimator(model_dir=str(tmp_path / "models"))
    callbacks = [Asked(-1, str(tmp_path), seconds=0)]
    lines = made.fit(data(), EPOCHS, BATCH, validation_data=data(), callbacks=callbacks, resume=True)
    check_alike(lines, made, unbroken())
    assert steps_in(tmp_path) == list(range(1, EPOCHS * STEPS + 1))


def test_ctrl_c_keeps_the_last_epoch_without_a_folder(tmp_path: Path) -> None:
    process = start(tmp_path, keeps=False)
    wait_for_step(tmp_path, STEPS + 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, shown = process.communicate(timeout=100)
    assert process.returncode == 0, shown
    made = estimator()
    made.fit(data(), EPOCHS, BATCH, callbacks=[Callback()])
    total = float(sum(value.sum() for value in made.get_state_dict()["models"][0].values()))
    epochs, then = re.fullmatch(rf"epochs (\d)\nthen {EPOCHS} (\S+)\n", said).groups()
    assert epochs == "1" and float(then) == pytest.approx(total, rel=1e-12)
    assert f"the Estimator has the weights of the end of epoch 1 ({STEPS} steps)" in shown
