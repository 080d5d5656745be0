"""LocalEngine: ranks as processes of this machine. Owns starting, watching and ending them.

A rank is `python -m orca.engines.local FOLDER RANK`: not a fork (threads and JVMs do not survive one) and not
multiprocessing's spawn (it imports the user's program again, which then starts everything again).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle

from orca.core.engine import Envelope, HubPeer, Job, Settings, cores, dispatch, dumps, run_rank, scratch
from orca.core.source import Items, Shards
from orca.core.telemetry import Hub
from orca.errors import WorkerFailed, WorkerLost

_HOST = "127.0.0.1"


class LocalEngine:
    """Run ranks as processes on this machine.

    Args:
        workers: How many.
    """

    name = "local"

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @classmethod
    def on_cluster(cls, workers_per_node: int) -> LocalEngine:
        """Return the engine: this machine is the only node."""
        return cls(workers_per_node)

    def run(self, job: Job, shards: Shards, settings: Settings) -> list[Any]:
        """Run a job on all ranks together; results in rank order."""
        with dispatch(job, shards, self.workers, _HOST, settings) as (envelope, hub), scratch() as folder:
            (folder / "envelope").write_bytes(pickle.dumps(envelope))
            pieces = shards.portable()
            for rank in range(self.workers):
                (folder / f"pieces-{rank}").write_bytes(dumps(pieces[rank :: self.workers], "the data"))
            del pieces
            ranks = [self._start(folder, rank) for rank in range(self.workers)]
            try:
                _watch(ranks, hub)
                return [pickle.loads((folder / f"result-{rank}").read_bytes()) for rank in range(self.workers)]
            finally:
                for process in ranks:
                    process.kill()
                for process in ranks:
                    process.wait()

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece, in this process: the data is here already."""
        return [task(piece) for piece in pieces]

    def _start(self, folder: Path, rank: int) -> subprocess.Popen[bytes]:
        threads = str(max(1, cores() // self.workers))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment.setdefault("OMP_NUM_THREADS", threads)
        command = [sys.executable, "-m", "orca.engines.local", str(folder), str(rank)]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


def _watch(ranks: list[subprocess.Popen[bytes]], hub: Hub) -> None:
    """Wait until every rank ended well; raise for the one that failed first."""
    while True:
        codes = [process.poll() for process in ranks]
        if all(code == 0 for code in codes):
            return
        for rank, code in enumerate(codes):
            if code:
                hub.lost(rank, _HOST, f"its process ended with exit code {code}")
        if hub.failed.is_set() or any(codes):
            raise hub.error(wait=5.0) or _unexplained(codes)
        time.sleep(0.02)


def _unexplained(codes: list[int | None]) -> WorkerFailed:
    rank = next(rank for rank, code in enumerate(codes) if code)
    return WorkerLost(rank, _HOST, f"its process ended with exit code {codes[rank]}")


def main(folder: Path, rank: int) -> None:
    """Be one rank."""
    envelope: Envelope = pickle.loads((folder / "envelope").read_bytes())
    for entry in envelope.path:
        if entry not in sys.path:
            sys.path.append(entry)
    file = folder / f"pieces-{rank}"
    pieces = cloudpickle.loads(file.read_bytes())
    file.unlink()
    items: Items = chain.from_iterable(piece() for piece in pieces)
    size = envelope.ticket.size
    result = run_rank(envelope, rank, lambda link: HubPeer(link, rank, size, _HOST), items)
    (folder / f"result-{rank}").write_bytes(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
