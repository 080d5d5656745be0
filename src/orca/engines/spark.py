"""SparkEngine: ranks as barrier tasks of one Spark job. Owns the slot check, dealing data out, and reading failures.

Only the DataFrame API is used, so that it works through Spark Connect too, where there is no SparkContext and no RDD.
"""

from __future__ import annotations

import os
import pickle
import re
import socket
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from queue import Queue
from threading import Event, Thread
from typing import Any, cast

import cloudpickle
import pyarrow as pa
import pyspark
from pyspark import BarrierTaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.util import inheritable_thread_target

from orca.cluster.news import wait_until
from orca.cluster.ray import free_slots
from orca.cluster.spark import (
    DYNAMIC,
    active_session,
    driver_host,
    executor_cpus,
    executors,
    is_connect,
    is_dynamic,
    is_local,
    nodes,
    running,
    slots,
    tell_modules,
)
from orca.cluster.tasks import wait_for_tasks
from orca.core.engine import (
    Envelope,
    HubPeer,
    Job,
    ReportedFailure,
    Settings,
    dispatch,
    dumps,
    is_secondary,
    run_rank,
    threads_asked_for,
)
from orca.core.network import resolved
from orca.core.resources import Grant
from orca.core.source import Shards
from orca.core.world import Peer
from orca.errors import ArgumentError, DataError, TooFewSlots, WorkerFailed, WorkerLost, recorded_in
from orca.monitor.background import beside
from orca.monitor.exits import ended
from orca.monitor.failures import carried_by, carrier_of, made_by_user
from orca.monitor.hub import Hub
from orca.monitor.link import Link
from orca.monitor.spark_logs import muted
from orca.monitor.verbosity import adopt, verbosity

_CHUNK = 64 << 20  # bytes of a result in one row: Arrow's binary columns end at 2 GB
_SMALL = 1 << 20  # bytes of all pieces that every rank gets: Spark sends larger tasks in another way as well
_SPARK_ENDS_WITHIN = 5.0  # seconds that Spark has to end the job of a run that failed
_NOTICED_WITHIN = 210.0  # seconds in which Spark gives a silent executor up (cluster.spark.OUTLIVES_PAUSES)
_DECOMMISSION = "spark.decommission.enabled"
_RESULT = "rank int, part int, payload binary"


