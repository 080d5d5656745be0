"""RayEngine: ranks as Ray actors. Owns reserving their seats, starting, watching, keeping and ending them.

A seat is a bundle of a placement group: all seats are there before the first rank starts, so ranks never wait for each
other while holding CPUs. Work that needs CPUs of its own, like computing a Ray Dataset, is done before they are taken.

After a run that went well its actors, which have loaded their libraries, wait a minute for the next one. They hold
memory then, and no CPUs, which belong to the seat. An actor with a GPU ends with its run, as it would hold the GPU, and
so does one whose process user code has changed: the next run must go as in a new process.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Lock, Timer
from typing import Any

import cloudpickle
import psutil
import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from orca.cluster.news import wait_until
from orca.core.engine import (
    Envelope,
    HubPeer,
    Job,
    Settings,
    dispatch,
    dumps,
    extend_path,
    owners_of,
    preload,
    run_rank,
    threads_asked_for,
)
from orca.core.resources import Grant
from orca.core.reuse import Baseline
from orca.core.source import Items, Shards
from orca.errors import ArgumentError, TooFewSlots, WorkerLost, code_of, word_of
from orca.monitor.exits import SILENT_END
from orca.monitor.failures import Failure, reason_of
from orca.monitor.hub import Hub
from orca.monitor.link import Link

_LOOPBACK = "127.0.0.1"
_ALL_CPUS_WITHIN = 2.5  # seconds in which seats with all CPUs of the nodes must be there
_SEATS_WITHIN = 1.5  # seconds in which seats with one CPU each must be there
_FREE_WITHIN = 1.0  # seconds to wait until Ray has given-back seats on its books
_CARRIED_AT_ONCE = 16 << 20  # bytes of an object with items
_GONE_WITHIN = 5.0  # seconds for dead ranks to be gone and cleaned up after
_SPARE_FOR = 60.0  # seconds that an actor waits for another run
_AWAKE_WITHIN = 2.0  # seconds in which actors must answer that they can serve another run

logger = logging.getLogger(__name__)


class RayEngine:
    """Ranks as actors of the Ray that this process is connected to.

    Args:
        workers: How many, spread evenly over the nodes.
    """

    name = "ray"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @classmethod
    def on_cluster(cls, workers_per_node: int) -> RayEngine:
        """Return the engine for the Ray that is up, with this many workers on each node that has CPUs.

        Raises:
            ArgumentError: This process is not connected to Ray.
        """
        return cls(len(_nodes()) * workers_per_node)

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        """Run a job on all ranks together; results in rank order."""
        nodes = _nodes()
        _check_room(nodes, self.workers)
        here = _is_here(nodes)
        address = _LOOPBACK if here else str(ray.util.get_node_ip_address())  # at which all nodes reach the driver
        settings = settings.or_threads(_threads_of_environment() or threads_asked_for())
        with dispatch(job, shards, self.workers, address, settings, _room) as (envelope, hub):
            parcels = self._parcels(shards, here)
            with _reserved(self.workers) as seats, _started(seats) as ranks:
                refs = [rank.actor.take.remote(parcel) for rank, parcel in zip(ranks, parcels, strict=True)]
                del parcels
                pids = _gathered(refs, ranks, hub)
                with _ended(ranks, pids):
                    hosts = [_LOOPBACK if here else rank.seat.address for rank in ranks]
                    runs = [
                        rank.actor.run.remote(envelope, rank.number, host, rank.seat.cpus)
                        for rank, host in zip(ranks, hosts, strict=True)
                    ]
                    return [cloudpickle.loads(result) for result in _gathered(runs, ranks, hub)]

    def settle(self, seconds: float) -> bool:
        """Wait until there are CPUs for all workers; their places are reserved in the next run."""
        wait_until(lambda: _all_cpus(_nodes()) >= self.workers, seconds)
        return _all_cpus(_nodes()) > 0

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece alone, as Ray tasks on the same seats that ranks would have."""
        _check_room(_nodes(), self.workers)
        path = tuple(sys.path)
        with _reserved(min(self.workers, max(1, len(pieces)))) as seats:
            work = ray.put(dumps(task, "the task"))
            ranks = [Rank(number, seats[number % len(seats)]) for number in range(len(pieces))]
            refs = [
                _apply.options(**rank.seat.options).remote(path, owners_of(path), work, dumps(piece, "the data"))
                for rank, piece in zip(ranks, pieces, strict=True)
            ]
            return [cloudpickle.loads(result) for result in _gathered(refs, ranks)]

    def _parcels(self, shards: Shards, here: bool) -> list[Parcel]:
        """Return the data of each rank: as Ray already holds it, or pickled by us.

        Pieces that can only be read on the driver's machine are put into Ray where a rank may be elsewhere.
        """
        if shards.home == self.name:
            pieces, native = shards.native(), True
        else:
            pieces = shards.portable()
            native = not here and any(getattr(piece, "here", False) for piece in pieces)
            if native:
                pieces = [_carried(piece) if getattr(piece, "here", False) else piece for piece in pieces]
        shares = [pieces[rank :: self.workers] for rank in range(self.workers)]
        if native:
            return [Parcel(native=tuple(each)) for each in shares]
        return [Parcel(content=dumps(each, "the data")) for each in shares]


