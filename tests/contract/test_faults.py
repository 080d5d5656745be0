"""Faults: what goes wrong on a rank reaches the caller soon, as one error that names it, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from orca import Estimator
from orca.core.engine import Settings
from orca.errors import ArgumentError, DataError, TooFewSlots, WorkerFailed, WorkerLost, WorkerStalled
from orca.storage.checkpoints import newest_run, versions

ENGINES = ("local", "spark", "ray")
RAY_IN_FULL = pytest.mark.parametrize(  # three processes that load torch: a killed one stands for the others
    "engine", ["local", "spark", pytest.param("ray", marks=pytest.mark.full)], indirect=True
)
pytestmark = pytest.mark.timeout(300)
X = np.random.default_rng(0).random((12, 3), dtype=np.float32)
Y = X.sum(axis=1, keepdims=True)


class Troubled(nn.Module):
    """Get into trouble on rank 1 in the second step; which kind is written in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.folder, self.calls = str(folder), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if dist.is_initialized() and self.training:
            Path(self.folder, f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
            if dist.get_rank() == 1 and self.calls == 2:
                self.get_into_trouble()
        return self.layer(x)

    def get_into_trouble(self) -> None:
        kind = Path(self.folder, "kind").read_text()
        if kind == "raise":
            raise ValueError("a row is broken")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "sleep":
            time.sleep(600)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Give the word of each backend, with its cluster up."""
    if request.param != "local":
        pytest.importorskip({"spark": "pyspark", "ray": "ray"}[request.param])
        request.getfixturevalue({"spark": "spark", "ray": "ray_context"}[request.param])
    return str(request.param)


@pytest.fixture(autouse=True)
def no_folder_left() -> Iterator[None]:
    """Fail a test that leaves a temporary folder of Orca's."""
    before = folders()
    yield
    assert soon(lambda: not folders() - before, 5), f"left behind: {folders() - before}"


def folders() -> set[str]:
    temporary = Path(tempfile.gettempdir())
    return {entry.name for entry in temporary.glob("orca-*") if not entry.name.startswith("orca-java-")}


def soon(happens: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not happens() and time.monotonic() < deadline:
        time.sleep(0.05)
    return happens()


class Trial:
    """Run a fit that gets into trouble, and tell what became of it."""

    def __init__(self, engine: str, folder: Path, stall: float = 60.0) -> None:
        self.folder = folder
        model = Troubled(folder)
        self.estimator = Estimator.from_torch(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.MSELoss(),
            backend=engine,
            workers_per_node=2,
            stall_timeout=stall,
            use_tqdm=False,
        )

    def fails(self, kind: str, error: type[WorkerFailed]) -> WorkerFailed:
        (self.folder / "kind").write_text(kind)
        with pytest.raises(WorkerFailed) as raised:
            self.estimator.fit((X, Y), batch_size=4)
        failure = raised.value
        assert type(failure) is error, failure
        assert failure.rank == 1 and failure.host and f"rank 1 on {failure.host} {error.verb}: " in str(failure)
        assert failure.__cause__ is None and (failure.__context__ is None or failure.__suppress_context__), (
            "more than one error"
        )
        assert soon(lambda: not self.survivors(), 5), f"ranks still run: {self.survivors()}"
        return failure

    def survivors(self) -> list[psutil.Process]:
        """Return the ranks that are still there."""
        matches = []
        for file in self.folder.glob("pid-*"):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(int(file.read_text()))
                if process.status() != psutil.STATUS_ZOMBIE:
                    matches.append(process)
        return matches

    def succeeds(self) -> None:
        """Fit again, with the same Estimator."""
        (self.folder / "kind").write_text("none")
        assert [line["num_samples"] for line in self.estimator.fit((X, Y), batch_size=4)] == [12]


@pytest.mark.slow
@RAY_IN_FULL
def test_an_exception_is_told_with_rank_and_traceback(engine: str, tmp_path: Path) -> None:
    trial = Trial(engine, tmp_path)
    failure = trial.fails("raise", WorkerFailed)
    assert failure.reason == "ValueError: a row is broken"
    assert (
        "in get_into_trouble" in failure.remote_traceback and "ValueError: a row is broken" in failure.remote_traceback
    )
    trial.succeeds()


@pytest.mark.slow
def test_a_killed_rank_is_named(engine: str, tmp_path: Path) -> None:
    trial = Trial(engine, tmp_path)
    trial.fails("kill", WorkerLost)
    trial.succeeds()


@pytest.mark.slow
@RAY_IN_FULL
def test_a_stuck_rank_is_named_with_its_stack(engine: str, tmp_path: Path) -> None:
    stall = 25.0 if engine == "ray" else 12.0  # its workers load torch one by one, which is no progress of a rank
    failure = Trial(engine, tmp_path, stall).fails("sleep", WorkerStalled)
    assert "in get_into_trouble" in failure.remote_traceback
    assert f"stall_timeout (now {stall:.0f} s)" in failure.reason and "phase forward" in failure.reason


@pytest.mark.parametrize("engine", ["spark", "ray"], indirect=True)
def test_too_few_slots_are_refused_with_the_numbers(engine: str) -> None:
    estimator = local(backend=engine, workers_per_node=9)
    with pytest.raises(TooFewSlots, match=r"9 worker.* must run at the same time.* 3 ") as raised:
        estimator.fit((X, Y))
    assert "workers_per_node" in str(raised.value)


# What is refused before anything starts, or by the only rank of a local run.


def local(**changes: Any) -> Estimator:
    """Return an Estimator that would work, but for the changes."""
    model = nn.Linear(3, 1)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss": nn.MSELoss()}
    return Estimator.from_torch(**{"backend": "local", "use_tqdm": False} | given | changes)


@pytest.mark.parametrize("size", [0, -3, 2.5, True, "8"])
def test_batch_size_must_be_a_positive_whole_number(size: Any) -> None:
    with pytest.raises(ArgumentError, match=f"batch_size must be a positive whole number; got {size!r}"):
        local().fit((X, Y), batch_size=size)


@pytest.mark.parametrize("epochs", [0, 1.0])
def test_epochs_must_be_a_positive_whole_number(epochs: Any) -> None:
    with pytest.raises(ArgumentError, match=f"epochs must be a positive whole number; got {epochs!r}"):
        local().fit((X, Y), epochs=epochs)


def test_unequal_lengths_are_told_with_the_shapes() -> None:
    with pytest.raises(DataError, match=r"same number of rows; got shapes \[\(12, 3\), \(11, 1\)\]"):
        local().fit((X, Y[:-1]))


def test_missing_columns_of_pandas_are_named() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "y": Y[:, 0]})
    with pytest.raises(DataError, match=r"(?s)'?nope'?.*a.*y"):
        local().fit(frame, feature_cols=["nope"], label_cols=["y"])


