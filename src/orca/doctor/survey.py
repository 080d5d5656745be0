"""Survey: what every rank finds where training would put it. Owns the facts a rank reports, and knocking at all others.

It runs as the data of a job is opened, which is before the ranks join: what keeps them from joining is found, and told
over a hub of its own. Then the world forms as it would for training.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from orca.cluster.proof import Description, describe
from orca.core.engine import HubPeer
from orca.core.pulse import Pulse
from orca.core.source import Items
from orca.core.telemetry import Link, Ticket
from orca.core.wire import LINE_LIMIT
from orca.core.world import Peer, World
from orca.errors import OrcaError

KNOCK_WITHIN = 3.0  # seconds to reach another rank
_LOOPBACK = "127.0.0.1"


class Apart(OrcaError):
    """Say that ranks cannot reach each other: who would join them would wait for ever."""


@dataclass(frozen=True)
class Gpus:
    """Tell which GPUs a rank sees: through torch, and how many the machine's driver knows (None: no nvidia-smi)."""

    seen: tuple[str, ...] = ()
    known: int | None = None


@dataclass(frozen=True)
class Report:
    """Tell what one rank found.

    Attributes:
        rank: Its number.
        host: The address at which the others reach it.
        node: The name of its machine.
        linked: Whether it reached the driver.
        clock: Its time, just before it told this.
        environment: What `orca.cluster.proof.describe` says there, or why it could not.
        temporary: The folder for temporary files.
        free: Bytes free in it.
        unwritable: Why nothing can be written there; "" where it can.
        memory: Bytes of memory that a new process may still take.
        gpus: The GPUs it sees.
        open_files: How many files it may open; None where nothing limits it.
        shared_memory: Bytes of /dev/shm; None without one.
        proxies: Names of variables that send connections to itself to a proxy.
        storage: Why model_dir cannot be written from there; "" where it can, or where it was not tried.
        sees_driver: Whether the file the driver put into model_dir is there for this rank.
        unreached: Ranks it could not reach, each with the reason.
        interface: The network interface that gloo took; "" where the ranks did not join.
        joined: Seconds it took to join; None where the ranks did not.
    """

    rank: int
    host: str
    node: str
    linked: bool
    clock: float = 0.0
    environment: Any = None
    temporary: str = ""
    free: int = 0
    unwritable: str = ""
    memory: int = 0
    gpus: Gpus = Gpus()
    open_files: int | None = None
    shared_memory: int | None = None
    proxies: tuple[str, ...] = ()
    storage: str = ""
    sees_driver: bool = True
    unreached: tuple[tuple[int, str], ...] = ()
    interface: str = ""
    joined: float | None = None


@dataclass(frozen=True)
class Number:
    """Be a rank's only piece of data: its number."""

    rank: int

    def __call__(self) -> Items:
        """Give the number as the only item."""
        return iter([self.rank])


@dataclass(frozen=True)
class Sheet:
    """Carry a rank's report from where data is opened to where the job runs."""

    report: Report
    began: float

    def close(self) -> None:
        """Do nothing: a sheet holds nothing open."""


