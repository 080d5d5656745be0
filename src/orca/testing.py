"""Testing: small stand-ins for each axis, for our tests and for plug-in authors. Owns what a test may rely on.

    engine = ThreadEngine(3)                                  # ranks are threads: instant, no torch
    engine.run(FitJob(LinearLearner(2), FitPlan(), (), None), shards_of([(x, y), (x2, y2)]), Settings())

Nothing is shared between the ranks of a ThreadEngine: jobs, data and results are pickled as for real ones.
"""

from __future__ import annotations

import gc
import pickle
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil

from orca.core.array_learner import ArrayLearner
from orca.core.engine import Job, Settings, dumps, scratch, seal
from orca.core.source import Batch, Shards
from orca.core.state import State
from orca.errors import OrcaError, WorkerFailed
from orca.monitor.heartbeat import Pulse
from orca.monitor.telemetry import Parted, from_parting, reason_of
from orca.sources.arrays import Block, OpenBlocks

_HOST = "127.0.0.1"


class ThreadEngine:
    """An engine whose ranks are threads of this process.

    Args:
        workers: How many.
    """

    name = "threads"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @classmethod
    def on_cluster(cls, workers_per_node: int) -> ThreadEngine:
        """Return the engine: this process is the only node."""
        return cls(workers_per_node)

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        """Run a job on all ranks together; results in rank order, or WorkerFailed for the rank that failed first."""
        meeting = Meeting(self.workers, settings.stall_timeout)
        try:
            work, pieces = seal(job, shards.open), shards.portable()
            data = [dumps(pieces[rank :: self.workers], "the data") for rank in range(self.workers)]
            with ThreadPoolExecutor(self.workers, thread_name_prefix="rank") as pool:
                futures = [pool.submit(meeting.attend, rank, work, data[rank]) for rank in range(self.workers)]
            if meeting.failures:
                raise _first(meeting.failures)
            return [pickle.loads(future.result()) for future in futures]
        finally:
            shards.release()

    def settle(self) -> None:
        """Return at once: threads are not lost."""

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece, one after the other."""
        return [task(piece) for piece in pieces]


class Meeting:
    """The place where the threads of a run meet, and the failures among them, in order."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=timeout if timeout > 0 else None)
        self.board: list[Any] = [None] * size
        self.failures: list[tuple[int, BaseException]] = []

    def attend(self, rank: int, work: bytes, data: bytes) -> bytes:
        """Run one rank: read its rows, do the job; a failure releases the others."""
        pulse = Pulse()
        try:
            job, open_rows = cloudpickle.loads(work)
            with pulse.current(), scratch() as folder:
                rows = dict(open_rows(chain.from_iterable(piece() for piece in cloudpickle.loads(data)), folder))
                try:
                    return dumps(job(ThreadWorld(rank, self), rows, pulse), "the result")
                finally:
                    for part in rows.values():
                        part.close()
        except BaseException as error:
            self.failures.append((rank, error))
            self.barrier.abort()
            return b""

    def exchange(self, rank: int, what: str, item: Any) -> list[Any]:
        """Return what every rank brought, in rank order; each gets copies of its own."""
        self.board[rank] = (what, pickle.dumps(item))
        try:
            self.barrier.wait()
            told = list(self.board)
            self.barrier.wait()  # nobody writes on the board before all have read it
        except threading.BrokenBarrierError:
            raise Parted(f"rank {rank} waits in {what} for ranks that will not come") from None
        if any(other != what for other, _ in told):
            raise OrcaError(f"all ranks must call the same collective; got {[other for other, _ in told]}.")
        return [pickle.loads(brought) for _, brought in told]


def _first(failures: list[tuple[int, BaseException]]) -> WorkerFailed:
    """Return the failure that explains the others: the first that is no consequence of another."""
    rank, error = next((f for f in failures if not from_parting(f[1])), failures[0])
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return WorkerFailed(rank, _HOST, reason_of(error), text)


class ThreadWorld:
    """A world of threads that meet at a barrier."""

    host = _HOST

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = meeting.size
        self.meeting = meeting

    def all_gather(self, item: Any) -> list[Any]:
        """Return every rank's item, in rank order, on every rank."""
        return self.meeting.exchange(self.rank, "all_gather", item)

    def gather(self, item: Any) -> list[Any] | None:
        """Return every rank's item on rank 0; None elsewhere."""
        told = self.meeting.exchange(self.rank, "gather", item)
        return told if self.rank == 0 else None

    def broadcast(self, item: Any) -> Any:
        """Return rank 0's item on every rank."""
        return self.meeting.exchange(self.rank, "broadcast", item if self.rank == 0 else None)[0]

    def all_reduce(self, arrays: Sequence[np.ndarray], how: str = "mean") -> list[np.ndarray]:
        """Return the element-wise mean or sum over all ranks."""
        told = self.meeting.exchange(self.rank, "all_reduce", [np.asarray(array) for array in arrays])
        forms = [[(array.dtype, array.shape) for array in rank] for rank in told]
        if any(form != forms[0] for form in forms):  # gloo would end the process
            raise OrcaError(f"all ranks must reduce arrays of the same type and shape; got {forms}.")
        sums = [np.asarray(reduce(np.add, column)) for column in zip(*told, strict=True)]
        return [total / self.size for total in sums] if how == "mean" else sums