class SparkEngine:
    """The engine whose ranks are barrier tasks.

    Args:
        session: The Spark session, classic or Connect.
        workers: How many ranks.
    """

    name = "spark"

    def __init__(self, session: SparkSession, workers: int) -> None:
        self.session, self.workers = session, workers
        self._executors = 0  # when the last run began
        self._cancelled = False  # the last run: one of them fell silent

    @classmethod
    def on_cluster(cls, workers_per_node: int) -> SparkEngine:
        """Return the engine for the active session: workers_per_node ranks an executor."""
        session = active_session()
        if session is None:
            raise ArgumentError(
                "there is no Spark session. Call init_orca_context(cluster_mode='local') first, or pass "
                "backend='local' to train in plain processes.",
                code="no-spark-session",
            )
        return cls(session, nodes(session) * workers_per_node)

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        """Run a job on all ranks together; results in rank order."""
        self._check_slots()
        tell_modules(self.session)
        host = driver_host(self.session)
        settings = settings.or_threads(_threads_of(self.session))
        with dispatch(job, shards, self.workers, host, settings, self._room) as (envelope, hub):
            data: Any = shards.native if shards.home == self.name else shards.portable()
            frame, task = self._placed(data, envelope)
            over_hub = is_local(self.session) and not is_connect(self.session)
            task = replace(task, over_hub=over_hub, executor_cpus=executor_cpus(self.session))
            del data
            with muted(self.session):
                try:
                    with self._cancelling(hub):
                        ranks = self._collected(frame.mapInArrow(task, _RESULT, barrier=True), hub)
                except Exception as error:
                    wait_for_tasks(self.session)
                    raise self._failure(hub.error(wait=5.0), error) from None
        return _assemble(ranks, self.workers)

    def settle(self, seconds: float) -> bool:
        """Wait until Spark knows of an executor that fell silent (it would give it work again), then for all."""
        if is_connect(self.session):
            return True
        if self._cancelled:
            wait_until(lambda: executors(self.session) < self._executors, _NOTICED_WITHIN)
        wait_until(self._is_complete, seconds)
        return bool(slots(self.session))

    def _is_complete(self) -> bool:
        """Return whether there are as many executors as in the last run, and slots for all workers."""
        return executors(self.session) >= self._executors and (slots(self.session) or 0) >= self.workers

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece, one Spark task each; results in the order of the pieces."""
        work = dumps(task, "the task")
        frame = self._deal((dumps(piece, "the data") for piece in enumerate(pieces)), len(pieces))
        with muted(self.session):
            try:
                rows = self._collected(frame.mapInArrow(MapTask(work, verbosity()), _RESULT))
            except Exception as error:
                wait_for_tasks(self.session)
                raise self._failure(None, error) from None
        return _assemble(rows, len(pieces))

    def _collected(self, frame: DataFrame, hub: Hub | None = None) -> list[Any]:
        """Return the rows of a frame, computed in a thread of its own.

        This thread just waits: a Ctrl-C in the middle of a call to the JVM would break its connection, noisily. Then
        the job is over before the caller knows, as its workers and Spark's log would outlive it.
        """
        results: Queue[tuple[Any, BaseException | None]] = Queue()

        def collect() -> None:
            try:
                results.put((frame.collect(), None))
            except BaseException as error:
                results.put((None, error))

        with _tagged(self.session) as cancel:
            thread = Thread(target=_inheriting(self.session, collect), name="orca-collect", daemon=True)
            thread.start()
            try:
                rows, error = results.get()
            except BaseException:
                if hub is not None:
                    hub.abort("the driver was interrupted")
                cancel()
                thread.join(_SPARK_ENDS_WITHIN)
                wait_for_tasks(self.session)
                raise
        if error is not None:
            raise error
        return list(rows)

    def _room(self) -> str:
        """Return in words how many slots are free; a Connect server does not tell."""
        if is_connect(self.session):
            return "a rank that cannot reach this program trains without reporting to it"
        width = slots(self.session) or 0
        return f"Spark shows {max(0, width - running(self.session))} of {width} slots free"

    def _check_slots(self) -> None:
        """Refuse at once a run that Spark would wait for or fail at: all ranks must run at the same time."""
        if not is_local(self.session) and is_dynamic(self.session):
            raise ArgumentError(
                "ranks run together in one barrier stage, which Spark refuses while dynamic allocation is on. Pass "
                f"conf={{'{DYNAMIC}': 'false'}} and num_nodes= to init_orca_context, or --conf {DYNAMIC}=false and "
                "--num-executors to spark-submit.",
                code="dynamic-allocation",
            )
        free = free_slots(self.session, self.workers)
        if free is not None and free < self.workers:
            raise TooFewSlots(
                f"{self.workers} workers must run at the same time, but Spark can run {free} task(s) at "
                "once. Ask for fewer workers_per_node, or for more cores or nodes in init_orca_context."
            )

    def _placed(self, data: Any, envelope: Envelope) -> tuple[DataFrame, BarrierTask]:
        """Return a frame with a partition for each rank, and the task for it.

        Pieces travel in the task, where all together are small; else in the frame, which takes a shuffle.
        """
        if not isinstance(data, list):  # a frame of rows
            return data, BarrierTask(envelope)
        pieces: list[bytes] = []
        rest = (dumps(piece, "the data") for piece in data)
        for piece in rest:
            pieces.append(piece)
            if sum(map(len, pieces)) > _SMALL:
                return self._deal(chain(pieces, rest), self.workers), BarrierTask(envelope, dealt=True)
        return self.session.range(0, self.workers, 1, self.workers), BarrierTask(envelope, tuple(pieces))

    def _deal(self, pieces: Iterable[bytes], ranks: int) -> DataFrame:
        """Return a frame of pickled pieces, one partition a rank: piece i lies in partition i % ranks."""
        rows = ((number % ranks, piece) for number, piece in enumerate(pieces))
        if int(pyspark.__version__.split(".")[0]) < 4:
            data: Any = list(rows)
        else:  # rows of Python would go through workers of another kind, which load everything once more
            schema = pa.schema({"rank": pa.int32(), "piece": pa.binary()})
            # A batch each: Spark holds a batch in one array, which ends at 2 GB.
            data = pa.Table.from_batches([pa.record_batch([[place], [piece]], schema) for place, piece in rows], schema)
        frame = self.session.createDataFrame(data, "rank int, piece binary")
        if hasattr(frame, "repartitionById"):
            return frame.repartitionById(ranks, "rank")
        return frame.repartitionByRange(ranks, "rank")  # Spark < 4.1; exact, as every rank has a piece

    @contextmanager
    def _cancelling(self, hub: Hub) -> Iterator[None]:
        """Cancel the jobs of the block when their run has failed: Spark would wait minutes for a silent executor."""
        self._executors = 0 if is_connect(self.session) else executors(self.session)
        self._cancelled = False

        leaving = _Decommissioned(self.session)

        def watch(over: Event) -> None:
            while not over.wait(0.2) and not hub.failed.is_set():
                for executor, executor_host in leaving.executors():
                    reason = f"Spark takes its executor {executor} on {executor_host} away (decommissioning)"
                    hub.stop_host(_names_of(executor_host), reason)
            while not over.wait(_SPARK_ENDS_WITHIN):  # again: between two of its jobs there is none to cancel
                self._cancelled = True
                cancel()

        with _tagged(self.session) as cancel, beside(watch, "orca-canceller"):
            yield

    def _failure(self, failure: WorkerFailed | None, error: Exception) -> Exception:
        """Return the error to raise: the rank's own, else the one that Spark's message tells of."""
        text = str(error)
        if failure is not None:
            return _with_executor_loss(failure, text)
        if "SPARK-24819" in text or "BarrierJobSlotsNumberCheckFailed" in text:
            return TooFewSlots(
                f"{self.workers} workers must run at the same time, and Spark has fewer slots. "
                f"Ask for fewer workers_per_node, or for more cores. Spark said: {text.splitlines()[0]}"
            )
        if (reported := carried_by(text)) is not None:
            return reported.error()
        return recorded_in(text) or made_by_user(text) or error


class _Decommissioned:
    """The executors that Spark is taking away: of machines that are preempted, say.

    Args:
        session: The session.
    """

    def __init__(self, session: SparkSession) -> None:
        is_watched = not is_connect(session) and str(session.conf.get(_DECOMMISSION, "false")).lower() == "true"
        self._scala: Any = cast(Any, session.sparkContext)._jsc.sc() if is_watched else None
        self._next = 0.0

    def executors(self) -> list[tuple[str, str]]:
        """Return numbers and hosts of these executors; looked up once a second, and none in between."""
        if self._scala is None or time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + 1.0
        with suppress(Exception):  # the session may be ending
            scheduler, store = self._scala.taskScheduler(), self._scala.statusStore()
            listed = store.executorList(True)
            infos = [listed.apply(number) for number in range(listed.size())]
            return [
                (str(info.id()), str(info.hostPort()).rpartition(":")[0])
                for info in infos
                if scheduler.getExecutorDecommissionState(info.id()).isDefined()
            ]
        return []


def _names_of(host: str) -> set[str]:
    """Return the names that a rank on a host may give it, of which Spark knows one, or the address."""
    names = {host, socket.gethostname()} if host in ("localhost", "127.0.0.1") else {host}
    with suppress(OSError):
        name, others, _ = socket.gethostbyaddr(host)
        names |= {name, name.partition(".")[0], *others}
    return names


def _with_executor_loss(failure: WorkerFailed, text: str) -> WorkerFailed:
    """Return the loss of a rank with Spark's reason for the loss of its executor, where Spark's error has one."""
    match = re.search(r"ExecutorLostFailure \(executor \S+ .*?\) Reason: (.*)", text)
    if match is None or not isinstance(failure, WorkerLost):
        return failure
    reason = match[1].strip().rstrip(".")
    code = re.search(r"\bexit(?:ed with)? (?:code|status):? (\d+)", reason, re.IGNORECASE)
    words = ended(int(code[1])) if code else failure.reason
    reason = f"its executor was lost (Spark: {reason}): {words}"
    return type(failure)(failure.rank, failure.host, reason, failure.remote_traceback)


def _threads_of(session: SparkSession) -> int:
    """Return the OMP_NUM_THREADS that the user set for the executors or this program; 0 without one."""
    executors = str(session.conf.get("spark.executorEnv.OMP_NUM_THREADS", None) or "")
    if executors.isdigit():
        return int(executors)
    # spark-submit sets it to the cores of the driver, which say nothing about executors.
    derived = "PYSPARK_GATEWAY_PORT" in os.environ and session.conf.get("spark.driver.cores", None)
    threads = threads_asked_for()
    return 0 if derived == str(threads) else threads


def _inheriting(session: SparkSession, work: Callable[[], None]) -> Callable[[], None]:
    """Return work that a thread does with the tags and local properties of this one."""
    if is_connect(session) or int(pyspark.__version__.split(".")[0]) >= 4:
        return inheritable_thread_target(session)(work)  # type: ignore[no-any-return]
    return inheritable_thread_target(work)


@contextmanager
def _tagged(session: SparkSession) -> Iterator[Callable[[], None]]:
    """Mark the jobs of the block; give the function that cancels them."""
    remote, mark = is_connect(session), f"orca-{uuid.uuid4().hex}"
    jobs: Any = session if remote else session.sparkContext
    add, remove, cancel = (
        (jobs.addTag, jobs.removeTag, jobs.interruptTag)
        if remote
        else (jobs.addJobTag, jobs.removeJobTag, jobs.cancelJobsWithTag)
    )

    def cancel_marked() -> None:
        with suppress(Exception):  # the job may just have ended
            cancel(mark)

    add(mark)
    try:
        yield cancel_marked
    finally:
        remove(mark)


@dataclass(frozen=True)
class BarrierPeer:
    """A peer that meets the other ranks through Spark's barrier, which takes a second: Spark looks once in each."""

    context: BarrierTaskContext
    rank: int
    size: int
    host: str
    secret: str = field(repr=False)  # of the run
    grant: Grant

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""
        return self.context.allGather(text)


