"""The screen: a mistake or a Ctrl-C shows one short traceback, on every engine; all of it where that is asked for."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from monitor.test_progress import Terminal
from orca import Estimator
from orca.metrics import MAE

pytestmark = pytest.mark.timeout(300)
MISTAKE = "return self.second(torch.relu(self.first(x)))"
LIMIT = 40  # lines of everything that a mistake shows

PROGRAM = """
import os, signal, sys, threading, time, traceback
from pathlib import Path

import numpy as np
import torch

from orca import Estimator, OrcaContext, XShards, init_orca_context, set_verbosity, stop_orca_context
from orca.errors import DataError, WorkerFailed

backend = sys.argv[1]
if backend == "spark":
    init_orca_context(cluster_mode="local", cores=2)
elif backend == "ray":
    init_orca_context(runtime="ray", cores=2)

x = np.ones((64, 4), np.float32)
y = x.sum(axis=1, keepdims=True)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(9, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Slow(torch.nn.Linear):
    def forward(self, x):
        Path("began").touch()
        time.sleep(0.05)
        return super().forward(x)


def fit(model, data=(x, y), **columns):
    Estimator.from_torch(
        model=lambda config: model,
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.MSELoss(),
        backend=backend,
        workers_per_node=2,
    ).fit(data, epochs=100, **columns)


def frame(rows):
    return OrcaContext.get_spark_session().createDataFrame(rows, ["f", "y"])


def wrong_size():
    fit(Net())


def nulls():
    if backend == "spark":
        rows = frame([([1.0] * 4, None if i == 7 else 1.0) for i in range(64)])
        fit(torch.nn.Linear(4, 1), rows, feature_cols=["f"], label_cols=["y"])
    else:
        fit(torch.nn.Linear(4, 1), lambda config, batch_size: (np.array([[1.0] * 4, [None] * 4] * 8), y[:16]))


def ragged():
    if backend == "spark":
        rows = frame([([1.0] * (3 if i == 7 else 4), 1.0) for i in range(64)])
        fit(torch.nn.Linear(4, 1), rows, feature_cols=["f"], label_cols=["y"])
    else:
        fit(torch.nn.Linear(4, 1), lambda config, batch_size: (x, y[:-1]))


def interrupted():
    def press():
        while not Path("began").exists():
            time.sleep(0.05)
        time.sleep(0.3)
        print("pressed", time.time())
        os.killpg(0, signal.SIGINT)  # as a terminal does

    threading.Thread(target=press, daemon=True).start()
    fit(Slow(4, 1))


def shards():
    if backend != "local":
        XShards.partition({"x": x}).transform_shard(lambda shard: shard["z"]).collect()


def detailed():
    os.environ["ORCA_DEBUG"] = "1"
    fit(Net())


for act in (wrong_size, nulls, ragged, interrupted, shards, detailed):
    for stream in (sys.stdout, sys.stderr):
        print("=====", act.__name__, file=stream, flush=True)
    try:
        act()
    except BaseException as error:
        print("type", type(error).__name__, isinstance(error, DataError), isinstance(error, WorkerFailed), time.time())
        print("rank", getattr(error, "rank", None), "host", getattr(error, "host", None))
        traceback.print_exc()
for stream in (sys.stdout, sys.stderr):
    print("===== end", file=stream, flush=True)
stop_orca_context()
"""


def sections(text: str) -> dict[str, str]:
    """Return what was shown in each act."""
    parts = re.split(r"^===== (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("backend", ["local", "spark", pytest.param("ray", marks=pytest.mark.full)])
def test_a_mistake_and_an_interrupt_show_one_short_traceback(
    backend: str, run_program: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    pytest.importorskip({"local": "torch", "spark": "pyspark", "ray": "ray"}[backend])
    result = run_program(PROGRAM, args=[backend], env={"ORCA_DEBUG": None}, timeout=200)
    out, err = sections(result.stdout), sections(result.stderr)
    for act in ("wrong_size", "nulls", "ragged", "interrupted"):
        screen = out[act] + err[act]
        assert len(screen.splitlines()) <= LIMIT, act
        assert screen.count("Traceback (most recent call last)") == 1, act
        assert "During handling" not in screen and "direct cause" not in screen and "\tat " not in screen, act
        assert "in fit" in screen and "run_rank" not in screen, act
    for act in ("nulls", "ragged"):
        assert re.search(r"^type DataError True True", out[act], re.MULTILINE), act
        assert re.search(r"^rank [01] host \w", out[act], re.MULTILINE), act
    wrong = err["wrong_size"]
    assert wrong.count(MISTAKE) == 1 and out["wrong_size"].startswith("type WorkerFailed False True")
    *_, said = wrong.partition("orca.errors.WorkerFailed: ")
    assert re.match(r"rank [01] on \S+ failed: RuntimeError: .*shapes cannot be multiplied", said)
    frame, remedy = said.splitlines()[2], said.splitlines()[-1]
    assert re.match(r'  File ".*program\.py", line \d+, in forward', frame)  # the innermost of the user's first
    assert re.match(r"Correct the code at program\.py:\d+", remedy)
    pressed, raised = (
        re.search(r"pressed ([\d.]+)", out["interrupted"]),
        re.search(r"type (\w+) .* ([\d.]+)", out["interrupted"]),
    )
    assert pressed and raised and raised[1] == "KeyboardInterrupt" and float(raised[2]) - float(pressed[1]) < 10
    if backend != "local":
        assert len(err["shards"].splitlines()) <= LIMIT and err["shards"].count("Traceback (most recent") == 1
        *_, said = err["shards"].partition("DataError: transform_shard: the function failed: KeyError: 'z'\n\n")
        assert re.match(r'  File ".*program\.py", line \d+, in <lambda>', said) and "\tat " not in err["shards"]
        assert re.match(r"Correct the code at program\.py:\d+", said.splitlines()[-1])
    assert all(f"in {name}" in err["detailed"] for name in ("forward", "run_rank", "run_through"))
    if backend == "spark":
        assert "TaskSetManager" in err["detailed"]  # its loggers speak again


ON_THE_DRIVER = """
import numpy as np
import torch

from orca import Estimator, init_orca_context

init_orca_context(cluster_mode="local", cores=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
est = Estimator.from_torch(model=model, optimizer=optimizer, loss=torch.nn.MSELoss(), backend="local")
cells = np.empty(2, object)
cells[:] = [np.ones(2), np.ones(3)]
try:
    est.fit((cells, np.ones(2)), epochs=1)
except ValueError as error:
    assert error.rank is None and error.host is None
est.fit((cells, np.ones(2)), epochs=1)
"""


def test_a_program_that_ends_while_spark_still_starts_its_daemon_shows_its_own_error_alone(
    run_program: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    pytest.importorskip("pyspark")
    result = run_program(ON_THE_DRIVER, env={"ORCA_DEBUG": None}, timeout=200, check=False)
    *_, last = result.stderr.splitlines()
    assert result.returncode == 1 and not result.stdout
    assert last.startswith("orca.errors.DataError: the cells of an array")
    assert result.stderr.count("Traceback") == 1 and len(result.stderr.splitlines()) <= 12


class Slow(nn.Module):
    """A model whose steps take long enough for beats within an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.08 if self.training else 0.0)
        return self.layer(x)


def fit_two_epochs() -> None:
    x = np.ones((160, 4), np.float32)
    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    est = Estimator.from_torch(model=model, optimizer=optimizer, loss=nn.MSELoss(), metrics=[MAE()], backend="local")
    est.fit((x, x[:, :1]), epochs=2, batch_size=16, validation_data=(x, x[:, :1]))


RESULTS = r"epoch {}: loss=[\d.e-]+, val_loss=[\d.e-]+, val_mae=[\d.e-]+, [\d.k]+ rows/s, \d+\.\d s"


def test_in_a_terminal_of_80_columns_a_bar_and_then_the_results_of_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(80)
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    fit_two_epochs()
    states = terminal.states
    early = [state for state in states if re.match(r"epoch 1: .* [1-9]/10 \[", state)]  # the loss window is 64 steps
    assert any("loss=" in state and "rows/s=" in state for state in early), states
    assert any(re.search(r"epoch 2: .*loss=.*, rows/s=.*, val_loss=", state) for state in states), states
    for epoch in (1, 2):
        assert sum(bool(re.fullmatch(RESULTS.format(epoch), state)) for state in states) == 1, states
    assert all(len(state) < 80 for state in states)


def test_without_a_terminal_one_info_record_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "orca"):
        fit_two_epochs()
    records = [record for record in caplog.records if record.name == "orca.progress"]
    assert [record.levelno for record in records] == [logging.INFO] * 2
    for epoch, record in enumerate(records, 1):
        assert re.fullmatch(RESULTS.format(epoch), record.getMessage()), record.getMessage()
