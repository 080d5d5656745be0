"""Protocol: the messages between hub and ranks, one JSON line each. Owns their kinds, their limits and the sockets.

Before the first of them, both ends prove that they know the secret of the run (`handshake.py`). A line that arrives
becomes one of the messages below, or the connection is dropped; nothing is ever unpickled or evaluated. Only a process
that crashes ends with something else: the plain text of Python's faulthandler.

Not gRPC or ZeroMQ: they would save about 30 lines of framing and be one more dependency of every executor.
"""

# ruff: noqa: UP014  # a table of messages, not a page of classes

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, get_args, get_type_hints

from orca.errors import ArgumentError, OrcaError
from orca.monitor.exits import FAULT
from orca.monitor.handshake import BACKLOG
from orca.monitor.heartbeat import Beat, EpochEnd

GONE_AFTER = 150.0  # seconds of silence of a machine after which its connections end
MESSAGE_LIMIT = 8 << 20  # bytes of one message of a rank
HUB = "hub"  # the purpose of the key with which ranks and hub know each other
LINE_LIMIT = 64 << 10  # characters of a line of output; JSON may need six bytes for one
FAULT_LIMIT = 64 << 10  # bytes of the last words of a process that crashes


@dataclass(frozen=True)
class Ticket:
    """The admission of a rank to the hub of one run."""

    host: str
    port: int
    secret: str = field(repr=False)
    size: int


class Log(NamedTuple):
    """A line to show: printed on `origin` "stdout" or "stderr" at level 0, else logged by the logger `origin`."""

    text: str
    origin: str = "stdout"
    level: int = 0


# The messages besides Log, Beat and EpochEnd. From a rank:
Hello = NamedTuple("Hello", [("host", str)])  # the first message after the handshake
Gather = NamedTuple("Gather", [("round", int), ("text", str)])
Fail = NamedTuple("Fail", [("reason", str), ("traceback", str), ("secondary", bool), ("word", str), ("code", str)])
Stack = NamedTuple("Stack", [("text", str)])
Memory = NamedTuple("Memory", [("resident", int), ("limit", int)])  # bytes it holds, and may hold
Leaving = NamedTuple("Leaving", [("reason", str)])  # its process has to end
Limit = NamedTuple("Limit", [("step", int)])  # it will not pass this step without a Stop; see stopping.py
Bye = NamedTuple("Bye", [])  # a clean end
# From the hub:
Ack = NamedTuple("Ack", [])  # the rank is welcome, or its error is known
Gathered = NamedTuple("Gathered", [("round", int), ("texts", list[str]), ("obstacle", str)])
Ask = NamedTuple("Ask", [])  # for the stack
AskLimit = NamedTuple("AskLimit", [("interrupted", bool)])
Stop = NamedTuple("Stop", [("step", int), ("rank", int), ("host", str), ("reason", str), ("interrupted", bool)])
Abort = NamedTuple("Abort", [("reason", str)])  # end the process; as the answer to Hello, a refusal

_KINDS = (
    *(Beat, EpochEnd, Log, Hello, Gather, Fail, Stack, Memory, Leaving, Limit, Bye),
    *(Ack, Gathered, Ask, AskLimit, Stop, Abort),
)
MESSAGES = {kind.__name__: kind for kind in _KINDS}
FIELDS = {name: tuple(get_type_hints(kind).values()) for name, kind in MESSAGES.items()}


class Malformed(OrcaError):
    """Bytes from a connection that are no message of ours."""


def encode(message: tuple[Any, ...]) -> bytes:
    """Return a message as one line: its name and its fields."""
    return json.dumps([type(message).__name__, *message]).encode() + b"\n"


def decode(line: bytes) -> tuple[Any, ...]:
    """Return the message in a line."""
    try:
        name, *values = json.loads(line)
        if len(values) != len(FIELDS[name]) or not all(map(_fits, values, FIELDS[name])):
            raise ValueError(f"the fields of {name} are {FIELDS[name]}")
        return MESSAGES[name](*values)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Malformed(f"a message is malformed ({type(error).__name__}: {str(error)[:200]})") from None


def _fits(value: object, kind: Any) -> bool:
    if kind == list[str]:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return type(value) is kind or type(value) in get_args(kind)  # float | None has two