# Messages.


@dataclass(frozen=True)
class Parcel:
    """The pieces of a rank's data: those that refer to Ray's objects must be pickled by Ray."""

    content: bytes = b""
    native: tuple[Callable[[], Items], ...] = ()

    def pieces(self) -> list[Callable[[], Items]]:
        """Return the pieces."""
        return cloudpickle.loads(self.content) if self.content else list(self.native)


@dataclass(frozen=True)
class Carried:
    """Items that are in Ray, several to an object."""

    refs: tuple[Any, ...]

    def __call__(self) -> Items:
        """Yield the items."""
        for ref in self.refs:
            yield from ray.get(ref)


def _carried(piece: Callable[[], Items]) -> Carried:
    """Put the items of a piece into Ray, which gives them to any node and spills to disk when memory is full."""
    refs, items, size = [], [], 0
    for item in piece():
        items.append(item)
        size += getattr(item, "nbytes", 0)
        if size >= _CARRIED_AT_ONCE:
            refs.append(ray.put(items))
            items, size = [], 0
    if items:
        refs.append(ray.put(items))
    return Carried(tuple(refs))


@dataclass(frozen=True)
class Outcome:
    """The pickled result of a rank or task, or its failure.

    A failure is returned, not raised: Ray would print those of the ranks that nobody asks any more.
    """

    result: Any = None
    failure: Failure | None = None

    @classmethod
    def of(cls, work: Callable[[], Any]) -> Outcome:
        """Return the outcome of a call."""
        try:
            return cls(work())
        except BaseException as error:  # SystemExit, too, would end the actor without a word
            texts = reason_of(error), traceback.format_exc()
            return cls(failure=Failure(-1, socket.gethostname(), *texts, word=word_of(error), code=code_of(error)))


# On the workers.


class OrcaRank:
    """One rank: an actor."""

    def __init__(self) -> None:
        self.parcel = Parcel()
        self.baseline: Baseline | None = None

    def is_as_new(self) -> bool:
        """Say whether another run would go here as in a new process, and nothing but memory is held meanwhile."""
        return self.baseline is not None and self.baseline.holds()

    def take(self, parcel: Parcel) -> Outcome:
        """Take the data, in a call of its own as Ray holds a call's arguments until it ends; return our process id."""
        preload()
        self.parcel, self.baseline = parcel, self.baseline or Baseline()
        return Outcome(os.getpid())

    def run(self, envelope: Envelope, rank: int, host: str, cpus: int) -> Outcome:
        """Run the job as a rank that others reach at this host and that has so many CPUs of its own."""
        size = envelope.ticket.size
        gpus = len(ray.get_gpu_ids())  # Ray lets this process see only these
        grant = Grant(cpus, tuple(map(str, range(gpus))) if gpus else None)

        def peer_of(link: Link) -> HubPeer:
            return HubPeer(link, rank, size, host, grant)

        return Outcome.of(lambda: run_rank(envelope, rank, peer_of, self._items(), _spill_folders()))

    def _items(self) -> Items:
        """Yield all items; free each piece after it was read."""
        pieces = self.parcel.pieces()
        self.parcel = Parcel()
        while pieces:
            yield from pieces.pop(0)()


