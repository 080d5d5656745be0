"""Engine: n ranks started together. Owns the Engine protocol and run_rank, the first of our code on any worker."""

from __future__ import annotations

import errno
import gc
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import cloudpickle

from orca.core import network
from orca.core.processor import protect_from_amx
from orca.core.resources import NO_LIMIT, Grant, cpus_of
from orca.core.source import Open, Rows, Shards
from orca.core.tls import Certificate, encrypted
from orca.core.units import check_seconds, not_negative
from orca.core.world import Peer, World, form
from orca.errors import ArgumentError, OrcaError, WorkerFailed
from orca.monitor import verbosity
from orca.monitor.failures import reason_of
from orca.monitor.heartbeat import Heartbeat, counted
from orca.monitor.hub import Hub
from orca.monitor.link import Link
from orca.monitor.progress import Progress
from orca.monitor.protocol import Ticket
from orca.monitor.stopping import stopping_on_signals
from orca.monitor.waiting import waiting
from orca.monitor.worker_logs import Echo, speaking
from orca.rows.spool import spool_folder
from orca.storage import hdfs
from orca.storage.retries import STORAGE_TIMEOUT

logger = logging.getLogger(__name__)

Job = Callable[[World, dict[str, Rows], Heartbeat], Any]


@dataclass(frozen=True)
class Settings:
    """The settings by which a run is watched.

    Attributes:
        stall_timeout: Seconds without progress on any rank after which the stuck rank is named and the run ended.
        progress: Whether to show progress on the driver: a bar in a terminal, else a line for each epoch.
        threads: Threads of each rank for its arithmetic; 0 gives it its share of the CPUs (`core/resources.py`).
        log_level: Level of the ranks' root logger while the job runs.
        log_to_driver: Whether the output and log records of ranks appear on the driver, tagged by rank.
        start_timeout: Seconds that ranks may take to start; 0 waits forever, and logs the reason.
        storage_timeout: Seconds for which storage of checkpoints that fails is tried again.
        return_timeout: Seconds that lost workers may take to come back, where `max_failures` lets a fit go on.
        bar: Whether progress may be a bar; else there is a line for each epoch in a terminal as well.
    """

    stall_timeout: float = 300.0
    progress: bool = True
    threads: int = 0
    log_level: int = logging.INFO
    log_to_driver: bool = True
    start_timeout: float = 0.0
    bar: bool = True
    storage_timeout: float = STORAGE_TIMEOUT
    return_timeout: float = 60.0

    def __post_init__(self) -> None:
        for name in ("stall_timeout", "start_timeout"):
            check_seconds(getattr(self, name), name, no_limit=0)
        for name in ("storage_timeout", "return_timeout"):
            not_negative(getattr(self, name), name)

    def or_threads(self, threads: int) -> Settings:
        """Return these settings, with so many threads unless they say how many."""
        return replace(self, threads=self.threads or threads)