def test_missing_columns_of_a_dataframe_are_named(spark: Any) -> None:
    frame = spark.createDataFrame([(1.0, 2.0)], "a double, y double")
    with pytest.raises(DataError, match=r"(?s)'?nope'?.*a.*y"):
        local(backend="spark").fit(frame, feature_cols=["a", "nope"], label_cols=["y"])
    with pytest.raises(DataError, match=r"need label_cols for a DataFrame; got columns \['a', 'y'\]"):
        local(backend="spark").fit(frame, feature_cols=["a"])


def test_a_model_must_be_a_module() -> None:
    with pytest.raises(ArgumentError, match="the model must be a torch.nn.Module or a function .*; got int"):
        local(model=3, optimizer=None)


def test_a_model_creator_must_return_a_module() -> None:
    wrong = local(model=lambda config: "a model", optimizer=lambda model, config: None)
    with pytest.raises(WorkerFailed, match="the model must be a torch.nn.Module .*; got str") as raised:
        wrong.fit((X, Y))
    assert raised.value.rank == 0


@pytest.mark.parametrize("part", ["optimizer", "loss"])
def test_training_needs_optimizer_and_loss(part: str) -> None:
    with pytest.raises(ArgumentError, match=f"You must provide the {part} for train. Pass {part}= to from_torch"):
        local(**{part: None}).fit((X, Y))


@pytest.mark.parametrize("thing", [threading.Lock, socket.socket])
def test_an_unpicklable_creator_is_named(thing: Callable[[], Any]) -> None:
    held = thing()

    def model_creator(config: Any) -> nn.Module:
        assert held
        return nn.Linear(3, 1)

    def data_creator(config: Any, batch_size: int) -> Any:
        assert held

    advice = "cannot be sent to the workers: .* create such things inside the creator function"
    try:
        with pytest.raises(ArgumentError, match=f"^model {advice}"):
            local(model=model_creator, optimizer=lambda model, config: None).fit((X, Y))
        with pytest.raises(ArgumentError, match=f"^the data {advice}"):
            local().fit(data_creator)
    finally:
        if isinstance(held, socket.socket):
            held.close()