def _spill_folders() -> list[str]:
    """Return the folder of this node to which Ray writes objects that do not fit into memory."""
    node = importlib.import_module("ray._private.worker")._global_node  # Ray has no public way to tell
    return [str(node._fallback_directory)] if node is not None and node._fallback_directory else []


@ray.remote
def _apply(path: tuple[str, ...], owners: tuple[int, ...], work: bytes, piece: bytes) -> Outcome:
    extend_path(path, owners)
    return Outcome.of(lambda: dumps(cloudpickle.loads(work)(cloudpickle.loads(piece)), "the result"))


@ray.remote(num_cpus=0)
def _await_end(pids: list[int]) -> None:
    wait_until(lambda: not any(map(_alive, pids)), _GONE_WITHIN, every=0.05)


def _alive(pid: int) -> bool:
    with suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


# The cluster.


def _nodes() -> list[dict[str, Any]]:
    """Return the nodes that can have workers: alive and with CPUs (a head node is often started without)."""
    if not ray.is_initialized():
        raise ArgumentError(
            "backend 'ray' needs a Ray to run on, and this program has none. Call init_orca_context(cores=...) first, "
            'for a Ray on Spark, or init_orca_context(runtime="ray", cores=...) for one alone.',
            code="no-ray",
        )
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in nodes if node["Resources"].get("CPU", 0) >= 1] or nodes


def _is_here(nodes: list[dict[str, Any]]) -> bool:
    """Say whether every node is on the driver's machine: then nothing needs to leave the loopback interface."""
    return {node["NodeManagerAddress"] for node in nodes} == {ray.util.get_node_ip_address()}


def _threads_of_environment() -> int:
    """Return the OMP_NUM_THREADS that the program gave the workers of its Ray; 0 without one."""
    variables = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    threads = str(variables.get("OMP_NUM_THREADS", ""))
    return int(threads) if threads.isdigit() else 0


def _check_room(nodes: list[dict[str, Any]], workers: int) -> None:
    """Refuse at once a run that could not start even if the cluster were empty."""
    if workers > _all_cpus(nodes):
        raise _too_few(workers)


def _all_cpus(nodes: list[dict[str, Any]]) -> int:
    return sum(int(node["Resources"].get("CPU", 0)) for node in nodes)


def _cpus() -> tuple[float, float]:
    return ray.cluster_resources().get("CPU", 0), ray.available_resources().get("CPU", 0)


def _room() -> str:
    have, free = _cpus()
    return f"Ray shows {free:g} of {have:g} CPUs free"


def _too_few(workers: int) -> TooFewSlots:
    have, free = _cpus()
    return TooFewSlots(
        f"{workers} worker(s) must run at the same time and need a CPU each; Ray has {have:g} CPU(s) on "
        f"{len(_nodes())} node(s), {free:g} of them free now. Lower workers_per_node, start Ray with more "
        'CPUs (init_orca_context(runtime="ray", cores=...)), or end what else holds them (`ray status` tells).'
    )


# Seats.


