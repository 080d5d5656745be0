"""World: the ranks of one run, seen from one of them. Owns rendezvous, addresses and collectives.

One all_gather of the peer tells every rank where rank 0 listens; from there on rank 0's rendezvous and torch's process
group carry everything. A world of size 1 is an ordinary world.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import psutil

from orca.core.items import decode, encode
from orca.core.network import choose_interface, endpoint
from orca.core.rendezvous import Client, Rendezvous
from orca.core.resources import Grant, Inventory, assigned_gpus
from orca.core.store import run_store
from orca.core.sums import Meeting, SharedSums, shared_sums
from orca.errors import ArgumentError, MissingDependency, OrcaError
from orca.monitor.heartbeat import WAIT, Heartbeat


class Peer(Protocol):
    """The least that an engine gives each rank."""

    @property
    def rank(self) -> int:
        """Return the number of this rank."""

    @property
    def size(self) -> int:
        """Return how many ranks there are."""

    @property
    def host(self) -> str:
        """Return the address at which others reach this rank."""

    @property
    def secret(self) -> str:
        """Return the secret of the run, by which its ranks know each other."""

    @property
    def grant(self) -> Grant:
        """Return the CPUs and GPUs that the engine gives this rank."""

    def all_gather(self, text: str) -> list[str]:
        """Return the texts of all ranks, in rank order."""


class World(Protocol):
    """The ranks that step together, seen from one of them.

    An item is a plain value, a numpy array, a torch tensor, or a tree of them (`core/items.py`); nothing is pickled.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    host: str
    heartbeat: Heartbeat
    resources: Sequence[Inventory]  # of each rank
    sums: SharedSums | None  # the sums in memory that all ranks share; None where they share none

    def all_gather(self, item: Any) -> list[Any]:
        """Return every rank's item, in rank order, on every rank."""

    def gather(self, item: Any) -> list[Any] | None:
        """Return every rank's item on rank 0; None elsewhere."""

    def broadcast(self, item: Any) -> Any:
        """Return rank 0's item on every rank."""

    def all_reduce(self, arrays: Sequence[np.ndarray], how: str = "mean") -> list[np.ndarray]:
        """Return the element-wise mean or sum over all ranks."""


class TorchWorld:
    """A world on torch.distributed: gloo between CPUs, NCCL between GPUs where every rank has its own.

    Arrays are added up in shared memory where all ranks are on one machine.
    """

    sums: SharedSums | None = None

    def __init__(self, rank: int, host: str, resources: Sequence[Inventory], heartbeat: Heartbeat) -> None:
        here = [other for other, inventory in enumerate(resources) if inventory.node == resources[rank].node]
        self.rank, self.size = rank, len(resources)
        self.local_rank, self.local_size = here.index(rank), len(here)
        self.host, self.resources, self.heartbeat = host, resources, heartbeat

    def all_gather(self, item: Any) -> list[Any]:
        """Return every rank's item, in rank order, on every rank."""
        with _waiting(self.heartbeat):
            return [decode(data) for data in _all_gather_bytes(encode(item), self.size)]

    def gather(self, item: Any) -> list[Any] | None:
        """Return every rank's item on rank 0; None elsewhere."""
        with _waiting(self.heartbeat):
            parts = _gather_bytes(encode(item), self.rank, self.size)
            return None if self.rank else [decode(data) for data in parts]

    def broadcast(self, item: Any) -> Any:
        """Return rank 0's item on every rank."""
        with _waiting(self.heartbeat):
            return decode(_broadcast_bytes(b"" if self.rank else encode(item)))

    def all_reduce(self, arrays: Sequence[np.ndarray], how: str = "mean") -> list[np.ndarray]:
        """Return the element-wise mean or sum over all ranks."""
        if self.sums is not None:
            totals = self.sums.add(arrays)
        else:
            with _waiting(self.heartbeat):
                totals = _sums_by_gloo(arrays)
        return [total / self.size for total in totals] if how == "mean" else totals


@contextmanager
def form(peer: Peer, timeout: float, heartbeat: Heartbeat) -> Iterator[TorchWorld]:
    """Join the ranks of a run into a world; leave it at the end.

    Args:
        peer: The engine's half of the world for this rank.
        timeout: Seconds after which a collective that others do not join fails; 0 for no limit.
        heartbeat: Shows that this rank waits for the others.
    """
    dist = _dist()
    with ExitStack() as stack:
        place = endpoint("rendezvous", peer.host)
        rendezvous = None if peer.rank else Rendezvous(place.bind, peer.secret, peer.size, place.ports)
        if rendezvous is not None:
            stack.callback(rendezvous.close)
        meeting = Meeting(peer.size, peer.rank, peer.secret)
        with _waiting(heartbeat):
            cards = [
                json.loads(text) for text in peer.all_gather(json.dumps(_card(peer, place.host, rendezvous, meeting)))
            ]
        _check_versions(cards)
        resources = [Inventory(**card["resources"]) for card in cards]
        choose_interface(peer.host)
        patience = timedelta(seconds=max(timeout, 60.0)) if timeout > 0 else timedelta(days=30)  # 0: no limit
        client = Client(cards[0]["host"], cards[0]["port"], peer.secret, peer.rank, patience.total_seconds())
        stack.callback(client.close)
        store = run_store(client, patience)
        dist.init_process_group(
            "gloo" if None in assigned_gpus(resources) else "cpu:gloo,cuda:nccl",
            store=store,
            rank=peer.rank,
            world_size=peer.size,
            timeout=patience,
        )
        world = TorchWorld(peer.rank, peer.host, resources, heartbeat)
        if world.local_size == peer.size:
            limit = patience.total_seconds() if timeout > 0 else None
            names = [card["meeting"] for card in cards]
            world.sums = shared_sums(meeting, names, lambda mine: all(world.all_gather(mine)), limit, heartbeat)
        meeting.close()
        yield world
        if world.sums is not None:
            world.sums.close()
        # Not after a failure: the error's traceback may still hold a DistributedDataParallel, and torch deadlocks when
        # the group goes before it does. A failed rank's process ends anyway.
        dist.destroy_process_group()