class Engine(Protocol):
    """A way to start n ranks together and bring back their results; it knows nothing of models."""

    name: str
    workers: int

    @classmethod
    def on_cluster(cls, workers_per_node: int) -> Engine:
        """Return the engine for the cluster that is up now, with this many workers on each node."""

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        """Run a job on all ranks together; results in rank order, or one WorkerFailed that names the rank."""

    def settle(self, seconds: float) -> bool:
        """Wait until the cluster knows of a worker that was lost in the last run and has room for all of them again.

        Args:
            seconds: How long lost workers may take to come back.

        Returns:
            Whether the cluster has room for any worker.
        """

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece alone, in any order; results in the order of the pieces."""


@dataclass(frozen=True)
class Envelope:
    """The things that travel to each rank besides its data: the job, pickled once, how to report, and where HDFS is."""

    work: bytes
    ticket: Ticket
    settings: Settings
    path: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    verbosity: str = "info"
    network: tuple[tuple[str, str], ...] = ()
    certificate: Certificate | None = None  # of the run, if its connections are encrypted
    owners: tuple[int, ...] = ()  # of the folders of the path


class ReportedFailure(OrcaError):
    """A failure of a rank that the driver knows in full: the process of the rank needs to show nothing more."""


@contextmanager
def dispatch(
    job: Job, shards: Shards, workers: int, host: str, settings: Settings, room: Callable[[], str] = str
) -> Iterator[tuple[Envelope, Hub]]:
    """Open the hub of a run on the driver and seal the envelope for its ranks; `room` tells the cluster's free room."""
    try:
        if protection := protect_from_amx():  # local ranks have this process's environment
            logger.warning("%s", protection)
        work, place = seal(job, shards.open), network.endpoint("hub", host)
        certificate = Certificate.new() if network.wants_tls() else None
        with suppress(ImportError), encrypted(certificate):  # a driver without torch leaves the check to the ranks
            pass
        with (
            Progress(settings.progress, settings.bar) as progress,
            Echo(progress) as echo,
            Hub(
                workers,
                place.host,
                stall=settings.stall_timeout,
                on_beat=echo.beat,
                on_log=echo.line,
                on_epoch=echo.epoch,
                bind=place.bind if place.bind != place.host else "",
                ports=place.ports,
            ) as hub,
            waiting(hub, settings.start_timeout, room),
            stopping_on_signals(hub),
        ):
            environment = tuple(hdfs.environment().items())
            sent = tuple(network.settings().items())
            path = tuple(sys.path)
            words = verbosity.verbosity()
            owners = owners_of(path)
            yield Envelope(work, hub.ticket, settings, path, environment, words, sent, certificate, owners), hub
    except WorkerFailed as failure:
        raise failure from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OrcaError(
            f"there is no room for temporary files in {tempfile.gettempdir()}: {error}. Make room there, or set TMPDIR "
            "to a folder on a larger local disk before the program starts.",
            code="no-room-for-files",
        ) from error
    finally:
        shards.release()


@dataclass(frozen=True)
class HubPeer:
    """A peer that meets the other ranks over the hub of the run."""

    link: Link
    rank: int
    size: int
    host: str
    grant: Grant = NO_LIMIT

    @property
    def secret(self) -> str:
        """Return the secret of the run, by which its ranks know each other."""
        return self.link.ticket.secret

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""
        return self.link.all_gather(text)


def run_rank(
    envelope: Envelope, rank: int, peer_of: Callable[[Link], Peer], items: Iterable[Any], folders: Sequence[str] = ()
) -> bytes:
    """Run one rank: read its rows, join the others, do the job; return its result, pickled.

    Args:
        envelope: What all ranks get.
        rank: The number of this rank.
        peer_of: Returns the engine's half of the world.
        items: The rank's data.
        folders: Folders of the engine's on local disks, for large files.

    Raises:
        ReportedFailure: The rank failed, and its driver knows why.
        Exception: It failed, and cannot reach its driver.
    """
    extend_path(envelope.path, envelope.owners)
    verbosity.adopt(envelope.verbosity)
    hdfs.adopt(dict(envelope.environment))
    network.adopt(dict(envelope.network))
    protection = preload()
    link, settings = Link.connect(envelope.ticket, rank), envelope.settings
    try:
        peer = peer_of(link)
        with (
            link.heartbeat.current(),
            link.reporting_crashes(),
            link.leaving_in_order(),
            speaking(link, settings.log_level, settings.log_to_driver),
            encrypted(envelope.certificate),
        ):
            if protection:
                logger.info("%s", protection)
            job, open_rows = cloudpickle.loads(envelope.work)
            # The hub watches over a linked rank; without it, a collective that nobody joins must end by itself.
            patience = 0.0 if link.connected else settings.stall_timeout
            # Spools are files without a name: nothing is left of them, even when the rank is killed.
            rows = dict(open_rows(counted(iter(items)), spool_folder(folders)))
            # The doctor's job forms the world itself, where its ranks reach each other.
            on_peer = getattr(job, "run_on_peer", None)
            work = on_peer or partial(_work, job, rows, settings)
            result = dumps(work(peer, patience, link.heartbeat), "the result")
    except BaseException as error:
        if link.fail(error, secondary=is_secondary(error)):
            raise ReportedFailure(reason_of(error)) from None
        raise
    link.close()
    return result