@dataclass(frozen=True)
class Survey:
    """Look around on a rank, in place of opening its data.

    Args:
        engine: The engine that runs the ranks.
        ticket: Admits to the doctor's hub.
        host: The address at which others reach a rank; "" where each finds its own.
        patience: Seconds to wait for the other ranks.
        model_dir: Where checkpoints would go.
        mark: The name of the file that the driver put there.
    """

    engine: str
    ticket: Ticket
    host: str
    patience: float
    model_dir: str | None = None
    mark: str = ""

    def __call__(self, items: Items, folder: Path) -> dict[str, Sheet]:
        """Return the report, after telling it to the driver.

        Raises:
            Apart: Some ranks cannot reach each other.
        """
        [rank] = [number for item in items for number in _numbers(item)]
        link = Link.connect(self.ticket, rank, patience=self.patience)
        try:
            peer = _peer(self.engine, self.host, link, rank)
            report = self._alone(peer, link.connected)
            link.log(packed(report))
            unreached, apart = _knock_at_all(peer)
            report = replace(report, unreached=unreached, clock=time.time())
            link.log(packed(report))
        finally:
            link.close()
        if apart:
            raise Apart(f"these ranks cannot reach each other: {', '.join(f'{a} to {b}' for a, b in apart)}")
        return {"survey": Sheet(report, time.monotonic())}

    def _alone(self, peer: Peer, linked: bool) -> Report:
        """Return what a rank finds by itself."""
        temporary = tempfile.gettempdir()
        storage, sees_driver = self._stored(peer.rank)
        return Report(
            rank=peer.rank,
            host=peer.host,
            node=socket.gethostname(),
            linked=linked,
            environment=_environment(),
            temporary=temporary,
            free=shutil.disk_usage(temporary).free,
            unwritable=_unwritable(temporary),
            memory=free_memory(),
            gpus=_gpus(),
            open_files=_open_files(),
            shared_memory=_shared_memory(),
            proxies=catching_proxies(),
            storage=storage,
            sees_driver=sees_driver,
            clock=time.time(),
        )

    def _stored(self, rank: int) -> tuple[str, bool]:
        """Return why the rank that writes checkpoints cannot, and whether this rank sees what the driver wrote."""
        if not self.model_dir:
            return "", True
        why = ""
        if rank == 0:
            try:
                with written(self.model_dir):
                    pass
            except Exception as problem:
                why = f"{type(problem).__name__}: {problem}"
        try:
            fs, place = opened(self.model_dir)
            return why, not self.mark or bool(fs.exists(f"{place}/{self.mark}"))
        except Exception:
            return why, False


@dataclass(frozen=True)
class Joining:
    """Be the job: the ranks have joined; add one number up over all of them."""

    def __call__(self, world: World, rows: dict[str, Any], pulse: Pulse) -> Report:
        """Return the report of this rank, with how it joined."""
        sheet: Sheet = rows["survey"]
        [total] = world.all_reduce([np.ones(1)], how="sum")
        if int(total[0]) != world.size:
            raise OrcaError(f"{world.size} ranks added up to {total[0]:g}: their collectives do not work.")
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
        return replace(sheet.report, interface=interface, joined=time.monotonic() - sheet.began)


def packed(report: Report) -> str:
    """Return a report as one line of JSON."""
    line = json.dumps(asdict(report), default=sorted)
    if len(line) > LINE_LIMIT:  # a hub would cut it
        return json.dumps(asdict(replace(report, environment="there are too many packages to tell")), default=sorted)
    return line


def unpacked(line: str) -> Report:
    """Return the report of a line.

    Raises:
        ValueError: It is none.
    """
    try:
        fields = json.loads(line)
        environment = fields["environment"]
        if isinstance(environment, dict):
            environment = Description(**{**environment, "loaded": frozenset(environment["loaded"])})
        return Report(
            **{
                **fields,
                "environment": environment,
                "gpus": Gpus(tuple(fields["gpus"]["seen"]), fields["gpus"]["known"]),
                "proxies": tuple(fields["proxies"]),
                "unreached": tuple((rank, why) for rank, why in fields["unreached"]),
            }
        )
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this is no report of a rank: {error}") from None


def _numbers(item: Any) -> list[int]:
    """Return the numbers in an item: one, or a column of them where it is Spark's own."""
    return [item] if isinstance(item, int) else [int(number) for number in item.column(0).to_pylist()]


# The other ranks


def _peer(engine: str, host: str, link: Link, rank: int) -> Peer:
    """Return the way to the other ranks that the engine will take too."""
    if engine == "spark":
        from pyspark import BarrierTaskContext

        from orca.engines.spark import BarrierPeer

        context = BarrierTaskContext.get()
        infos = context.getTaskInfos()
        return BarrierPeer(context, rank, len(infos), socket.gethostbyname(infos[rank].address.rsplit(":", 1)[0]))
    if not host:
        import ray

        host = str(ray.util.get_node_ip_address())
    return HubPeer(link, rank, link.ticket.size, host)


