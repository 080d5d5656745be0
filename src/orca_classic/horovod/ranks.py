"""Horovod: how the ranks of a world become Horovod's ranks too. Owns its environment, its rendezvous and its errors.

Horovod is a library with ranks and connections of its own. The engines have started the ranks already and the world
carries messages: rank 0 tells over it where Horovod's ranks meet.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.core.world import World
from orca.errors import MissingDependency, OrcaError
from orca.monitor.link import Parted

# A rank that comes late is the engine's affair, which names it; Horovod alone would give up after 30 seconds.
_PATIENCE = 24 * 60 * 60

_users = 0  # users of Horovod in this process, which share one set of ranks


def binding() -> Any:
    """Return Horovod's binding for torch.

    Raises:
        MissingDependency: It is not installed here, or does not load.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # if its library is missing, Horovod prints that and continues
        try:
            import horovod.torch as horovod
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "horovod":
                raise
            raise _missing("Horovod is not installed.") from None
        except (ImportError, OSError) as error:
            raise _missing(f"Horovod does not load ({_first_line(error)}).") from error
    if "init" not in vars(horovod):
        raise _missing("the installed Horovod was built without torch.")
    return horovod


def join(world: World) -> tuple[Any, int]:
    """Let this rank join Horovod under the same number; all ranks call it together, and each calls `leave` once.

    Returns:
        Horovod's binding, initialized, and the number of users in this process: the same on all ranks,
        and so fit for the names of collectives, which must differ.

    Raises:
        MissingDependency: Horovod is not installed here.
        OrcaError: The ranks do not find each other.
    """
    global _users
    horovod = binding()
    if not _users:
        _meet(world, horovod)
    _users += 1
    return horovod, _users


def leave() -> None:
    """Leave Horovod; the last user ends it. Ranks that still wait for this one, because it failed, fail too."""
    global _users
    _users -= 1
    if not _users:
        binding().shutdown()


@contextmanager
def together(world: World) -> Iterator[None]:
    """Report a collective that failed in Horovod as a consequence: some other rank went away first."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "HorovodInternalError":
            raise
        raise Parted(f"rank {world.rank} lost the others in Horovod: {_first_line(error)}") from error


@contextmanager
def meeting(world: World) -> Iterator[None]:
    """Let `init`, called within, find the ranks of the world; all ranks enter and leave together."""
    with _rendezvous(world) as port:
        cards = world.all_gather((f"{world.host}-{socket.gethostname()}", world.host, world.local_rank, port))
        peers = [rank for rank, (_, _, local_rank, _) in enumerate(cards) if local_rank == world.local_rank]
        places = {
            "HOROVOD_RANK": world.rank,
            "HOROVOD_SIZE": world.size,
            "HOROVOD_LOCAL_RANK": world.local_rank,
            "HOROVOD_LOCAL_SIZE": world.local_size,
            "HOROVOD_CROSS_RANK": peers.index(world.rank),
            "HOROVOD_CROSS_SIZE": len(peers),
            "HOROVOD_HOSTNAME": cards[world.rank][0],
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": cards[0][1],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": cards[0][3],
            "HOROVOD_GLOO_IFACE": os.environ["GLOO_SOCKET_IFNAME"],  # the world has found it
            "HOROVOD_GLOO_TIMEOUT_SECONDS": os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", _PATIENCE),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_ELASTIC": 0,
        }
        with _environment({name: str(value) for name, value in places.items()}):
            yield
        world.all_gather(None)  # nobody needs the rendezvous any more


def _meet(world: World, horovod: Any) -> None:
    with meeting(world):
        try:
            horovod.init()
        except ValueError as error:
            raise OrcaError(
                f"rank {world.rank} on {world.host} could not join the others in Horovod: {error} Let the nodes "
                "reach each other on all ports, or use another backend."
            ) from error


@contextmanager
def _rendezvous(world: World) -> Iterator[int]:
    """Run Horovod's own key-value server on rank 0, at the world's address; yield its port (0 elsewhere)."""
    if world.rank:
        yield 0
        return
    try:
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ModuleNotFoundError:
        raise _missing("Horovod is not installed.") from None

    server = RendezvousHTTPServer((world.host, 0), RendezvousHandler, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables while Horovod reads them: later code in this process must not think that Horovod started it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _missing(what: str) -> MissingDependency:
    return MissingDependency(f"{what} `make horovod` in a clone of this project builds it (docs/classic/horovod.md).")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
