"""How much of the package runs between a call of `fit` and the first batch: the files that one reads to follow it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MOST = 75  # files of the package, on the driver and on the rank

# Read by every Python process of the program. A process notes the files of the package whose functions it calls.
NOTES = """
import os, sys, threading
from inspect import CO_OPTIMIZED

FOLDER = os.environ.get("WALK_FOLDER")
files = set()

def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event != "call" or "/orca/" not in name or name in files or not frame.f_code.co_flags & CO_OPTIMIZED:
        return  # no function: the body of a module or a class
    while (frame := frame.f_back) is not None:
        if frame.f_code.co_name == "<module>" and "/orca/" in frame.f_code.co_filename:
            return  # called while a module of ours is imported
    files.add(name)

def record():
    files.clear()
    threading.setprofile(note)
    sys.setprofile(note)

if FOLDER:
    record()
"""

PROGRAM = """
import json, os, pathlib, threading, time
import numpy as np, torch
from orca import Estimator

FOLDER = pathlib.Path(os.environ["WALK_FOLDER"])

class Model(torch.nn.Linear):
    def forward(self, x):
        import walk_notes
        if not (FOLDER / "driver").exists():
            (FOLDER / "rank.tmp").write_text(json.dumps(sorted(walk_notes.files)))
            (FOLDER / "rank.tmp").rename(FOLDER / "rank")
            while not (FOLDER / "driver").exists():
                time.sleep(0.01)
        return super().forward(x)

def wait_for_the_rank():
    import walk_notes
    while not (FOLDER / "rank").exists():
        time.sleep(0.01)
    files = sorted(walk_notes.files)
    (FOLDER / "driver.tmp").write_text(json.dumps(files))
    (FOLDER / "driver.tmp").rename(FOLDER / "driver")

x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
est = Estimator.from_torch(
    model=lambda config: Model(4, 1), optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=torch.nn.MSELoss(), backend="local", workers_per_node=1,
)
threading.Thread(target=wait_for_the_rank, daemon=True).start()
import walk_notes
walk_notes.record()
est.fit((x, y), epochs=1, batch_size=4)
"""


def test_few_files_run_before_the_first_batch(
    tmp_path: Path, run_program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "walk_notes.py").write_text(NOTES)
    (tmp_path / "sitecustomize.py").write_text("import walk_notes\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    run_program(PROGRAM, env={"WALK_FOLDER": str(tmp_path)})
    files = {file for process in ("driver", "rank") for file in json.loads((tmp_path / process).read_text())}
    names = sorted(name[name.rindex("/orca/") + 1 :] for name in files)
    assert len(names) <= MOST, "\n".join(names)
    assert len(names) == MOST, "fewer than before: lower the number"