@dataclass(frozen=True)
class BarrierTask:
    """One rank inside a barrier task, whose record batches are its rows.

    Attributes:
        envelope: The rank's job.
        pieces: Instead of rows, the pickled pieces of all ranks.
        dealt: Whether the record batches hold the rank's pieces.
        over_hub: Whether ranks meet over the hub of the run, as all of them can reach it for sure.
        executor_cpus: The CPUs of an executor, which its ranks share; 0 if unknown.
    """

    envelope: Envelope
    pieces: tuple[bytes, ...] | None = None
    dealt: bool = False
    over_hub: bool = False
    executor_cpus: float = 0.0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the rank on the task's record batches and yield its result."""
        context = BarrierTaskContext.get()
        rank = context.partitionId()
        infos = context.getTaskInfos()
        host = _address(infos[rank].address)
        pieces = _cells(batches) if self.dealt else self.pieces and self.pieces[rank :: len(infos)]
        items: Iterable[Any] = batches
        if pieces is not None:
            items = chain.from_iterable(cloudpickle.loads(piece)() for piece in pieces)

        def peer_of(link: Link) -> Peer:
            size = len(infos)
            neighbours = sum(info.address == infos[rank].address for info in infos)  # on this executor
            gpus = context.resources().get("gpu")
            grant = Grant(self.executor_cpus / neighbours, tuple(gpus.addresses) if gpus else None)
            if self.over_hub:
                return HubPeer(link, rank, size, host, grant)
            return BarrierPeer(context, rank, size, host, link.ticket.secret, grant)

        try:
            result = run_rank(self.envelope, rank, peer_of, items)
        except ReportedFailure as error:
            raise RuntimeError(f"orca rank {rank} on {host} failed: {error}") from None
        except Exception as error:  # the driver knows nothing of it
            raise carrier_of(rank, host, error, is_secondary(error)) from None
        deque(batches, 0)  # Spark ends a Python worker that has not read all
        yield from _payload(rank, result)


