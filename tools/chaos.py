"""Chaos: fits that are disturbed at random must end as the clean one does.

    make chaos                         100 seeds on local processes, Spark (standalone) and Ray; a table in Markdown
    make chaos ARGS='--seeds 4 --engines local'

Each seed decides on the fault, the step and the rank that it strikes, and how often checkpoints are kept. A run counts
as good if losses and weights are those of the clean run, if no 30 s went by without a line of the log or a step, and if
no process and no file is left. Full disks and want of memory need root: a disk in memory, and a cgroup.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from orca import Estimator, init_orca_context, stop_orca_context
from orca.callbacks import Callback
from orca.storage.checkpoints import newest_run, versions
from orca.triggers import SeveralIteration

ENGINES = ("local", "spark", "ray")
FAULTS = (
    *("kill", "freeze", "SIGTERM", "out of memory"),
    *("corrupt checkpoint", "full disk", "lost executor", "storage outage"),
)
ROWS, BATCH, EPOCHS = 46, 6, 3
STEPS = EPOCHS * -(-ROWS // BATCH)
SILENCE = 30.0  # seconds that nothing may be said or done
AWAY = 3.0  # seconds of an outage, and of a full disk
STALL = 12.0  # seconds after which a frozen rank is named
DISK = 1 << 20  # bytes


@dataclass(frozen=True)
class Plan:
    """A run: everything that its seed decides."""

    seed: int
    engine: str
    fault: str
    step: int
    rank: int
    every: int

    @classmethod
    def of(cls, seed: int, engines: tuple[str, ...]) -> Plan:
        """Return the plan of a seed: engines and faults take turns, all else is drawn."""
        rng = random.Random(seed)
        engine, fault = engines[seed % len(engines)], FAULTS[seed // len(engines) % len(FAULTS)]
        return cls(seed, engine, fault, rng.randrange(3, STEPS), rng.randrange(2), rng.choice([1, 2, 5, 8]))


@dataclass
class Outcome:
    """What became of a run."""

    plan: Plan
    seconds: float
    silence: float
    problems: list[str] = field(default_factory=list)


class Chaos(Callback):
    """Do what the plan says, once, and write down the time of each step."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self.plan, self.folder = plan, folder

    def after_train_iter(self, runner: Any) -> None:
        """Strike after the step of the plan."""
        time.sleep(0.03)
        with open(f"{self.folder}/steps", "a") as steps:
            steps.write(f"{time.time()} {os.getpid()}\n")
        mark = Path(self.folder, "struck")
        if runner.global_step != self.plan.step or runner.rank != self.plan.rank or mark.exists():
            return
        mark.touch()
        if self.plan.fault in ("corrupt checkpoint", "storage outage"):
            time.sleep(0.3)  # the checkpoint before is written aside
        STRIKES[self.plan.fault](Path(self.folder))


def strike_kill(folder: Path) -> None:
    """Kill this rank."""
    os.kill(os.getpid(), signal.SIGKILL)


def strike_freeze(folder: Path) -> None:
    """Stop this rank, as a machine does that hangs."""
    os.kill(os.getpid(), signal.SIGSTOP)


def strike_sigterm(folder: Path) -> None:
    """Ask this rank to end, as clusters do."""
    os.kill(os.getpid(), signal.SIGTERM)


def strike_memory(folder: Path) -> None:
    """Take more memory than a cgroup of this rank's allows."""
    with limited_memory(folder):
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 16)) * 256)


def strike_corrupt(folder: Path) -> None:
    """Damage the newest checkpoint, and kill this rank."""
    run = newest_run(str(folder / "models"))
    if run is not None and len(versions(run)) > 1:
        file = Path(run) / f"orca.{versions(run)[-1]}" / "weights.safetensors"
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if len(content) % 2 else content[:-8] + os.urandom(8))
    strike_kill(folder)


def strike_disk(folder: Path) -> None:
    """Fill the disk of the checkpoints; the driver empties it after a while."""
    with suppress(OSError), open(folder / "models" / "filler", "wb") as filler:
        while True:
            filler.write(bytes(1 << 12))
            filler.flush()


def strike_executor(folder: Path) -> None:
    """Kill the executor of this rank; if there is none, the rank."""
    for process in psutil.Process().parents():
        if process.name() == "java":
            process.kill()
            return
    strike_kill(folder)