@dataclass(frozen=True)
class RankSeat:
    """The place of one rank in a placement group."""

    group: PlacementGroup
    bundle: int
    cpus: int
    gpus: int
    node: str
    address: str
    host: str

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of an actor or task that sits here."""
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundle)
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": strategy}


@contextmanager
def _reserved(workers: int) -> Iterator[list[RankSeat]]:
    """Give seats in rank order, those of a node side by side, and give them back at the end.

    A worker gets its share of the CPUs and GPUs of its node; where something else uses the cluster, one CPU.
    """
    nodes = _nodes()
    shares = _shares(nodes, workers)
    group = _group(shares, _ALL_CPUS_WITHIN)
    if group is None:
        shares = [(1, gpus) for _, gpus in shares]
        group = _group(shares, _SEATS_WITHIN)
        if group is None:
            raise _too_few(workers)
        logger.warning("other work holds CPUs of this Ray: each of the %d worker(s) gets one CPU only", workers)
    try:
        yield _seats(group, shares, nodes)
    finally:
        remove_placement_group(group)
        # The next user of the CPUs, Ray Data for one, would complain that none is free.
        cpus = sum(cpus for cpus, _ in shares)
        wait_until(lambda: ray.available_resources().get("CPU", 0) >= cpus, _FREE_WITHIN, every=0.02)


def _shares(nodes: list[dict[str, Any]], workers: int) -> list[tuple[int, int]]:
    per_node = -(-workers // len(nodes))
    shares = [
        (max(1, int(node["Resources"].get("CPU", 0)) // per_node), int(node["Resources"].get("GPU", 0)) // per_node)
        for node in nodes
        for _ in range(per_node)
    ]
    return shares[:workers]


def _group(shares: Sequence[tuple[int, int]], within: float) -> PlacementGroup | None:
    """Return a placement group that is ready, or None where there is no room in time."""
    # SPREAD goes around the nodes, so each gets its share; unlike STRICT_SPREAD it also allows several on one.
    group = placement_group([{"CPU": c, "GPU": g} if g else {"CPU": c} for c, g in shares], strategy="SPREAD")
    ready = False
    try:
        ready = group.wait(within)
    finally:
        if not ready:
            remove_placement_group(group)
    return group if ready else None


def _seats(group: PlacementGroup, shares: list[tuple[int, int]], nodes: list[dict[str, Any]]) -> list[RankSeat]:
    places = {node["NodeID"]: (str(node["NodeManagerAddress"]), str(node["NodeManagerHostname"])) for node in nodes}
    where = placement_group_table(group)["bundles_to_node_id"]
    seats = [RankSeat(group, i, *share, where[i], *places[where[i]]) for i, share in enumerate(shares)]
    return sorted(seats, key=lambda seat: (seat.node, seat.bundle))


# Ranks, seen from the driver.


@dataclass(frozen=True)
class Rank:
    """A rank's number, seat and actor."""

    number: int
    seat: RankSeat
    actor: Any = None


@contextmanager
def _started(seats: list[RankSeat]) -> Iterator[list[Rank]]:
    """Give each seat an actor; keep those that are as new for another run after one that went well; kill the others."""
    kind = ray.remote(max_restarts=0, max_task_retries=0)(OrcaRank)
    ranks: list[Rank] = []
    try:
        spares = [None if seat.gpus else _spares.take(seat.node) for seat in seats]
        usable = _as_new([actor for actor in spares if actor is not None])
        for number, (seat, actor) in enumerate(zip(seats, spares, strict=True)):
            if actor is not None and actor not in usable:
                _kill(actor)
                actor = None
            ranks.append(Rank(number, seat, actor or kind.options(**_options(seat)).remote()))
        yield ranks
    except BaseException:
        for rank in ranks:
            ray.kill(rank.actor)
        raise
    usable = _as_new([rank.actor for rank in ranks if not rank.seat.gpus])
    for rank in ranks:
        if rank.actor in usable:
            _spares.keep(rank.seat.node, rank.actor)
        else:
            _kill(rank.actor)


