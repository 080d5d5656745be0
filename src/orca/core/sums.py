"""Sums: arrays added up over the ranks of one machine, through memory that they share. Owns how these ranks meet.

Each rank copies a piece of its arrays into its part of the shared memory, meets the others, and adds up the copies of
all. They meet on sockets, which also tell when a rank has ended. Far less work for the processor
than a ring over the loopback device. The sockets' names are public: who connects proves that it knows the run's secret.

gloo goes through the loopback device, and torch has no collective of CPUs in shared memory.
"""

from __future__ import annotations

import hmac
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import numpy as np

from orca.errors import OrcaError
from orca.monitor.handshake import key_of, mac_of
from orca.monitor.heartbeat import WAIT, Heartbeat

_PIECE = 1 << 20  # bytes of a rank's arrays that are added up at a time
_FEW = 4  # ranks that each add up everything: to share the work and meet again costs more
_LINE = 64  # bytes that the processor reads at once: each array begins with new ones
_SIZE = struct.Struct("<Q")  # the message of a meeting
_READY = b"."
_RANK = struct.Struct("<I")
_PROOF = _RANK.size + 32


class SharedSums:
    """Sums over the ranks of one machine, seen from one of them.

    A meeting a piece is enough, as pieces take turns in two buffers. A rank that writes a piece has left the meeting of
    the piece before. All ranks had come there, each after it read the piece before that one, which lay in this buffer.

    Args:
        memory: The file of the shared memory, which the caller closes.
        rank: The number of this rank.
        size: How many ranks there are.
        sockets: One to each other rank.
        heartbeat: Shows that this rank waits for the others.
    """

    def __init__(self, memory: int, rank: int, size: int, sockets: list[socket.socket], heartbeat: Heartbeat) -> None:
        self.rank, self.size, self.sockets, self.heartbeat = rank, size, sockets, heartbeat
        memory_bytes = np.frombuffer(mmap.mmap(memory, 2 * (size + 1) * _PIECE), np.uint8)
        self.buffers = cycle(memory_bytes.reshape(2, size + 1, _PIECE))  # a line a rank, and one of sums for many ranks

    def add(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sum of each array over all ranks: of the same shapes and types on each."""
        flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        totals = [np.empty_like(array) for array in flat]
        self._add(flat, totals)
        return [total.reshape(np.shape(array)) for total, array in zip(totals, arrays, strict=True)]

    def add_in_place(self, array: np.ndarray) -> None:
        """Replace a flat array by its sum over all ranks."""
        self._add([array], [array])

    def close(self) -> None:
        """Close the sockets; the memory goes with the last rank that has it."""
        for each in self.sockets:
            each.close()

    @np.errstate(all="ignore")  # sums of gradients may be infinite, which learners see to
    def _add(self, flat: Sequence[np.ndarray], totals: Sequence[np.ndarray]) -> None:
        phase, size = self.heartbeat.phase, sum(array.nbytes for array in flat)
        for piece in _pieces(flat):
            buffer = next(self.buffers)
            parts = [(at, cut, buffer[:, place].view(flat[at].dtype)) for at, cut, place in piece]
            for at, cut, part in parts:
                part[self.rank] = flat[at][cut]
            self._meet(size)
            if self.size > _FEW:
                for _, _, part in parts:
                    mine = np.array_split(part, self.size, axis=1)[self.rank]
                    np.add.reduce(mine[:-1], axis=0, out=mine[-1])
                self._meet(size)
            for at, cut, part in parts:
                rows = part[-1:] if self.size > _FEW else part[:-1]
                np.add.reduce(rows, axis=0, out=totals[at][cut])
        self.heartbeat.at(phase)

    def _meet(self, size: int) -> None:
        """Wait until all ranks are here; check that each adds up arrays of so many bytes."""
        self.heartbeat.at(WAIT)
        mine = _SIZE.pack(size)
        try:
            for each in self.sockets:
                each.sendall(mine)
            others = [each.recv(_SIZE.size) for each in self.sockets]
            if b"" in others:
                raise ConnectionError("it is closed")
        except OSError as error:
            raise RuntimeError(f"Connection closed by peer: a worker of this machine is gone ({error})") from error
        for (other,) in map(_SIZE.unpack, others):
            if other != size:
                raise OrcaError(
                    f"the workers add up different arrays: this one has {size} bytes, another {other}. Let your code "
                    "run the same backward passes on each of them, in the same order.",
                    code="gradients-differ",
                )


class Meeting:
    """The place where a rank lets those of higher numbers in: each rank opens one, before it tells its name.

    Args:
        size: How many ranks there are.
        rank: The number of this rank.
        secret: The secret of the run.
    """

    def __init__(self, size: int, rank: int, secret: str) -> None:
        self.size, self.rank, self.key = size, rank, key_of(secret, "sums")
        self.server: socket.socket | None = None
        try:
            self.memory = os.memfd_create("orca-sums")
        except (AttributeError, OSError):  # a system without such memory, or one that grants none
            return
        os.ftruncate(self.memory, 2 * (size + 1) * _PIECE)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(f"\0orca-{secrets.token_hex(16)}")
        self.server.listen(size)

    @property
    def name(self) -> str:
        """Return the address for others; "" where there is none."""
        return "" if self.server is None else self.server.getsockname().decode()

    def call(self, name: str, timeout: float | None) -> socket.socket | None:
        """Return a connection to the rank that listens at this address; None where it cannot be reached."""
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)  # there is room in its queue at once, or none
        try:
            link.connect(name)
            link.settimeout(timeout)
            if _is_mine(link):
                link.sendall(self._proof(self.rank, name))
                return link
        except OSError:  # a container of its own, say; or strangers have filled its queue
            pass
        link.close()
        return None

    def admit(self, ranks: set[int], timeout: float | None) -> list[socket.socket]:
        """Return a connection from each of these ranks, which have called already.

        Others are sent away: processes of other users, and those that do not know the secret. No rank has to wait for
        them, as a rank's proof is there before it is let in.
        """
        assert self.server is not None
        links: dict[int, socket.socket] = {}
        self.server.settimeout(timeout)
        while ranks - links.keys():
            link, _ = self.server.accept()
            rank = self._proved(link)
            if rank in ranks and rank not in links:
                link.settimeout(timeout)
                links[rank] = link
            else:
                link.close()
        return [links[rank] for rank in sorted(links)]

    def close(self) -> None:
        """Let nobody in any more; the memory stays with the ranks that have it."""
        if self.server is not None:
            self.server.close()
            os.close(self.memory)

    def _proved(self, link: socket.socket) -> int | None:
        """Return the rank that a caller of this user proved; None where it did not."""
        try:
            proof = link.recv(_PROOF, socket.MSG_DONTWAIT) if _is_mine(link) else b""
        except OSError:  # it has sent nothing
            return None
        if len(proof) != _PROOF:
            return None
        (rank,) = _RANK.unpack_from(proof)
        return rank if hmac.compare_digest(proof, self._proof(rank, self.name)) else None

    def _proof(self, rank: int, name: str) -> bytes:
        """Return the proof of a rank for one address, which nobody else listens at, and hears."""
        claim = _RANK.pack(rank)
        return claim + mac_of(self.key, b"caller", claim, name.encode())


def shared_sums(
    meeting: Meeting,
    names: Sequence[str],
    agree: Callable[[bool], bool],
    timeout: float | None,
    heartbeat: Heartbeat,
) -> SharedSums | None:
    """Return the sums of the ranks of one machine; None on every rank where one of them cannot join.

    Args:
        meeting: This rank's meeting; it takes over the memory of rank 0's.
        names: The names of all ranks' meetings.
        agree: Tells all ranks whether something is true on each.
        timeout: Seconds to wait for another rank; None for no limit.
        heartbeat: Shows that this rank waits for the others.
    """
    rank, size = meeting.rank, meeting.size
    links = [link for name in names[:rank] if (link := meeting.call(name, timeout))]
    if not agree(all(names) and len(links) == rank):
        for link in links:
            link.close()
        return None
    links += meeting.admit(set(range(rank + 1, size)), timeout)
    if rank:
        _, memory, *_ = socket.recv_fds(links[0], 1, 1)
        if not memory:
            raise RuntimeError("Connection closed by peer: rank 0 ended before it shared its memory")
        os.close(meeting.memory)
        meeting.memory = memory[0]
    else:
        for link in links:
            socket.send_fds(link, [_READY], [meeting.memory])
    return SharedSums(meeting.memory, rank, size, links, heartbeat)


def _is_mine(link: socket.socket) -> bool:
    """Say whether the other end of a connection belongs to this user."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _pieces(arrays: Sequence[np.ndarray]) -> Iterator[list[tuple[int, slice, slice]]]:
    """Yield the parts of flat arrays that are added up at a time: which array, its elements, and their place."""
    piece: list[tuple[int, slice, slice]] = []
    offset = 0
    for at, array in enumerate(arrays):
        start = 0
        while start < array.size:
            stop = min(array.size, start + (_PIECE - offset) // array.itemsize)
            size = (stop - start) * array.itemsize
            piece.append((at, slice(start, stop), slice(offset, offset + size)))
            start, offset = stop, offset + size + -size % _LINE
            if start < array.size:
                yield piece
                piece, offset = [], 0
    if piece:
        yield piece
