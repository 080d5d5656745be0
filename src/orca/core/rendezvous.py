"""Rendezvous: the keys and values by which the ranks' process groups form. Owns who may ask, and how.

Rank 0 holds the values and answers over TCP, itself as well; who has not proved that it knows the run's secret
(`monitor/handshake.py`) is answered nothing. torch's own TCPStore answers everybody.

A request is a frame of a kind, the seconds to wait, and some texts; the answer is a frame of a status and a text.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import cast

from orca.errors import OrcaError
from orca.monitor import handshake
from orca.monitor.handshake import BACKLOG, Reception, Unproven, key_of
from orca.monitor.link import Parted
from orca.monitor.protocol import Malformed, close_in_children, keep_alive, listen

DONE, TIMED_OUT = range(2)  # statuses of answers
FRAME_LIMIT = 64 << 20  # bytes of a frame
STRANGERS_LINES = 8  # of the log about connections without the secret
_PURPOSE = "rendezvous"
_LENGTH = struct.Struct("<I")
_REQUEST = struct.Struct("<Bd")
_NUMBER = struct.Struct("<q")
_LATE = 60.0  # seconds after which an answer that rank 0 owes does not come any more: it is stuck
_REACH = 30.0  # seconds to reach rank 0's machine
_NO_LIMIT = 20 * 86400.0  # seconds; the system can wait no longer than 24 days

Answer = Callable[[int, bytes], None]


def number(value: int) -> bytes:
    """Return a number as a text of a request."""
    return _NUMBER.pack(value)


def integer(text: bytes) -> int:
    """Return the number in a text of an answer."""
    return int(_NUMBER.unpack(text)[0])


class StoreMethod(IntEnum):
    """The kinds of requests: the methods of torch's stores."""

    SET, GET, ADD, CHECK, WAIT, COMPARE_SET, DELETE, COUNT = range(8)


class Rendezvous:
    """The values that ranks share, and the thread that answers the ranks; rank 0 has it.

    Args:
        host: The address to listen on.
        secret: The secret of the run.
        size: How many ranks there are.
        ports: The ports to try; port 0 lets the system pick.
    """

    def __init__(self, host: str, secret: str, size: int, ports: range = range(1)) -> None:
        self._server = listen(host, ports, any_interface=True, backlog=size + BACKLOG)
        self.port: int = self._server.getsockname()[1]
        self._key, self._size = key_of(secret, _PURPOSE), size
        self._loop = asyncio.SelectorEventLoop()
        self._closing = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="orca-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections; ranks that still wait for an answer are told that rank 0 is gone."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._closing.set_result, None)
        self._thread.join(10.0)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        values = _Values(self._loop)
        connections: set[_Connection] = set()

        def admit(rank: int) -> _Connection:
            return _Connection(values, connections)

        reception = Reception(self._loop, self._key, "the ranks' rendezvous", STRANGERS_LINES, admit)
        server = await reception.serve(self._server, self._size)
        try:
            await self._closing
        finally:
            server.close()
            reception.close()
            for connection in connections:
                connection.transport.close()  # what is answered already still arrives
            await asyncio.sleep(0)
            await asyncio.sleep(0)