class Connection(asyncio.Protocol):
    """Messages over one connection of an event loop, sent without waiting.

    Args:
        limit: Bytes of the longest message that is accepted.
        hear: Called with each message; it may raise Malformed to drop the connection.
        end: Called when the connection is over: with the reason where this side dropped it, else with "".
        resume: Called when all that waited to be sent is sent.
    """

    transport: asyncio.Transport
    sock: socket.socket

    def __init__(
        self, limit: int, hear: Callable[[Any], None], end: Callable[[str], None], resume: Callable[[], None]
    ) -> None:
        self.limit, self.hear, self.end, self.resume = limit, hear, end, resume
        self.busy, self.reason = False, ""
        self._crashes = False
        self._inbox, self._search_start = bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)
        self.sock = transport.get_extra_info("socket")
        keep_alive(self.sock)
        close_in_children(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self.end(self.reason)

    def data_received(self, data: bytes) -> None:
        """Hand on the messages that are complete now."""
        self._inbox += data
        try:
            while self._listens and (end := self._inbox.find(b"\n", self._search_start)) >= 0:
                line, self._search_start = bytes(self._inbox[:end]), 0
                del self._inbox[: end + 1]
                self._check(len(line))
                self._take(line)
            self._search_start = len(self._inbox)
            self._check(self._search_start)
        except Malformed as error:
            self.drop(str(error))

    def _take(self, line: bytes) -> None:
        try:
            message = decode(line)
        except Malformed:
            _, fault, words = line.partition(FAULT)
            if not fault:
                raise
            self._crashes = True
            self._inbox[:0] = fault + words + b"\n"
        else:
            self.hear(message)

    @property
    def _listens(self) -> bool:
        return not (self._crashes or self.transport.is_closing())

    @property
    def fault(self) -> str:
        """Return the last words of the other side, as its faulthandler wrote them; "" if it did not crash."""
        return bytes(self._inbox[:FAULT_LIMIT]).decode("utf-8", "replace") if self._crashes else ""

    def _check(self, length: int) -> None:
        if length > self.limit:
            raise Malformed(f"a message is longer than {self.limit} bytes")

    def pause_writing(self) -> None:
        """Note that the system takes no more for now."""
        self.busy = True

    def resume_writing(self) -> None:
        """Go on."""
        self.busy = False
        self.resume()

    def send(self, message: tuple[Any, ...] | bytes) -> None:
        """Send a message, or one that is encoded already."""
        if not self.transport.is_closing():
            self.transport.write(message if isinstance(message, bytes) else encode(message))

    def drop(self, reason: str) -> None:
        """Close the connection, once all waiting messages are sent."""
        self.reason = reason
        self.transport.close()

    def fileno(self) -> int:
        """Return the descriptor of the connection; -1 once it is closed."""
        return self.sock.fileno()


def listen(host: str, ports: range = range(1), any_interface: bool = False, backlog: int = BACKLOG) -> socket.socket:
    """Return a socket that listens on one interface, at the first of these ports that is free.

    Args:
        host: The address of the interface.
        ports: Port 0 lets the system pick.
        any_interface: Whether the address may mean every interface.
        backlog: Connections that the system queues.
    """
    refusal: OSError | None = None
    for port in ports:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            every = host in ("", "*") or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_unspecified
            if every and not any_interface:
                raise OSError("it means every interface")
            listener = socket.create_server(cast(Any, address), family=family, backlog=backlog)
        except OSError as error:
            refusal = error
            continue
        close_in_children(listener)
        return listener
    where = f" at the ports {ports[0]} to {ports[-1]}" if ports[-1] else ""
    raise ArgumentError(
        f"{socket.gethostname()} cannot listen on {host!r}{where}: {refusal}. Pass the address of one interface of it, "
        "and ports that are free (orca.hub.bind, orca.hub.port, orca.rendezvous.bind, orca.rendezvous.port).",
        code="cannot-listen",
    )


def keep_alive(sock: socket.socket) -> None:
    """Let the system notice that the other machine is gone, and not just away for a pause.

    A process that ends is known at once all the same: its system closes the connection.
    """
    options = {
        "TCP_KEEPIDLE": round(GONE_AFTER / 5),
        "TCP_KEEPINTVL": round(GONE_AFTER / 10),
        "TCP_KEEPCNT": 8,
        # Also the time for which a suspended process may leave its messages unread.
        "TCP_USER_TIMEOUT": round(GONE_AFTER * 1000),
    }
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():  # not every system has them all
        with suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_connections: weakref.WeakSet[Any] = weakref.WeakSet()


def close_in_children(connection: Any) -> None:
    """Close a connection, or all that has a `fileno`, in every child that this process forks.

    A child, such as a data loader's, would hold it open: the end of its parent would go unseen.
    """
    _connections.add(connection)


def _let_go() -> None:
    """Put an empty file in the place of each connection: its owner in this process may close that later."""
    for thing in list(_connections):
        if (number := thing.fileno()) >= 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number, inheritable=False)
            os.close(null)


os.register_at_fork(after_in_child=_let_go)