def _options(seat: RankSeat) -> dict[str, Any]:
    """Return the options of the actor of a rank: it holds no CPUs, unless it has a GPU."""
    there = NodeAffinitySchedulingStrategy(seat.node, soft=False)
    return seat.options if seat.gpus else {"num_cpus": 0, "scheduling_strategy": there}


class Spares:
    """Actors of earlier runs, by their node: those of a Ray that is gone are on nodes that never come back."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.idle: dict[str, dict[Any, Timer]] = defaultdict(dict)

    def take(self, node: str) -> Any:
        """Return an actor that waits on a node, None where there is none."""
        with self.lock:
            if not self.idle[node]:
                return None
            actor, timer = self.idle[node].popitem()
        timer.cancel()
        return actor

    def keep(self, node: str, actor: Any) -> None:
        """Let an actor wait for another run, for a while."""
        timer = Timer(_SPARE_FOR, self._end, (node, actor))
        timer.daemon = True
        with self.lock:
            self.idle[node][actor] = timer
        timer.start()

    def _end(self, node: str, actor: Any) -> None:
        with self.lock:
            waits = self.idle[node].pop(actor, None) is not None
        if waits:
            _kill(actor)


_spares = Spares()


def _as_new(actors: Sequence[Any]) -> set[Any]:
    """Ask all actors at once whether they can serve another run; return those that can, not those that are gone."""
    refs = {actor.is_as_new.remote(): actor for actor in actors}
    usable = set()
    for ref in ray.wait(list(refs), num_returns=len(refs), timeout=_AWAKE_WITHIN)[0] if refs else ():
        with suppress(ray.exceptions.RayError):
            if ray.get(ref):
                usable.add(refs[ref])
    return usable


def _kill(actor: Any) -> None:
    with suppress(Exception):  # it is gone, or its Ray is
        if ray.is_initialized():  # else kill would start another Ray
            ray.kill(actor)


@contextmanager
def _ended(ranks: list[Rank], pids: list[int]) -> Iterator[None]:
    """End all ranks after a failure, and see them gone."""
    try:
        yield
    except BaseException:
        for rank in ranks:
            ray.kill(rank.actor)
        waits = []
        for node in {rank.seat.node for rank in ranks}:
            there = [pid for rank, pid in zip(ranks, pids, strict=True) if rank.seat.node == node]
            waits.append(
                _await_end.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, True)).remote(there)
            )
        ray.wait(waits, num_returns=len(waits), timeout=2 * _GONE_WITHIN)
        raise


def _gathered(refs: list[Any], ranks: list[Rank], hub: Hub | None = None) -> list[Any]:
    """Return the results of all calls, in rank order; raise for the rank that failed first."""
    rest = dict(zip(refs, ranks, strict=True))
    results: dict[int, Any] = {}
    while rest:
        for ref in ray.wait(list(rest), timeout=0.1)[0]:
            rank = rest.pop(ref)
            results[rank.number] = _result(ref, rank, hub)
        failure = hub.error() if hub else None
        if failure:
            raise failure
    return [results[rank.number] for rank in ranks]


def _result(ref: Any, rank: Rank, hub: Hub | None) -> Any:
    try:
        outcome: Outcome = ray.get(ref)
    except ray.exceptions.RayError as error:
        reason = _words(str(error))
        if hub:
            hub.lost(rank.number, rank.seat.host, reason)
        raise (hub.error(5.0) if hub else None) or WorkerLost(rank.number, rank.seat.host, reason) from None
    if outcome.failure:
        raise (hub.error(5.0) if hub else None) or replace(outcome.failure, rank=rank.number).error()
    return outcome.result


def _words(text: str) -> str:
    """Return in one line Ray's words about the end of a process."""
    if "No module named 'orca'" in text:
        return "it cannot import orca. Install orca-dl, in the same version, on every node of the Ray cluster."
    if "Worker exit type: SYSTEM_ERROR" in text:
        return SILENT_END
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1 if "creation task" in text else 0]