def strike_storage(folder: Path) -> None:
    """Put a file in the place of the folder of checkpoints; the driver takes it away after a while."""
    run = newest_run(str(folder / "models")) or next(iter(map(str, (folder / "models").glob("run-*"))))
    os.rename(run, folder / "models" / "away")
    Path(run).write_text("in the way")


STRIKES: dict[str, Callable[[Path], None]] = {
    "kill": strike_kill,
    "freeze": strike_freeze,
    "SIGTERM": strike_sigterm,
    "out of memory": strike_memory,
    "corrupt checkpoint": strike_corrupt,
    "full disk": strike_disk,
    "lost executor": strike_executor,
    "storage outage": strike_storage,
}


@contextmanager
def limited_memory(folder: Path) -> Iterator[None]:
    """Put this process into a cgroup that allows it little more than it has."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    places = {controllers: place.lstrip("/") for _, controllers, place in lines}
    root, file = Path("/sys/fs/cgroup"), "memory.max"
    if "memory" in places:  # version 1
        root, file = root / "memory", "memory.limit_in_bytes"
    group = root / places.get("memory", places.get("", "")) / f"orca-chaos-{os.getpid()}"
    group.mkdir()
    (folder / "cgroup").write_text(str(group))
    (group / file).write_text(str(psutil.Process().memory_info().rss + (64 << 20)))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    yield


def mend(folder: Path, over: threading.Event) -> None:
    """Bring storage back, some seconds after it went away."""
    while not over.wait(0.1):
        filler, away = folder / "models" / "filler", folder / "models" / "away"
        if filler.exists() or away.exists():
            over.wait(AWAY)
            filler.unlink(missing_ok=True)
            if away.exists():
                (file,) = (each for each in (folder / "models").glob("run-*") if each.is_file())
                file.unlink()
                away.rename(file)


@contextmanager
def disk(place: Path) -> Iterator[None]:
    """Give a folder a small disk of its own; without root it stays a folder."""
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    mounted = libc.mount(b"none", str(place).encode(), b"tmpfs", 0, f"size={DISK}".encode()) == 0
    try:
        yield
    finally:
        if mounted:
            libc.umount2(str(place).encode(), 2)


class Listening(logging.Handler):
    """A handler that writes down when each record came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Write down the time."""
        self.times.append(time.time())


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Return the data of all runs."""
    x = np.random.default_rng(5).random((ROWS, 4))
    return x, x.sum(axis=1, keepdims=True)


def estimator(backend: str, **options: Any) -> Any:
    """Return the Estimator of all runs: dropout and momentum, so that each repeated or lost step would show."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 1)).double()
    return Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=nn.MSELoss(),
        backend=backend,
        workers_per_node=1 if backend == "spark" else 2,
        seed=3,
        use_tqdm=False,
        **options,
    )


def clean() -> tuple[list[Any], dict[str, Any]]:
    """Return the lines and the weights of a run that nothing disturbs."""
    torch.manual_seed(0)
    made = estimator("local")
    return made.fit(rows(), EPOCHS, BATCH, callbacks=[Callback()]), made.get_state_dict()["models"][0]


def processes() -> set[int]:
    """Return the processes below this one, without those that serve the next run too."""
    with suppress(psutil.Error):
        return {each.pid for each in psutil.Process().children(recursive=True)}
    return set()


def leftovers() -> set[str]:
    """Return the temporary files of Orca's."""
    return {entry.name for entry in Path(tempfile.gettempdir()).glob("orca-*")}


