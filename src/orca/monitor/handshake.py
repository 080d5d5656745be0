"""Handshake: both ends of a connection prove that they know a run's secret. Owns its messages and who may wait.

Nothing else is read from a connection before: four messages of fixed size, in which only numbers drawn for this
connection and their HMACs travel. The secret does not, so that nothing heard on the wire admits anyone; the roles of
both ends are part of the HMACs, so that none can be sent back to its author.

    caller                                   listener
    magic, nonce (32 bytes)            ->
                                       <-    nonce (32 bytes), HMAC("listener", both nonces)
    rank, HMAC("caller", rank, both nonces)  ->
                                       <-    HMAC("admitted", both nonces)

The listener proves first: one that does not know the secret learns nothing, not even the caller's rank. Its last
message tells the caller that it was not dropped in favour of a newer connection meanwhile.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import cast

from orca.errors import OrcaError

STRANGERS = 240  # connections without the proof that may wait; with those that come and go just now, at most 256
BACKLOG = 4 * STRANGERS  # connections that the system queues: where it has no room, callers wait for seconds
PROOF_WITHIN = 5.0  # seconds a new connection has to prove that it knows the secret
RETRY_FOR = 20.0  # seconds in which a caller that is cut off tries again: strangers may have taken its place

_MAGIC = b"orca-hs1"
_NONCE = _MAC = 32
_RANK = struct.Struct("<I")
_OPENING = len(_MAGIC) + _NONCE
_PROOF = _RANK.size + _MAC
_BATCH = 4  # connections that are taken from the queue of the system at a time; up to four such batches come and go

logger = logging.getLogger(__name__)


class Unproven(OrcaError):
    """The other end of a connection does not know the secret, or speaks of something else."""


class CutOff(OrcaError, ConnectionError):
    """A connection that ended during the handshake: another attempt may get further."""


def key_of(secret: str, purpose: str) -> bytes:
    """Return the key for one purpose: what is proved for one is worth nothing for another."""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), f"orca {purpose}".encode(), "sha256")


def mac_of(key: bytes, role: bytes, *parts: bytes) -> bytes:
    """Return the HMAC of parts, which have fixed sizes, for a role."""
    return hmac.digest(key, b"\0".join((role, b"".join(parts))), "sha256")


class Listener:
    """The listening end of a handshake, without its connection.

    Attributes:
        rank: The rank that the caller proved; None until then.
        rest: The bytes behind the handshake.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.rank: int | None = None
        self.rest = b""
        self._inbox, self._nonces = bytearray(), b""

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the caller; return those to send.

        Raises:
            Unproven: They are not those of a caller that knows the secret.
        """
        self._inbox += data
        start = bytes(self._inbox[: len(_MAGIC)])
        if not self._nonces and not _MAGIC.startswith(start):
            raise Unproven("its first bytes are not those of a rank")
        answer = b""
        if not self._nonces and len(self._inbox) >= _OPENING:
            nonce = secrets.token_bytes(_NONCE)
            self._nonces = bytes(self._inbox[len(_MAGIC) : _OPENING]) + nonce
            del self._inbox[:_OPENING]
            answer = nonce + mac_of(self.key, b"listener", self._nonces)
        if self._nonces and len(self._inbox) >= _PROOF:
            rank, mac = bytes(self._inbox[: _RANK.size]), bytes(self._inbox[_RANK.size : _PROOF])
            if not hmac.compare_digest(mac, mac_of(self.key, b"caller", rank, self._nonces)):
                raise Unproven("it does not know the secret of this run")
            (self.rank,) = _RANK.unpack(rank)
            self.rest = bytes(self._inbox[_PROOF:])
            answer += mac_of(self.key, b"admitted", self._nonces)
        return answer


def connect(host: str, port: int, key: bytes, rank: int, timeout: float, patience: float) -> socket.socket:
    """Return a connection whose other end proved that it knows the secret, and knows that we do.

    Args:
        host: The other end's address.
        port: Its port.
        key: The key of this purpose.
        rank: The rank of this process.
        timeout: Seconds to reach the other end's machine.
        patience: Seconds for the other end, once reached, to answer.

    Raises:
        Unproven: The other end does not know the secret.
        OSError: It cannot be reached, or does not answer.
    """
    pause, paused = 0.05, 0.0  # only pauses count: the other end may have been suspended for longer
    while True:
        sock = socket.create_connection((host, port), timeout)
        try:
            prove(sock, key, rank, patience)
            return sock
        except CutOff:
            sock.close()
            if paused > RETRY_FOR:
                raise
        except BaseException:
            sock.close()
            raise
        time.sleep(pause)
        paused += pause
        pause = min(1.0, pause * 2)


def prove(sock: socket.socket, key: bytes, rank: int, patience: float) -> None:
    """Run the calling end of a handshake over a socket; the answer of all of it has so many seconds."""
    deadline, nonce = time.monotonic() + patience, secrets.token_bytes(_NONCE)
    try:
        sock.settimeout(patience)
        sock.sendall(_MAGIC + nonce)
        answer = _received(sock, _NONCE + _MAC, deadline)
        nonces = nonce + answer[:_NONCE]
        if not hmac.compare_digest(answer[_NONCE:], mac_of(key, b"listener", nonces)):
            raise Unproven("it does not know the secret of this run")
        claim = _RANK.pack(rank)
        sock.sendall(claim + mac_of(key, b"caller", claim, nonces))
        if not hmac.compare_digest(_received(sock, _MAC, deadline), mac_of(key, b"admitted", nonces)):
            raise Unproven("it does not admit this rank")
    except (ConnectionResetError, BrokenPipeError) as error:
        raise CutOff(f"the connection ended before both ends knew each other ({error})") from error


def _received(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        piece = sock.recv(size - len(data))
        if not piece:
            raise CutOff("the connection ended before both ends knew each other")
        data += piece
    return bytes(data)


class Reception:
    """The connections of a listening event loop that have not proved anything yet.

    Only so many are open at a time: when one more comes, the oldest is dropped, so that strangers who just hold
    theirs keep no rank out. Only so many of them are logged.

    Args:
        loop: The event loop, in whose thread all of this happens.
        key: The key of this purpose.
        name: The name of the listening end, for the log.
        lines: Lines that the log gets about strangers; one more says that there are others.
        admit: Called with the rank of a connection that proved itself; returns the protocol that it speaks from now on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        key: bytes,
        name: str,
        lines: int,
        admit: Callable[[int], asyncio.Protocol],
    ) -> None:
        self.loop, self.key, self.name, self.lines, self.admit = loop, key, name, lines, admit
        self.waiting: dict[_Stranger, None] = {}  # the oldest first
        self.refused = 0

    async def serve(self, sock: socket.socket, ranks: int) -> asyncio.Server:
        """Accept the connections of a listening socket, for which so many ranks and many strangers may queue."""
        # asyncio accepts as many connections at once as its backlog says, before it calls the protocol of the first:
        # strangers would take all descriptors of the process, and every failed accept is logged.
        server = await self.loop.create_server(lambda: _Stranger(self), sock=sock, backlog=_BATCH)
        sock.listen(ranks + BACKLOG)
        return server

    def close(self) -> None:
        """Drop all that wait."""
        for stranger in list(self.waiting):
            stranger.transport.abort()

    def report(self, host: str, reason: str) -> None:
        """Log that a connection was dropped."""
        self.refused += 1
        if self.refused <= self.lines:
            logger.warning("%s dropped the connection of %s: %s", self.name, host, reason)
        elif self.refused == self.lines + 1:
            logger.warning("%s drops more connections of strangers, which are not shown", self.name)


