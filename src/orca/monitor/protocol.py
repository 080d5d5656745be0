"""Wire: messages between hub and ranks over TCP, one JSON line each. Owns their kinds, their limits and the sockets.

What arrives becomes one of the frozen dataclasses below or the connection is dropped; nothing is ever unpickled or
evaluated.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import selectors
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from orca.errors import ArgumentError, OrcaError
from orca.monitor.heartbeat import Beat

CHUNK, READS = 64 << 10, 64  # bytes of one recv, and how many in a row before others get their turn
PAUSE = 120.0  # seconds for which the network, or the process at the other end, may be away
GONE_AFTER = 150.0  # seconds of silence of a machine after which its connections end
LINE_LIMIT = 64 << 10  # characters of a line of a rank; JSON may need six bytes for one


class Malformed(OrcaError):
    """Something that came over a connection and is no message of ours."""


class Wire:
    """Exchange messages over one socket without ever blocking; for one thread."""

    def __init__(self, sock: socket.socket, limit: int) -> None:
        self.sock, self.limit, self.ended = sock, limit, False
        self._inbox, self._scanned = bytearray(), 0
        self._outbox: deque[memoryview] = deque()
        self._hushed = False
        guard(sock)
        sock.setblocking(False)
        keep_alive(sock)

    def read(self) -> Iterator[object]:
        """Yield the messages that are here; sets `ended` when the other side is gone.

        Raises:
            Malformed: A message is too long or none of ours.
        """
        yield from self._lines()  # what an earlier reader left
        for _ in range(READS):
            try:
                data = self.sock.recv(CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self.ended = True
                return
            self._inbox += data
            yield from self._lines()
            self._check(len(self._inbox))

    def _lines(self) -> Iterator[object]:
        while (end := self._inbox.find(b"\n", self._scanned)) >= 0:
            line, self._scanned = bytes(self._inbox[:end]), 0
            del self._inbox[: end + 1]
            self._check(len(line))
            yield decode(line)
        self._scanned = len(self._inbox)

    def _check(self, length: int) -> None:
        if length > self.limit:
            raise Malformed(f"a message is longer than {self.limit} bytes")

    def send(self, line: bytes) -> None:
        """Queue a line."""
        self._outbox.append(memoryview(line))

    def flush(self) -> None:
        """Send what the socket takes now; a broken connection is found by read."""
        with suppress(OSError):
            while self._outbox:
                sent = self.sock.send(self._outbox[0])
                if sent == len(self._outbox[0]):
                    self._outbox.popleft()
                else:
                    self._outbox[0] = self._outbox[0][sent:]

    def hush(self) -> None:
        """Say that nothing more will be sent."""
        if not self._hushed:
            self._hushed = True
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)

    @property
    def pending(self) -> bool:
        """Tell whether something waits to be sent."""
        return bool(self._outbox)

    @property
    def events(self) -> int:
        """Return what a selector should watch for."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0)

    @property
    def closed(self) -> bool:
        """Tell whether it was closed at this side."""
        return self.sock.fileno() < 0

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()


class Backlog:
    """A count of lines that wait to be read, and of those turned away because too many did.

    One thread (or one at a time) adds, another one takes. Where lines were turned away, half of what waits must be
    read before there is room again: a gap is told once, not between any two lines.
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


class Waker:
    """Wake a thread that sleeps in a selector."""

    def __init__(self) -> None:
        self.sock, self._rope = socket.socketpair()
        for end in (self.sock, self._rope):
            guard(end)
            end.setblocking(False)

    def ring(self) -> None:
        """Wake it; harmless when it rang already or is gone."""
        with suppress(OSError):
            self._rope.send(b"!")

    def hush(self) -> None:
        """Forget the rings so far."""
        with suppress(OSError):
            self.sock.recv(CHUNK)

    def close(self) -> None:
        """Close both ends."""
        self.sock.close()
        self._rope.close()


def listen(host: str, size: int) -> socket.socket:
    """Return a socket that listens on one interface, at a port the system picks."""
    try:
        if host in ("", "*"):
            raise OSError("it means every interface")
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(str(address[0]).partition("%")[0]).is_unspecified:
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
    door.setblocking(False)
    guard(door)
    return door


def keep_alive(sock: socket.socket) -> None:
    """Let the system find out that the other machine is gone, not just away for a pause; send small messages at once.

    A process that ends is known at once all the same: its system closes the connection.
    """
    options = {
        "TCP_NODELAY": 1,
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
_guarded: weakref.WeakSet[socket.socket] = weakref.WeakSet()
guard = _guarded.add


def _close_in_child() -> None:
    for sock in list(_guarded):
        sock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


# The messages, besides Beat. Rank to hub: Hello to Bye; hub to rank: the others.


@dataclass(frozen=True)
class Hello:
    """Present the secret."""

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
    """Report an error."""

    reason: str
    traceback: str
    secondary: bool


@dataclass(frozen=True)
class Stack:
    """The stack of the rank."""

    text: str


@dataclass(frozen=True)
class Bye:
    """Announce a clean end."""


@dataclass(frozen=True)
class Welcome:
    """Accept a rank."""


@dataclass(frozen=True)
class Refused:
    """A connection turned away."""

    reason: str


@dataclass(frozen=True)
class Gathered:
    """The texts of all ranks of a round."""

    round: int
    texts: list[str]


@dataclass(frozen=True)
class Apart:
    """A round that cannot be completed, because of which rank and its end."""

    round: int
    rank: int
    how: str


@dataclass(frozen=True)
class Ack:
    """Confirm that an error is known."""


@dataclass(frozen=True)
class Ask:
    """A question for the stack."""


@dataclass(frozen=True)
class Abort:
    """An order to end the process."""

    reason: str


MESSAGES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (Beat, Hello, Gather, Log, Fail, Stack, Bye, Welcome, Refused, Gathered, Apart, Ack, Ask, Abort)
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
    fields = {name: getattr(message, name) for name in type(message).__dataclass_fields__}  # type: ignore[attr-defined]
    return json.dumps([type(message).__name__, fields]).encode() + b"\n"


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