def run(plan: Plan, expected: tuple[list[Any], dict[str, Any]]) -> Outcome:
    """Carry a plan out."""
    folder, over, ear = Path(tempfile.mkdtemp(prefix="chaos-")), threading.Event(), Listening()
    files, began, problems = leftovers(), time.time(), []
    logging.getLogger("orca").addHandler(ear)
    mender = threading.Thread(target=mend, args=(folder, over), daemon=True)
    try:
        with disk(folder / "models"):
            mender.start()
            made = estimator(plan.engine, model_dir=str(folder / "models"), stall_timeout=STALL)
            try:
                lines = made.fit(
                    rows(), EPOCHS, BATCH, callbacks=[Chaos(plan, str(folder))], max_failures=3, keep_checkpoints=3,
                    checkpoint_trigger=SeveralIteration(plan.every),
                )  # fmt: skip
                problems += differences(lines, made, expected)
            except Exception as error:
                problems.append(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            over.set()
            mender.join()
        if not (folder / "struck").exists():
            problems.append("the fault did not strike")
        if stopped := [each for each in map(psutil.Process, processes()) if is_stopped(each)]:
            problems.append(f"processes are left: {stopped}")
        if files_left := {name for name in leftovers() - files if not name.startswith("orca-java")}:
            problems.append(f"files are left: {sorted(files_left)}")
        ended, steps = time.time(), folder / "steps"
        done = [line.split() for line in steps.read_text().splitlines()] if steps.exists() else []
        times = [float(when) for when, _ in done]
        if plan.engine == "local" and (left := {pid for _, pid in done if psutil.pid_exists(int(pid))}):
            problems.append(f"ranks are left: {sorted(left)}")
        moments = sorted([began, *ear.times, *times, ended])
        silence = max(later - earlier for earlier, later in pairwise(moments))
        if silence > SILENCE:
            problems.append(f"silent for {silence:.0f} s")
        return Outcome(plan, ended - began, silence, problems)
    finally:
        logging.getLogger("orca").removeHandler(ear)
        if (folder / "cgroup").exists():
            with suppress(OSError):
                Path((folder / "cgroup").read_text()).rmdir()
        shutil.rmtree(folder, ignore_errors=True)


def is_stopped(process: psutil.Process) -> bool:
    """Return whether a process is one that was frozen and is still there."""
    with suppress(psutil.Error):
        return bool(process.status() == psutil.STATUS_STOPPED)
    return False


def differences(lines: list[Any], made: Any, expected: tuple[list[Any], dict[str, Any]]) -> list[str]:
    """Return where a run ended in another way than the clean one."""
    problems = []
    if [line["epoch"] for line in lines] != [line["epoch"] for line in expected[0]]:
        problems.append(f"epochs {[line['epoch'] for line in lines]}")
    for line, clean_line in zip(lines, expected[0], strict=False):
        if (
            abs(line["train_loss"] - clean_line["train_loss"]) > 1e-9
            or line["num_samples"] != clean_line["num_samples"]
        ):
            problems.append(f"epoch {line['epoch']}: loss {line['train_loss']}, clean {clean_line['train_loss']}")
    weights = made.get_state_dict()["models"][0]
    apart = max(
        float(np.abs(np.asarray(weights[name]) - np.asarray(value)).max()) for name, value in expected[1].items()
    )
    return problems + ([f"weights differ by {apart:g}"] if apart > 1e-9 else [])


@contextmanager
def cluster(engine: str) -> Iterator[None]:
    """Bring up what an engine needs."""
    if engine == "spark":
        init_orca_context("standalone", cores=1, num_nodes=2, memory="512m", driver_memory="1g")
    elif engine == "ray":
        init_orca_context(runtime="ray", cores=2)
    try:
        yield
    finally:
        if engine != "local":
            stop_orca_context()


def table(outcomes: list[Outcome]) -> str:
    """Return the results in Markdown: a row a fault, a column an engine."""
    engines = [engine for engine in ENGINES if any(each.plan.engine == engine for each in outcomes)]
    cells: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.plan.fault, outcome.plan.engine].append(outcome)

    def cell(fault: str, engine: str) -> str:
        there = cells[fault, engine]
        good = sum(not each.problems for each in there)
        return f"{good} of {len(there)}, {max((each.silence for each in there), default=0):.0f} s" if there else ""

    head = ["| fault | " + " | ".join(engines) + " |", "| --- |" + " --- |" * len(engines)]
    return "\n".join(
        [*head, *(f"| {fault} | " + " | ".join(cell(fault, engine) for engine in engines) + " |" for fault in FAULTS)]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the seeds, print the table, and return 1 if a run was not good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--engines", default=",".join(ENGINES), help="which of local, spark and ray")
    options = parser.parse_args(arguments)
    engines = tuple(options.engines.split(","))
    plans = [Plan.of(seed, engines) for seed in range(options.first, options.first + options.seeds)]
    expected, outcomes = clean(), []
    for engine in engines:
        with cluster(engine):
            for plan in (each for each in plans if each.engine == engine):
                outcome = run(plan, expected)
                outcomes.append(outcome)
                words = "; ".join(outcome.problems) or "as the clean run"
                print(f"{plan} {outcome.seconds:.1f} s, silent {outcome.silence:.1f} s: {words}", flush=True)
    bad = [outcome for outcome in outcomes if outcome.problems]
    print(f"\n{table(outcomes)}\n\n{len(outcomes) - len(bad)} of {len(outcomes)} runs as the clean one")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
