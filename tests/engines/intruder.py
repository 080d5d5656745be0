"""Intruder: a process that knows host and port of everything that a run listens at, and no secret."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import nn

from orca.core.source import Items

X = np.random.default_rng(0).random((41, 4), dtype=np.float32)
Y = X.sum(1, keepdims=True)
HOST = "127.0.0.1"
IDLE = 500  # connections that are held
WITHIN = 60.0  # seconds for anything in a test


class Exploit:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@dataclass(frozen=True)
class Stage:
    """A place in a run where ranks wait, so that the intruder has its time."""

    folder: Path
    name: str

    def wait(self) -> None:
        """Tell the intruder that the run is here; return when it has done its work, or does nothing."""
        if not self.folder.exists():
            return
        (self.folder / f"{self.name}-{os.getpid()}").touch()
        deadline = time.monotonic() + WITHIN
        while not (self.folder / f"{self.name}-over").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def reached(self, ranks: int) -> None:
        """Wait in the intruder until so many ranks are here."""
        eventually(lambda: len(list(self.folder.glob(f"{self.name}-*"))) >= ranks)

    def over(self) -> None:
        """Let the ranks go on."""
        (self.folder / f"{self.name}-over").touch()


@dataclass(frozen=True)
class LatePiece:
    """The rows of a rank that comes when the intruder has been at the rendezvous."""

    piece: Callable[[], Items]
    stage: Stage

    def __call__(self) -> Items:
        self.stage.wait()
        return self.piece()


def eventually(true: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WITHIN
    while not (value := true()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def sgd(model: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def listening() -> set[int]:
    """Return the ports of loopback at which this process and the Python processes below it listen."""
    ports = set()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            if "python" in process.name():
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.ip in (HOST, "127.0.1.1"):
                        ports.add(connection.laddr.port)
    return ports


def attack(port: int, exploit: Path) -> None:
    """Say all sorts of things to a port, and read what comes."""
    payload = pickle.dumps(Exploit(exploit))
    words = [
        b"",
        b"orca-hs1",
        b"orca-hs1" + bytes(32),
        b"orca-hs1" + bytes(32 + 36),
        b'["Hello", "here"]\n',
        payload,
        struct.pack("<Q", len(payload)) + payload,
        b"\0" * 8 + payload,
        struct.pack("<I", 0xFFFFFFFF) + bytes(100),
        os.urandom(5000),
    ]
    for word in words:
        with suppress(OSError), socket.create_connection((HOST, port), 3.0) as stranger:
            stranger.sendall(word)
            stranger.settimeout(0.02)
            with suppress(TimeoutError):
                assert len(stranger.recv(1 << 16)) in (0, 64)  # 64: a nonce and a proof


def joins_as_a_rank(port: int, exploit: Path) -> bool:
    """Join as rank 1 does that knows host and port, and nothing else, and send a pickle; return whether that works."""
    try:
        store = dist.TCPStore(HOST, port, 2, False, timedelta(seconds=0.5), wait_for_workers=False)
        dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=timedelta(seconds=10))
        dist.all_gather_object([None, None], Exploit(exploit))
        return True
    except (RuntimeError, ValueError):  # dist.DistError is one
        return False


@contextmanager
def held(ports: set[int]) -> Iterator[None]:
    """Hold idle connections to each of the ports; half of them say half a greeting."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    with ExitStack() as stack:
        for number in range(IDLE):
            for port in ports:
                stranger = stack.enter_context(socket.create_connection((HOST, port), 3.0))
                if number % 2:
                    with suppress(OSError):
                        stranger.sendall(b"orca-hs1" + bytes(5))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