class _Stranger(asyncio.Protocol):
    """A connection that has not proved anything yet."""

    transport: asyncio.Transport

    def __init__(self, reception: Reception) -> None:
        self.reception, self.listener = reception, Listener(reception.key)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait; where too many do, the one that has waited longest has to go."""
        self.transport = cast(asyncio.Transport, transport)
        waiting = self.reception.waiting
        waiting[self] = None
        self.timer = self.reception.loop.call_later(
            PROOF_WITHIN, self._drop, f"it did not prove within {PROOF_WITHIN:g} s that it knows the secret"
        )
        if len(waiting) > STRANGERS:
            next(iter(waiting))._drop(f"more than {STRANGERS} connections had not proved that they know the secret")

    def data_received(self, data: bytes) -> None:
        """Answer; hand the connection on once the other end has proved its rank."""
        if self not in self.reception.waiting:
            return
        try:
            answer = self.listener.receive(data)
        except Unproven as error:
            return self._drop(str(error))
        if answer:
            self.transport.write(answer)
        if self.listener.rank is not None:
            self._leave()
            protocol = self.reception.admit(self.listener.rank)
            self.transport.set_protocol(protocol)
            protocol.connection_made(self.transport)
            if self.listener.rest:
                protocol.data_received(self.listener.rest)

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self._leave()

    def _leave(self) -> None:
        self.timer.cancel()
        self.reception.waiting.pop(self, None)

    def _drop(self, reason: str) -> None:
        self._leave()
        peer = self.transport.get_extra_info("peername") or ("an unknown host",)
        self.reception.report(peer[0], reason)
        self.transport.abort()