def _knock_at_all(peer: Peer) -> tuple[tuple[tuple[int, str], ...], list[tuple[int, int]]]:
    """Return the ranks that this one cannot reach, each with the reason, and all pairs that cannot reach each other."""
    word = secrets.token_hex(8)
    with _door(peer.host, word) as (port, why):
        told = [json.loads(text) for text in peer.all_gather(json.dumps([peer.host, port, word, why]))]
        others = [rank for rank in range(peer.size) if rank != peer.rank]
        with ThreadPoolExecutor(max(1, min(32, len(others)))) as pool:
            answers = list(pool.map(lambda rank: _knock(*told[rank]), others))
        unreached = tuple((rank, answer) for rank, answer in zip(others, answers, strict=True) if answer)
        # Nobody closes its door before all have knocked.
        all_unreached = peer.all_gather(json.dumps([rank for rank, _ in unreached]))
    return unreached, [(one, other) for one, text in enumerate(all_unreached) for other in json.loads(text)]


@contextmanager
def _door(host: str, word: str) -> Iterator[tuple[int, str]]:
    """Listen at an address, answering everybody with a word; give the port, or 0 and why nobody can listen there."""
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        server.bind((host, 0))
        server.listen(128)
    except OSError as problem:
        server.close()
        yield 0, f"cannot listen at {host}: {problem}"
        return
    closed = threading.Event()
    server.settimeout(0.1)

    def answer() -> None:
        while not closed.is_set():
            with suppress(OSError):
                guest, _ = server.accept()
                with guest:
                    guest.sendall(word.encode())

    thread = threading.Thread(target=answer, name="orca-doctor-door", daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1], ""
    finally:
        closed.set()
        thread.join(1.0)
        server.close()


def _knock(host: str, port: int, word: str, why: str) -> str:
    """Return why nobody, or somebody else, answers at an address; "" where the right one does."""
    if not port:
        return why
    try:
        with socket.create_connection((host, port), timeout=KNOCK_WITHIN) as door:
            heard = b""
            while len(heard) < len(word) and (piece := door.recv(64)):
                heard += piece
    except OSError as problem:
        return f"{host}: {problem}"
    return "" if heard.decode(errors="replace") == word else f"{host}: somebody else answers at its address"


# What a rank finds by itself


def free_memory() -> int:
    """Return how much memory a new process may still take: of the machine, or of the container where that is less."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # "max": no limit
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
    return max(0, free)


def catching_proxies() -> tuple[str, ...]:
    """Return the variables that send connections of this machine to itself to a proxy."""
    spared = f"{os.environ.get('no_proxy', '')},{os.environ.get('NO_PROXY', '')}"
    names = {name.strip() for name in spared.split(",")}
    if "*" in names or {"localhost", _LOOPBACK} <= names:
        return ()
    known = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    return tuple(sorted(name for name, value in os.environ.items() if name.lower() in known and value))


def opened(path: str) -> tuple[Any, str]:
    """Return the file system of a path, and the path on it."""
    from orca.core.files import filesystem

    fs, place = filesystem(path)
    return fs, place.rstrip("/") or place


@contextmanager
def written(path: str) -> Iterator[str]:
    """Write a small file into a folder, read it back, give its name, and leave nothing behind.

    Raises:
        OSError: Or whatever else the file system says.
    """
    fs, place = opened(path)
    made = not fs.exists(place)
    fs.makedirs(place, exist_ok=True)
    name = f".orca-doctor-{secrets.token_hex(6)}"
    spot = f"{place}/{name}"
    try:
        fs.pipe_file(spot, b"orca")
        if fs.cat_file(spot) != b"orca":
            raise OSError(f"{spot} does not hold what was written to it")
        yield name
    finally:
        with suppress(Exception):
            fs.rm_file(spot)
        if made:
            with suppress(Exception):  # an object store has no empty folder; another rank may use this one
                fs.rmdir(place)


def _environment() -> Any:
    """Return a description of the packages here, or the words why there is none."""
    try:
        return describe()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def _unwritable(folder: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"orca")
            file.flush()
    except OSError as problem:
        return str(problem)
    return ""


def _gpus() -> Gpus:
    """Return the GPUs torch can use here, and how many the machine's driver knows."""
    torch = sys.modules.get("torch")
    seen: tuple[str, ...] = ()
    if torch is not None and torch.cuda.is_available():
        seen = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus(seen)
    try:
        told = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return Gpus(seen)
    return Gpus(seen, sum(line.startswith("GPU ") for line in told.splitlines()))


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else int(limit)


def _shared_memory() -> int | None:
    with suppress(OSError):
        return shutil.disk_usage("/dev/shm").total
    return None
