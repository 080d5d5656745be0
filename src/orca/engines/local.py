"""LocalEngine: ranks as processes of this machine. Owns starting, watching and ending them.

A rank is `python -m orca.engines.local RANK WORK PIECES RESULT`: not a fork (threads and JVMs do not survive one) and
not multiprocessing's spawn (it imports the user's program again, which then starts everything again). The last three
are descriptors of files without a name: nothing is left of them, even when the driver is killed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import IO, Any

import cloudpickle

from orca.core.engine import Envelope, HubPeer, Job, Settings, cores, dispatch, dumps, run_rank
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
        with dispatch(job, shards, self.workers, _HOST, settings) as (envelope, hub), ExitStack() as files:
            results = [files.enter_context(tempfile.TemporaryFile()) for _ in range(self.workers)]
            ranks: list[subprocess.Popen[bytes]] = []
            try:
                with _written(pickle.dumps(envelope)) as work:
                    pieces = shards.portable()
                    for rank, result in enumerate(results):
                        with _written(dumps(pieces[rank :: self.workers], "the data")) as share:
                            ranks.append(self._start(rank, [work.fileno(), share.fileno(), result.fileno()]))
                    del pieces
                _watch(ranks, hub)
                return [pickle.loads(_contents(result.fileno())) for result in results]
            finally:
                for process in ranks:
                    process.kill()
                for process in ranks:
                    process.wait()

    def settle(self) -> None:
        """Return at once: a process that is gone is known to be."""

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece, in this process: the data is here already."""
        return [task(piece) for piece in pieces]

    def _start(self, rank: int, files: list[int]) -> subprocess.Popen[bytes]:
        threads = str(max(1, cores() // self.workers))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment.setdefault("OMP_NUM_THREADS", threads)
        command = [sys.executable, "-m", "orca.engines.local", *map(str, [rank, *files])]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=files)


@contextmanager
def _written(content: bytes) -> Iterator[IO[bytes]]:
    """Give a file without a name that holds this."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        yield file


def _contents(file: int) -> bytes:
    """Return all of a file; its position, which processes share, is neither used nor moved."""
    content, size = bytearray(), os.fstat(file).st_size
    while piece := os.pread(file, size - len(content), len(content)):  # at most 2 GB at a time
        content += piece
    return bytes(content)


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


def main(rank: int, work: int, share: int, result: int) -> None:
    """Be one rank; work, share and result are open files."""
    envelope: Envelope = pickle.loads(_contents(work))
    for entry in envelope.path:
        if entry not in sys.path:
            sys.path.append(entry)
    pieces = cloudpickle.loads(_contents(share))
    for file in (work, share):
        os.close(file)
    items: Items = chain.from_iterable(piece() for piece in pieces)
    size = envelope.ticket.size
    answer = run_rank(envelope, rank, lambda link: HubPeer(link, rank, size, _HOST), items)
    with os.fdopen(result, "wb") as file_of_result:
        file_of_result.write(answer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