class _Values:
    """The values, in the thread of an event loop, and those who wait for some of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.values: dict[bytes, bytes] = {}
        self.waiting: dict[asyncio.TimerHandle, tuple[list[bytes], Callable[[], None]]] = {}

    def ask(self, kind: int, seconds: float, texts: list[bytes], answer: Answer) -> None:
        """Answer a request, now or when the keys that it waits for are there."""
        done = partial(answer, DONE)
        match kind, texts:
            case StoreMethod.SET, [key, value]:
                self._set(key, value)
                done(b"")
            case StoreMethod.GET, [key]:
                self._wait([key], seconds, lambda: done(self.values.get(key, b"")), answer)
            case StoreMethod.ADD, [key, step] if len(step) == _NUMBER.size:
                total = _integer(self.values.get(key, b"0")) + integer(step)
                self._set(key, b"%d" % total)
                done(_NUMBER.pack(total))
            case StoreMethod.CHECK, keys:
                done(b"1" if self._has(keys) else b"")
            case StoreMethod.WAIT, keys:
                self._wait(keys, seconds, lambda: done(b""), answer)
            case StoreMethod.COMPARE_SET, [key, expected, desired]:
                if self.values.get(key, b"") == expected:
                    self._set(key, desired)
                done(self.values.get(key, expected))
            case StoreMethod.DELETE, [key]:
                done(b"1" if self.values.pop(key, None) is not None else b"")
            case StoreMethod.COUNT, []:
                done(_NUMBER.pack(len(self.values)))
            case _:
                raise Malformed(f"a request of kind {kind} with {len(texts)} texts is unknown")

    def _has(self, keys: Sequence[bytes]) -> bool:
        return all(key in self.values for key in keys)

    def _set(self, key: bytes, value: bytes) -> None:
        self.values[key] = value
        ready = [(timer, found) for timer, (keys, found) in self.waiting.items() if self._has(keys)]
        for timer, found in ready:
            del self.waiting[timer]
            timer.cancel()
            found()

    def _wait(self, keys: list[bytes], seconds: float, found: Callable[[], None], answer: Answer) -> None:
        if self._has(keys):
            return found()

        def give_up() -> None:
            del self.waiting[timer]
            answer(TIMED_OUT, b"")

        timer = self.loop.call_later(min(seconds, _NO_LIMIT), give_up)
        self.waiting[timer] = keys, found


def _integer(text: bytes) -> int:
    if len(text) > 20:
        raise Malformed("it adds to a value that is no number")
    try:
        return int(text)
    except ValueError:
        raise Malformed("it adds to a value that is no number") from None


class _Connection(asyncio.Protocol):
    """The requests of one rank, which waits for each answer before it asks again."""

    transport: asyncio.Transport

    def __init__(self, values: _Values, connections: set[_Connection]) -> None:
        self.values, self.connections = values, connections
        self.inbox = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)
        self.sock = transport.get_extra_info("socket")
        keep_alive(self.sock)
        close_in_children(self)
        self.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are complete."""
        self.inbox += data
        try:
            while (frame := _frame(self.inbox)) is not None:
                self.values.ask(*_request(frame), self._answer)
        except Malformed:
            self.transport.abort()

    def fileno(self) -> int:
        """Return the descriptor of the connection; -1 once it is closed."""
        return int(self.sock.fileno())

    def _answer(self, status: int, text: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(_LENGTH.pack(1 + len(text)) + bytes([status]) + text)


def _frame(inbox: bytearray) -> bytes | None:
    """Take the first frame out of the bytes that arrived; None where it is not complete."""
    if len(inbox) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(inbox)
    if length > FRAME_LIMIT:
        raise Malformed(f"a frame of {length} bytes is longer than {FRAME_LIMIT}")
    end = _LENGTH.size + length
    if len(inbox) < end:
        return None
    frame = bytes(inbox[_LENGTH.size : end])
    del inbox[:end]
    return frame


def _request(frame: bytes) -> tuple[int, float, list[bytes]]:
    """Return the kind of a request, its seconds and its texts."""
    if len(frame) < _REQUEST.size:
        raise Malformed("a request is cut off")
    kind, seconds = _REQUEST.unpack_from(frame)
    if not seconds >= 0.0:
        raise Malformed(f"a request waits {seconds:g} s")
    texts, at = [], _REQUEST.size
    while at < len(frame):
        if at + _LENGTH.size > len(frame):
            raise Malformed("a request is cut off")
        (length,) = _LENGTH.unpack_from(frame, at)
        at += _LENGTH.size + length
        if at > len(frame):
            raise Malformed("a request is cut off")
        texts.append(frame[at - length : at])
    return kind, seconds, texts


class Client:
    """The requests of one rank, for all of its threads: each of them that waits has a connection of its own.

    Args:
        host: Rank 0's address.
        port: The port of its rendezvous.
        secret: The secret of the run.
        rank: The number of this rank.
        patience: Seconds for rank 0, once reached, to answer at all.
    """

    def __init__(self, host: str, port: int, secret: str, rank: int, patience: float) -> None:
        self.host, self.port, self.rank, self.patience = host, port, rank, min(patience, _NO_LIMIT)
        self._key = key_of(secret, _PURPOSE)
        self._idle: list[socket.socket] = []

    def ask(self, kind: StoreMethod, *texts: bytes, seconds: float = 0.0) -> bytes | None:
        """Return rank 0's answer to a request; None where what it waits for does not come in so many seconds.

        Raises:
            Parted: Rank 0 is gone.
            OrcaError: Another program answers at its address.
        """
        body = _REQUEST.pack(kind, seconds) + b"".join(_LENGTH.pack(len(text)) + text for text in texts)
        if len(body) > FRAME_LIMIT:
            raise ValueError(f"a key and its value may have {FRAME_LIMIT} bytes in all; got {len(body)}")
        sock = None
        try:
            sock = self._take() or self._connect()
            sock.settimeout(min(seconds + _LATE, _NO_LIMIT))
            sock.sendall(_LENGTH.pack(len(body)) + body)
            (length,) = _LENGTH.unpack(_received(sock, _LENGTH.size))
            if not 1 <= length <= FRAME_LIMIT + 1:
                raise ConnectionError(f"an answer of {length} bytes is none")
            status, *_ = answer = _received(sock, length)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if not isinstance(error, OSError):
                raise
            raise Parted(
                f"rank {self.rank} lost rank 0, which holds the ranks' rendezvous at {self.host}:{self.port} ({error})"
            ) from error
        self._idle.append(sock)
        return None if status == TIMED_OUT else answer[1:]

    def close(self) -> None:
        """Close the connections."""
        while sock := self._take():
            sock.close()

    def _take(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:  # all are in use by threads that wait
            return None

    def _connect(self) -> socket.socket:
        try:
            sock = handshake.connect(self.host, self.port, self._key, self.rank, _REACH, self.patience)
        except Unproven as error:
            raise OrcaError(
                f"rank {self.rank} does not believe the ranks' rendezvous at {self.host}:{self.port}: {error}. "
                "Another program listens there, or changes what is sent to it.",
                code="rendezvous-not-trusted",
            ) from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        close_in_children(sock)
        return sock


def _received(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("Connection closed by peer")
        data += piece
    return bytes(data)
