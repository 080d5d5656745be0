"""Survey: the job of the doctor's ranks. Owns the facts a rank reports, and knocking at all others.

A rank looks around and knocks at the others before the world forms. Where some cannot reach each other it does not
form: joining would take forever. The reports come back as the results of any job do.
"""

from __future__ import annotations

import glob
import json
import os
import secrets
import shutil
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from orca.cluster.proof import Description, describe, differences
from orca.core.processor import VARIABLE, amx
from orca.core.resources import Inventory
from orca.core.source import Items
from orca.core.world import Peer, form
from orca.errors import OrcaError
from orca.monitor.heartbeat import Heartbeat
from orca.rows.spool import spool_folder
from orca.storage.files import filesystem, probe_file

KNOCK_WITHIN = 3.0  # seconds to reach another rank


@dataclass(frozen=True)
class Report:
    """The facts about one rank."""

    rank: int
    host: str  # the address at which the others reach it
    node: str  # the name of its machine
    linked: bool = True  # whether it reached the driver
    different: tuple[str, ...] = ()  # how its Python and packages differ from the driver's
    temporary: str = ""  # the folder for temporary files
    free: int = 0  # bytes free in it
    memory: int = 0  # bytes that a new process may still take
    gpus: tuple[str, ...] = ()  # names of those that torch can use
    resources: Inventory = field(default_factory=lambda: Inventory("", [], []))  # the CPUs and GPUs that it may use
    devices: int = 0  # GPUs that the machine shows to its processes
    amx: str = ""  # "works" or "fails" where the processor reports it
    onednn: str = ""  # the instructions that oneDNN may use, as a variable says
    storage: str = ""  # why model_dir cannot be written from there
    sees_driver: bool = True  # whether the driver's file in model_dir is there for this rank
    obstacles: tuple[tuple[int, str], ...] = ()  # ranks it could not reach, each with the reason
    interface: str = ""  # the network interface that gloo took
    join_seconds: float | None = None  # seconds it took to join; None where the ranks did not


@dataclass(frozen=True)
class Survey:
    """The job: look around, knock at the other ranks, join them, and add up one number."""

    driver: Description
    model_dir: str | None = None
    mark: str = ""  # the name of the driver's file in model_dir; "" where it could not write one

    def run_on_peer(self, peer: Peer, timeout: float, heartbeat: Heartbeat) -> Report:
        """Return the report of this rank."""
        temporary, torch = str(spool_folder()), sys.modules.get("torch")
        usable = torch.cuda.device_count() if torch is not None and torch.cuda.is_available() else 0
        facts: dict[str, Any] = {
            "rank": peer.rank,
            "host": peer.host,
            "node": socket.gethostname(),
            "linked": timeout == 0,  # the hub watches over a rank that reached it, whose collectives have no limit
            "different": tuple(differences(self.driver, describe(loaded=False))),
            "temporary": temporary,
            "free": shutil.disk_usage(temporary).free,
            "memory": free_memory(),
            "gpus": tuple(torch.cuda.get_device_name(number) for number in range(usable)) if torch else (),
            "resources": Inventory.of(peer.host, peer.grant),
            "devices": len(glob.glob("/dev/nvidia[0-9]*")),
            "amx": amx(),
            "onednn": os.environ.get(VARIABLE, ""),
            **(self._storage(peer.rank) if self.model_dir else {}),
        }
        failures, apart = knock_at_all(peer)
        if apart:
            return Report(**facts, obstacles=failures)
        start = time.monotonic()
        with form(peer, timeout, heartbeat) as world:
            [total] = world.all_reduce([np.ones(1)], how="sum")
            if int(total[0]) != world.size:
                raise OrcaError(
                    f"{world.size} ranks added up to {total[0]:g}: their collectives do not work.",
                    code="collectives-wrong",
                )
        return Report(**facts, interface=os.environ["GLOO_SOCKET_IFNAME"], join_seconds=time.monotonic() - start)

    def _storage(self, rank: int) -> dict[str, Any]:
        """Return why the rank that writes checkpoints cannot, and whether this rank sees the driver's file."""
        path, refusal, there = str(self.model_dir), "", not self.mark
        if rank == 0:
            try:
                with probe_file(path):
                    pass
            except Exception as problem:
                refusal = f"{type(problem).__name__}: {problem}"
        with suppress(Exception):
            fs, folder = filesystem(path)
            there = there or bool(fs.exists(f"{folder.rstrip('/')}/{self.mark}"))
        return {"storage": refusal, "sees_driver": there}


def nothing(items: Items, folder: Path) -> dict[str, Any]:
    """Open no data; all items are read, or Spark would end this Python worker."""
    for _ in items:
        pass
    return {}


# The other ranks


def knock_at_all(peer: Peer) -> tuple[tuple[tuple[int, str], ...], bool]:
    """Return the ranks that this one cannot reach, each with the reason, and whether any rank misses another."""
    word = secrets.token_hex(8)
    with _door(peer.host, word) as (port, refusal):
        doors = [json.loads(text) for text in peer.all_gather(json.dumps([peer.host, port, word, refusal]))]
        others = [rank for rank in range(peer.size) if rank != peer.rank]
        with ThreadPoolExecutor(max(1, min(32, len(others)))) as pool:
            answers = list(pool.map(lambda rank: _knock(*doors[rank]), others))
        failures = tuple((rank, answer) for rank, answer in zip(others, answers, strict=True) if answer)
        # Nobody closes its door before all have knocked.
        apart = any(json.loads(count) for count in peer.all_gather(json.dumps(len(failures))))
    return failures, apart


class _Door(socketserver.ThreadingTCPServer):
    """A listening socket that answers everybody with a word."""

    daemon_threads, request_queue_size = True, 128

    def __init__(self, host: str, word: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.word = word
        super().__init__((host, 0), socketserver.BaseRequestHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.sendall(self.word.encode())


@contextmanager
def _door(host: str, word: str) -> Iterator[tuple[int, str]]:
    """Listen at an address; give the port, or 0 and the reason why that is not possible."""
    try:
        door = _Door(host, word)
    except OSError as problem:
        yield 0, f"cannot listen at {host}: {problem}"
        return
    with door:
        threading.Thread(target=door.serve_forever, args=(0.05,), name="orca-doctor-door", daemon=True).start()
        try:
            yield int(door.server_address[1]), ""
        finally:
            door.shutdown()


def _knock(host: str, port: int, word: str, refusal: str) -> str:
    """Return the reason why the right rank does not answer at an address; "" where it does."""
    if not port:
        return refusal
    try:
        with socket.create_connection((host, port), timeout=KNOCK_WITHIN) as door, door.makefile("rb") as answer:
            right = answer.read(len(word)) == word.encode()
    except OSError as problem:
        return f"{host}: {problem}"
    return "" if right else f"{host}: somebody else answers at its address"


# One rank


def free_memory() -> int:
    """Return how much memory a new process may still take: of the machine, or of the container where that is less."""
    free = int(psutil.virtual_memory().available)
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max": no limit
            free = min(free, int(Path(limit).read_text()) - int(Path(usage).read_text()))
    return max(0, free)
