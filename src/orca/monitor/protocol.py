"""Protocol: the messages between hub and ranks, one JSON line each. Owns their kinds, their limits and the sockets.

A line that arrives becomes one of the frozen dataclasses below, or the connection is dropped; nothing is ever unpickled
or evaluated.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from orca.errors import ArgumentError, OrcaError
from orca.monitor.heartbeat import Beat

PAUSE = 120.0  # seconds for which the network, or the process at the other end, may be away
GONE_AFTER = 150.0  # seconds of silence of a machine after which its connections end
MESSAGE_LIMIT = 8 << 20  # bytes of one message of a rank
LINE_LIMIT = 64 << 10  # characters of a line of output; JSON may need six bytes for one


@dataclass(frozen=True)
class Ticket:
    """The admission of a rank to the hub of one run."""

    host: str
    port: int
    secret: str = field(repr=False)
    size: int


class Malformed(OrcaError):
    """Bytes from a connection that are no message of ours."""


class Wire(asyncio.Protocol):
    """Messages over one connection of an event loop, sent without waiting.

    Args:
        limit: Bytes of the longest message that is accepted.
        hear: Called with each message; it may raise Malformed to drop the connection.
        end: Called when the connection is over: with the reason where this side dropped it, else with "".
        resume: Called when all that waited to be sent is sent.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        limit: int,
        hear: Callable[[object], None],
        end: Callable[[str], None],
        resume: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit, self.hear, self.end, self.resume = limit, hear, end, resume
        self.busy, self.peer, self.reason = False, "an unknown host", ""
        self._inbox, self._scanned = bytearray(), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(0)
        self.sock: socket.socket = transport.get_extra_info("socket")
        self.peer = str((transport.get_extra_info("peername") or [self.peer])[0])
        keep_alive(self.sock)
        _guarded.add(self)

    def fileno(self) -> int:
        """Return the descriptor of the connection, or -1."""
        return self.sock.fileno()

    def data_received(self, data: bytes) -> None:
        """Hand on the messages that are complete now."""
        self._inbox += data
        try:
            while not self.transport.is_closing() and (end := self._inbox.find(b"\n", self._scanned)) >= 0:
                line, self._scanned = bytes(self._inbox[:end]), 0
                del self._inbox[: end + 1]
                self._check(len(line))
                self.hear(decode(line))
            self._scanned = len(self._inbox)
            self._check(self._scanned)
        except Malformed as error:
            self.drop(str(error))

    def _check(self, length: int) -> None:
        if length > self.limit:
            raise Malformed(f"a message is longer than {self.limit} bytes")

    def send(self, message: object) -> None:
        """Send a message, or one that is encoded already."""
        if not self.transport.is_closing():
            self.transport.write(message if isinstance(message, bytes) else encode(message))

    def drop(self, reason: str) -> None:
        """Close the connection, when what waits is sent."""
        self.reason = self.reason or reason
        self.transport.close()

    def pause_writing(self) -> None:
        """Note that the system takes no more for now."""
        self.busy = True

    def resume_writing(self) -> None:
        """Go on."""
        self.busy = False
        self.resume()

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self.end(self.reason)


class Backlog:
    """A count of what waits to be read, and of the lines turned away because too much does.

    One thread (or one at a time) adds, another one takes. Where lines were turned away, half of the backlog must be
    read before there is room again: a gap is reported once, not between any two lines.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.added = self.taken = self.refused = 0

    def has_room(self) -> bool:
        """Say whether there is room for a line; count one that is turned away."""
        if self.added - self.taken <= (self.limit // 2 if self.refused else self.limit):
            return True
        self.refused += 1
        return False

    def gap(self) -> int:
        """Return how many lines were turned away since the last call."""
        refused, self.refused = self.refused, 0
        return refused

    def outlast(self, wait: Callable[[float], object], seconds: float) -> None:
        """Wait by `wait(seconds)` until it says yes, or nothing was taken in that time."""
        taken = -1
        while taken != self.taken:
            taken = self.taken
            if wait(seconds):
                break


def listen(host: str, size: int) -> socket.socket:
    """Return a socket that listens on one interface, at a port the system picks."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        if host in ("", "*") or ipaddress.ip_address(str(address[0]).partition("%")[0]).is_unspecified:
            raise OSError("it means every interface")
        door = socket.socket(family, kind, protocol)
        try:
            door.bind(address)
            door.listen(size + 64)
        except OSError:
            door.close()
            raise
    except OSError as error:
        raise ArgumentError(
            f"the driver cannot listen on {host!r}: {error}. Pass the address of one interface of the driver's machine."
        ) from None
    _guarded.add(door)
    return door