@dataclass
class LinearLearner(ArrayLearner):
    """A learner of y = x @ weight + bias by gradient descent on the squared error, in float64.

    Args:
        features: Columns of x.
        rate: Learning rate.
        momentum: Momentum, kept in the state.
    """

    features: int
    rate: float = 0.1
    momentum: float = 0.0
    framework = "linear"

    def make(self) -> None:
        """Draw the weights, the bias last."""
        self.weight = self.generator.normal(size=self.features + 1)
        self.velocity = np.zeros_like(self.weight)

    def build(self, state: State) -> np.ndarray:
        """Return the weights."""
        return np.array(state.payload["models"][0]["weight"])

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights."""
        return {"weight": self.weight}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights."""
        self.weight = np.array(weights["weight"])

    def optimizer_state(self) -> dict[str, Any]:
        """Return the velocity."""
        return {"velocity": self.velocity}

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over a velocity."""
        self.velocity = np.array(state["velocity"])

    def outputs(self, x: Any) -> np.ndarray:
        """Return one number a row."""
        return np.asarray(x, np.float64) @ self.weight[:-1] + self.weight[-1]

    def loss(self, outputs: Any, batch: Batch) -> tuple[float, float]:
        """Return the sum of squared errors, and the rows."""
        error = outputs - np.asarray(batch.y, np.float64).reshape(-1)
        return float(error @ error), batch.rows

    def loss_and_gradients(self, batch: Batch) -> tuple[float, float, dict[str, np.ndarray]]:
        """Return loss, rows and the gradient of the sum."""
        error = self.outputs(batch.x) - np.asarray(batch.y, np.float64).reshape(-1)
        inputs = np.column_stack([batch.x, np.ones(batch.rows)])
        return float(error @ error), batch.rows, {"weight": 2.0 * inputs.T @ error}

    def apply(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Take a step."""
        self.velocity = self.momentum * self.velocity + gradients["weight"]
        self.weight = self.weight - self.rate * self.velocity


def shards_of(train: Sequence[tuple[Any, Any]], valid: Sequence[tuple[Any, Any]] | None = None) -> Shards:
    """Return shards with exactly these rows: one (x, y) a rank, an empty one for a rank without rows."""
    parts = {"train": train} if valid is None else {"train": train, "valid": valid}
    pieces = [Block(part, x, y) for part, shards in parts.items() for x, y in shards]
    return Shards(OpenBlocks(tuple(parts)), lambda: list(pieces))


@contextmanager
def leaks(grace: float = 5.0) -> Iterator[None]:
    """Fail if the block leaves child processes, threads, sockets or orca-* temporary folders behind.

    Args:
        grace: Seconds in which they may still go away.

    Raises:
        AssertionError: Naming what is left.
    """
    before = _held()
    yield
    if "orca.engines.forkserver" in sys.modules:
        sys.modules["orca.engines.forkserver"].end_servers()  # they are kept for the next call
    deadline = time.monotonic() + grace
    while left := {what: name for what, name in _held().items() if what not in before}:
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {', '.join(left.values())}. Close it, or use a context manager.")
        gc.collect()
        time.sleep(0.05)


def _held() -> dict[tuple[str, Any], str]:
    """Return what this process holds now, with a name for each."""
    process, tracker = psutil.Process(), sys.modules.get("multiprocessing.resource_tracker")
    lasting = getattr(getattr(tracker, "_resource_tracker", None), "_pid", None)  # lives as long as this process
    held = {("process", child.pid): f"process {child.pid}" for child in process.children(recursive=True)}
    held.pop(("process", lasting), None)
    held |= {("thread", thread): f"thread {thread.name!r}" for thread in threading.enumerate()}
    connections = getattr(process, "net_connections", None) or process.connections  # psutil < 6.0 has only the latter
    held |= {("socket", (c.fd, c.laddr, c.raddr)): f"socket {c.laddr or c.fd}" for c in connections("all")}
    folders = [path for path in Path(tempfile.gettempdir()).glob("orca-*") if not path.name.startswith("orca-java-")]
    return held | {("folder", path): f"folder {path}" for path in folders}