def preload() -> str:
    """Import slow libraries before the driver counts this rank's silence as a stall; return what protects the process.

    See protect_from_amx.
    """
    protection = protect_from_amx()
    with suppress(ImportError):  # World says it in words
        import torch.distributed  # noqa: F401
    return protection


def _work(
    job: Job, rows: dict[str, Rows], settings: Settings, peer: Peer, patience: float, heartbeat: Heartbeat
) -> Any:
    try:
        with form(peer, patience, heartbeat) as world:
            _set_threads(settings.threads, world)
            result = job(world, rows, heartbeat)
            gc.collect()  # torch deadlocks when its process group goes while a DistributedDataParallel is alive
        return result
    finally:
        for part in rows.values():
            part.close()


def _set_threads(threads: int, world: World) -> None:
    share = threads or cpus_of(world.rank, world.resources)
    os.environ["OMP_NUM_THREADS"] = str(share)  # for libraries that are loaded later
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(share)


def threads_asked_for() -> int:
    """Return the threads that OMP_NUM_THREADS asks for in this process, 0 where it does not."""
    number = os.environ.get("OMP_NUM_THREADS", "")
    return int(number) if number.isdigit() else 0


def is_secondary(error: BaseException) -> bool:
    """Say whether an error only tells that another rank went away."""
    if type(error).__name__ in ("DistNetworkError", "DistBackendError", "DistStoreError"):
        return True
    text = reason_of(error)
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ("Connection closed by peer", "Connection reset by peer", "gloo/transport", "NCCL")
    )


def dumps(thing: Any, what: str) -> bytes:
    """Pickle something that travels to the workers; functions of the main program travel by value.

    Raises:
        ArgumentError: It cannot be pickled.
    """
    try:
        return cloudpickle.dumps(thing)
    except Exception as error:
        raise ArgumentError(
            f"{what} cannot be sent to the workers: {type(error).__name__}: {error}. It (or something it refers to, "
            "like an open file, a lock, a socket or a Spark object) cannot be pickled; create such things inside the "
            "creator function, on the worker.",
            code="not-picklable",
        ) from (error if verbosity.is_debug() else None)


def seal(job: Job, open_rows: Open) -> bytes:
    """Pickle a job with all it refers to in one go, so that a model and its optimizer stay linked.

    Raises:
        ArgumentError: Naming the part (model, optimizer, loss, ...) that cannot be pickled.
    """
    try:
        return dumps((job, open_rows), "the job")
    except ArgumentError:
        pass
    parts = vars(job) if hasattr(job, "__dict__") else {}
    for part in [parts.get("learner"), parts.get("plan"), job]:
        for name, value in vars(part).items() if hasattr(part, "__dict__") else ():
            if name != "learner":
                dumps(value, name)
    return dumps((job, open_rows), "the job")


def extend_path(entries: Iterable[str], owners: Collection[int]) -> None:
    """Let this worker import the driver's modules, where it has the same folders.

    Others may have put modules into a folder that is theirs here, or that everybody may write to, like /tmp.

    Args:
        entries: The driver's sys.path.
        owners: The users whose folders the driver imports from.
    """
    for entry in entries:
        if entry and entry not in sys.path and os.path.isdir(entry):
            status = os.stat(entry)
            own = sys.platform == "win32" or status.st_uid in (os.geteuid(), 0, *owners)
            if own and not status.st_mode & stat.S_IWOTH:
                sys.path.append(entry)


def owners_of(entries: Iterable[str]) -> tuple[int, ...]:
    """Return the users to whom folders of this process' sys.path belong."""
    return tuple(sorted({os.stat(entry).st_uid for entry in entries if os.path.isdir(entry)}))
