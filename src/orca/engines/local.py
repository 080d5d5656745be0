"""LocalEngine: ranks as processes of this machine. Owns starting, watching and ending them.

A rank is `main(RANK, WORK, PIECES, RESULT)` in a process that a ForkServer forks, or, if there is none, that is
started with these arguments: not a fork of the driver (threads and JVMs do not survive one) and not multiprocessing's
spawn (it imports the user's program again, which then starts everything again). The last three are descriptors of
files without a name: nothing is left of them, even when the driver is killed.
"""

from __future__ import annotations

import logging
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import IO, Any

import cloudpickle

from orca.core.engine import (
    Envelope,
    HubPeer,
    Job,
    ReportedFailure,
    Settings,
    dispatch,
    dumps,
    run_rank,
    threads_asked_for,
)
from orca.core.loading import slow_modules
from orca.core.resources import cores
from orca.core.source import Items, Shards
from orca.engines import forkserver
from orca.errors import WorkerLost
from orca.monitor.exits import ended, memory_limit
from orca.monitor.hub import Hub
from orca.monitor.link import Link, Parted

_HOST = "127.0.0.1"
_LENGTH = struct.Struct("<Q")  # before a result
ENDED_WITHIN = 60.0  # seconds for ranks to end after all of them gave their results

logger = logging.getLogger(__name__)

Rank = subprocess.Popen[bytes] | forkserver.ForkedRank


class LocalEngine:
    """The engine whose ranks are processes on this machine.

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
        settings = settings.or_threads(threads_asked_for())
        with dispatch(job, shards, self.workers, _HOST, settings) as (envelope, hub), ExitStack() as files:
            results = [files.enter_context(tempfile.TemporaryFile()) for _ in range(self.workers)]
            ranks: list[Rank] = []
            try:
                with _written(pickle.dumps(envelope)) as work:
                    pieces = shards.portable()
                    for rank, result in enumerate(results):
                        with _written(dumps(pieces[rank :: self.workers], "the data")) as share:
                            ranks.append(self._start(rank, [work.fileno(), share.fileno(), result.fileno()]))
                    del pieces
                _watch(ranks, [result.fileno() for result in results], hub)
                return [pickle.loads(_contents(result.fileno())[_LENGTH.size :]) for result in results]
            finally:
                for process in ranks:
                    process.kill()
                for process in ranks:
                    process.wait()

    def settle(self, seconds: float) -> bool:
        """Return at once: a process that is gone is known to be."""
        return True

    def map(self, task: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Run a task on each piece, in this process: the data is here already."""
        return [task(piece) for piece in pieces]

    def _start(self, rank: int, files: list[int]) -> Rank:
        environment = self._environment()
        if forkserver.AVAILABLE:
            start = forkserver.Start((rank,), environment, tuple(sys.path), tuple(slow_modules()))
            return forkserver.start_rank(start, files)
        command = [sys.executable, "-m", "orca.engines.local", *map(str, [rank, *files])]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=files)

    def _environment(self) -> dict[str, str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry or os.curdir for entry in sys.path)}
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // self.workers)))
        return environment


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


def _watch(ranks: list[Rank], results: list[int], hub: Hub) -> None:
    """Wait until every rank gave its result and ended; raise for the one that failed first.

    A rank with a whole result has done its work: how its process ends (a library may crash or hang in its teardown)
    is worth a warning, not the run.
    """
    deadline = float("inf")
    while True:
        codes = [process.poll() for process in ranks]  # before the results: a rank may give its own in between
        whole = [_is_whole(result) for result in results]
        if all(whole) and deadline == float("inf"):
            deadline = time.monotonic() + ENDED_WITHIN
        if all(whole) and (None not in codes or time.monotonic() > deadline):
            return _warn(codes)
        missing = [rank for rank, code in enumerate(codes) if code is not None and not whole[rank]]
        for rank in missing:
            hub.lost(rank, _HOST, _end_of(ranks[rank]))
        if hub.failed.is_set() or missing:
            raise hub.error(wait=5.0) or WorkerLost(missing[0], _HOST, _end_of(ranks[missing[0]]))
        time.sleep(0.02)


def _end_of(process: Rank) -> str:
    """Return in words how a rank's process ended."""
    return ended(process.poll() or 0, getattr(process, "peak_memory", 0), memory_limit())


def _warn(codes: list[int | None]) -> None:
    for rank, code in enumerate(codes):
        if code is None:
            logger.warning("rank %d gave its result and has not ended %g s later: it is killed", rank, ENDED_WITHIN)
        elif code:
            logger.warning("rank %d gave its result, and then %s", rank, ended(code))


def _is_whole(result: int) -> bool:
    """Say whether a rank has written all of its result: its length comes first."""
    head = os.pread(result, _LENGTH.size, 0)
    return len(head) == _LENGTH.size and os.fstat(result).st_size == _LENGTH.size + _LENGTH.unpack(head)[0]


def main(rank: int, work: int, share: int, result: int) -> None:
    """Run one rank; work, share and result are open files.

    Raises:
        SystemExit: The rank failed, and the driver knows why or is gone.
    """
    envelope: Envelope = pickle.loads(_contents(work))
    for entry in envelope.path:
        if entry not in sys.path:
            sys.path.append(entry)
    pieces = cloudpickle.loads(_contents(share))
    for file in (work, share):
        os.close(file)
    items: Items = chain.from_iterable(piece() for piece in pieces)
    try:
        answer = run_rank(envelope, rank, _peer, items)
    except ReportedFailure:
        raise SystemExit(1) from None
    except Parted as error:  # the driver is gone: nobody needs a traceback
        raise SystemExit(str(error)) from None
    with os.fdopen(result, "wb") as file_of_result:
        file_of_result.write(_LENGTH.pack(len(answer)))
        file_of_result.write(answer)


def _peer(link: Link) -> HubPeer:
    """Return the way to the other ranks; end a rank whose driver died while it started."""
    ticket = link.ticket
    if not link.connected:
        raise Parted(f"rank {link.rank} ends: its driver at {ticket.host}:{ticket.port} is gone")
    return HubPeer(link, link.rank, ticket.size, _HOST)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