def keep_alive(sock: socket.socket) -> None:
    """Let the system notice that the other machine is gone, and not just away for a pause.

    A process that ends is known at once all the same: its system closes the connection.
    """
    options = {
        "TCP_KEEPIDLE": round(GONE_AFTER / 5),
        "TCP_KEEPINTVL": round(GONE_AFTER / 10),
        "TCP_KEEPCNT": 8,
        # Also the time for which a suspended process may leave what it was sent unread.
        "TCP_USER_TIMEOUT": round(GONE_AFTER * 1000),
    }
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():  # not every system has them all
        with suppress(OSError, AttributeError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# A forked child, such as a data loader's, would hold our connections open: the end of its parent would go unseen.
_guarded: weakref.WeakSet[Any] = weakref.WeakSet()


def _let_go() -> None:
    """Put an empty file in the place of each connection: whoever holds one may close it later."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in [thing.fileno() for thing in _guarded]:
        if number >= 0:
            os.dup2(null, number, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


# The messages, besides Beat. Rank to hub: Hello to Bye; hub to rank: the others.


@dataclass(frozen=True)
class Hello:
    """The secret, presented."""

    secret: str = field(repr=False)
    rank: int
    host: str


@dataclass(frozen=True)
class Gather:
    """This rank's text of a round."""

    round: int
    text: str


@dataclass(frozen=True)
class Log:
    """A line to show: printed on `origin` "stdout" or "stderr" at level 0, else logged by the logger `origin`."""

    text: str
    origin: str = "stdout"
    level: int = 0


@dataclass(frozen=True)
class Fail:
    """An error of the rank."""

    reason: str
    traceback: str
    secondary: bool


@dataclass(frozen=True)
class Stack:
    """The stack of the rank."""

    text: str


@dataclass(frozen=True)
class Bye:
    """A clean end."""


@dataclass(frozen=True)
class Ack:
    """A word that a rank is welcome, or its error known."""


@dataclass(frozen=True)
class Gathered:
    """The texts of all ranks of a round, or why it cannot be completed."""

    round: int
    texts: list[str]
    obstacle: str = ""


@dataclass(frozen=True)
class Ask:
    """A question for the stack."""


@dataclass(frozen=True)
class Abort:
    """An order to end the process; as the answer to Hello, a refusal."""

    reason: str


MESSAGES: Mapping[str, type] = {
    kind.__name__: kind for kind in (Beat, Hello, Gather, Log, Fail, Stack, Bye, Ack, Gathered, Ask, Abort)
}
FITS: Mapping[str, Callable[[object], bool]] = {
    "int": lambda value: type(value) is int,
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "float | None": lambda value: value is None or type(value) is float,
    "list[str]": lambda value: type(value) is list and all(type(item) is str for item in value),
}


def encode(message: object) -> bytes:
    """Return a message as one line."""
    return json.dumps([type(message).__name__, vars(message)]).encode() + b"\n"


def decode(line: bytes) -> object:
    """Return the message in a line.

    Raises:
        Malformed: It is none: no JSON, an unknown name, a field missing, too much or of the wrong type.
    """
    try:
        name, values = json.loads(line)
        kind = MESSAGES[name]
        kinds = {item.name: str(item.type) for item in dataclasses.fields(kind)}
        if kinds.keys() != values.keys() or not all(FITS[kinds[key]](value) for key, value in values.items()):
            raise ValueError(f"the fields of {name} are {kinds}")
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Malformed(f"a message is malformed ({type(error).__name__}: {str(error)[:200]})") from None