@contextmanager
def _waiting(heartbeat: Heartbeat) -> Iterator[None]:
    before = heartbeat.phase
    heartbeat.at(WAIT)
    yield
    heartbeat.at(before)


def _dist() -> Any:
    try:
        import torch.distributed as dist
    except ImportError:
        raise MissingDependency.of("torch", "torch", "training on several workers") from None
    if not dist.is_available():
        raise OrcaError(
            "this build of torch has no torch.distributed; install torch from its usual packages.",
            code="torch-without-distributed",
        )
    return dist


def _all_gather_bytes(data: bytes, size: int) -> list[memoryview]:
    """Return the bytes of all ranks, in rank order."""
    import torch

    lengths = _lengths(data, size)
    parts = list(torch.empty(size, max(lengths), dtype=torch.uint8).unbind())
    _dist().all_gather(parts, _padded(data, max(lengths)))
    return [part.numpy().data[:length] for part, length in zip(parts, lengths, strict=True)]


def _gather_bytes(data: bytes, rank: int, size: int) -> list[memoryview]:
    """Return the bytes of all ranks on rank 0; nothing elsewhere."""
    import torch

    lengths = _lengths(data, size)
    parts = [] if rank else list(torch.empty(size, max(lengths), dtype=torch.uint8).unbind())
    _dist().gather(_padded(data, max(lengths)), parts or None)
    return [part.numpy().data[:length] for part, length in zip(parts, lengths, strict=False)]


def _broadcast_bytes(data: bytes) -> memoryview:
    """Return the bytes of rank 0."""
    import torch

    length = torch.tensor([len(data)])
    _dist().broadcast(length, 0)
    whole = _padded(data, _checked_length(int(length)))
    _dist().broadcast(whole, 0)
    return whole.numpy().data


def _lengths(data: bytes, size: int) -> list[int]:
    import torch

    lengths = list(torch.empty(size, 1, dtype=torch.int64).unbind())
    _dist().all_gather(lengths, torch.tensor([len(data)]))
    longest = max(map(int, lengths))
    _checked_length(longest * size if min(map(int, lengths)) > 0 else -1)
    return [int(length) for length in lengths]


def _checked_length(length: int) -> int:
    """Return a number of bytes that another rank says, before memory is taken for them."""
    memory = psutil.virtual_memory().total
    if not 0 < length <= memory:
        raise OrcaError(
            f"another rank says that it sends {length} bytes; this machine has {memory} of memory.",
            code="message-too-long",
        )
    return length


def _padded(data: bytes, length: int) -> Any:
    import torch

    whole = torch.zeros(length, dtype=torch.uint8)
    whole.numpy()[: len(data)] = np.frombuffer(data, np.uint8)
    return whole


def _sums_by_gloo(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sums of arrays over all ranks, with one message for each type of them."""
    import torch

    totals = [np.array(array) for array in arrays]
    for kind in dict.fromkeys(total.dtype for total in totals):
        alike = [total for total in totals if total.dtype == kind]
        flat = torch.from_numpy(np.concatenate([np.ravel(total) for total in alike]))
        _dist().all_reduce(flat)
        parts = np.split(flat.numpy(), np.cumsum([total.size for total in alike])[:-1])
        for total, part in zip(alike, parts, strict=True):
            total[...] = part.reshape(total.shape)
    return totals


def _card(peer: Peer, host: str, rendezvous: Rendezvous | None, meeting: Meeting) -> dict[str, Any]:
    import torch

    return {
        "host": host,
        "port": rendezvous.port if rendezvous else 0,
        "meeting": meeting.name,
        "resources": asdict(Inventory.of(peer.host, peer.grant)),
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": torch.__version__.split("+")[0],
    }


def _check_versions(cards: list[dict[str, Any]]) -> None:
    first = cards[0]
    for rank, card in enumerate(cards):
        for what in ("python", "torch"):
            if card[what] != first[what]:
                raise ArgumentError(
                    f"all workers must run the same {what}; rank 0 on {first['host']} has {first[what]}, "
                    f"rank {rank} on {card['host']} has {card[what]}. Give every node the same environment.",
                    code="versions-differ",
                )