@dataclass(frozen=True)
class MapTask:
    """A task applied to the pieces of a partition."""

    work: bytes
    verbosity: str = "info"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results, numbered."""
        adopt(self.verbosity)
        task = cloudpickle.loads(self.work)
        for number, piece in map(cloudpickle.loads, _cells(batches)):
            try:
                result = dumps(task(piece), "the result")
            except Exception as error:
                raise carrier_of(number, socket.gethostname(), error) from None
            yield from _payload(number, result)


def _cells(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for cell in batch.column(1):
            yield cell.as_buffer()


def _payload(rank: int, data: bytes) -> Iterator[pa.RecordBatch]:
    for part, at in enumerate(range(0, len(data), _CHUNK)):
        chunk = [pa.array([rank], pa.int32()), pa.array([part], pa.int32()), pa.array([data[at : at + _CHUNK]])]
        yield pa.RecordBatch.from_arrays(chunk, names=["rank", "part", "payload"])


def _assemble(rows: list[Any], count: int) -> list[Any]:
    if not rows:  # Spark plans a frame without rows away and starts no task for it
        raise DataError(
            "there are no rows: the DataFrame is empty. Check the filters and joins that made it.", code="no-rows"
        )
    parts: list[list[tuple[int, bytes]]] = [[] for _ in range(count)]
    for row in rows:
        parts[row.rank].append((row.part, bytes(row.payload)))
    return [pickle.loads(b"".join(data for _, data in sorted(part))) for part in parts]


def _address(spark_address: str) -> str:
    """Return the IP address of a task's host, as Spark knows it: the host name may resolve to 127.0.1.1."""
    return resolved(spark_address.rsplit(":", 1)[0])