def test_a_loss_that_is_not_finite_raises_or_warns(caplog: pytest.LogCaptureFixture) -> None:
    broken = X.copy()
    broken[7] = np.nan
    says = "the loss became nan at step 2 of epoch 1. Lower the learning rate"
    with pytest.raises(WorkerFailed, match=says) as raised:
        local().fit((broken, Y), batch_size=4, shuffle=False)
    assert raised.value.reason.startswith("LossNotFinite: ")
    caplog.clear()
    lines = local().fit((broken, Y), batch_size=4, shuffle=False, on_nan="warn")
    assert np.isnan(lines[0]["train_loss"]) and lines[0]["num_samples"] == 12
    messages = [record for record in caplog.records if says in record.getMessage()]
    assert [(record.name, record.levelname) for record in messages] == [("orca.worker", "WARNING")]
    with pytest.raises(ArgumentError, match="on_nan must be 'raise', 'warn' or 'ignore'; got 'stop'"):
        local().fit((X, Y), on_nan="stop")


def test_settings_reach_the_engine() -> None:
    assert local(stall_timeout=7.0, threads_per_worker=2).settings == Settings(7.0, False, 2)


def slow_storage() -> None:
    """Let a worker's checkpoints take longer than its driver's patience."""
    from orca.storage import states

    write = states.save_state

    def write_slowly(state: Any, path: str, framework: str) -> None:
        time.sleep(5)
        write(state, path, framework)

    states.save_state = write_slowly


def slow_rows(config: Any, batch_size: int) -> Any:
    class Slow(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            for x, y in zip(X[:5], Y[:5], strict=True):
                time.sleep(1)
                yield x, y

    return torch.utils.data.DataLoader(Slow(), batch_size=1)


@pytest.mark.full
def test_slow_storage_and_slow_data_are_no_stall(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    made = local(stall_timeout=3.0, model_dir=folder, initialization_hook=slow_storage)
    (line,) = made.fit(slow_rows, epochs=1, batch_size=2, checkpoint_trigger=lambda moment: moment.step > 3)
    assert line["num_samples"] == 5
    assert versions(newest_run(folder) or "") == [4, 5]


class Lagging(nn.Module):
    """Take long for each forward pass, on rank 1 longer by a factor."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.layer, self.times = nn.Linear(3, 1), times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1 * (self.times if dist.get_rank() == 1 else 1.0))
        return self.layer(x)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 3.0])
def test_a_slow_rank_is_named_and_even_ones_are_not(times: float, caplog: pytest.LogCaptureFixture) -> None:
    model = Lagging(times)
    made = local(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), workers_per_node=2, loss=nn.MSELoss()
    )
    made.fit((X.repeat(4, 0), Y.repeat(4, 0)), batch_size=2, max_steps=90 if times == 1 else 45)
    said = [record.getMessage() for record in caplog.records if " is slow: " in record.getMessage()]
    if times == 1:
        assert not said and "slow ranks" not in made.history.about
    else:
        (line,) = said
        assert line.startswith(f"rank 1 on {socket.gethostname()} is slow: it needs ")
        assert made.history.about["slow ranks"].startswith("1 (")


OUT_OF_MEMORY = """
import os, sys, numpy as np, torch
from pathlib import Path
from torch import nn
from orca import Estimator
from orca.errors import WorkerLost

places = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
root, file = Path("/sys/fs/cgroup"), "memory.max"
if "memory" in places:
    root, file = root / "memory", "memory.limit_in_bytes"
group = root / places.get("memory", places.get("", "")).lstrip("/") / f"orca-test-{os.getpid()}"
try:
    group.mkdir()
    (group / file).write_text(str(3 << 30))
    (group / "cgroup.procs").write_text(str(os.getpid()))
except OSError:
    sys.exit(print("no cgroup can be made here"))

class Hoard(nn.Linear):
    def forward(self, x):
        hoard = [bytearray(os.urandom(1 << 16)) * 512 for _ in range(300 if torch.distributed.get_rank() else 0)]
        return super().forward(x)

model = Hoard(3, 1)
made = Estimator.from_torch(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loss=nn.MSELoss(),
                            backend="local", workers_per_node=2, use_tqdm=False)
try:
    made.fit((np.ones((8, 3), "float32"), np.ones((8, 1), "float32")), batch_size=4)
except WorkerLost as error:
    print(error)
finally:
    (group.parent / "cgroup.procs").write_text(str(os.getpid()))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="makes a cgroup")
def test_a_rank_that_its_cgroup_kills_was_out_of_memory(run_program: Callable[..., Any]) -> None:
    said = run_program(OUT_OF_MEMORY).stdout
    if "no cgroup" in said:
        pytest.skip(said)
    assert "was lost: it was out of memory: the kernel killed its process (SIGKILL) as its cgroup was full" in said
    assert said.startswith("rank 1 on ") and "Lower batch_size" in said
    for place in Path("/sys/fs/cgroup").glob("**/orca-test-*"):
        with contextlib.suppress(OSError):
            place.rmdir()
