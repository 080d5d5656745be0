"""Sums: arrays added up over the ranks of one machine, through memory that they share. Owns how these ranks meet.

Each rank copies a piece of its array into the shared memory, adds up its part of that piece over all ranks, and copies
the sum out. Between these the ranks meet on sockets, which tell when one of them has ended. Far less work for the
processor than a ring over the loopback device.
"""

from __future__ import annotations

import mmap
import os
import secrets
import socket
import struct
from collections.abc import Callable

import numpy as np

_PIECE = 1 << 20  # bytes of an array that are added up at a time
_READY = b"."


class SharedSums:
    """Sums over the ranks of one machine, seen from one of them.

    Args:
        memory: The file of the shared memory, which the caller closes.
        rank: The number of this rank.
        size: How many ranks there are.
        sockets: On rank 0 a socket to each other rank; on the others one to rank 0.
    """

    def __init__(self, memory: int, rank: int, size: int, sockets: list[socket.socket]) -> None:
        self.rank, self.size, self.sockets = rank, size, sockets
        self.buffer = np.frombuffer(mmap.mmap(memory, (size + 1) * _PIECE), np.uint8).reshape(size + 1, _PIECE)

    def add(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of an array over all ranks: of the same shape and type on each."""
        given = np.ascontiguousarray(array)
        total = np.empty_like(given)
        slots = self.buffer.view(given.dtype)
        width = slots.shape[1]
        for start in range(0, given.size, width):
            piece, result = (flat.reshape(-1)[start : start + width] for flat in (given, total))
            slots[self.rank, : piece.size] = piece
            self._meet()
            part = slice(piece.size * self.rank // self.size, piece.size * (self.rank + 1) // self.size)
            np.add.reduce(slots[:-1, part], axis=0, out=slots[-1, part])
            self._meet()
            result[:] = slots[-1, : piece.size]
        return total.reshape(np.shape(array))

    def close(self) -> None:
        """Close the sockets; the memory goes with the last rank that has it."""
        for each in self.sockets:
            each.close()

    def _meet(self) -> None:
        """Wait until all ranks are here."""
        try:
            if self.rank:
                self.sockets[0].sendall(_READY)
            if any(each.recv(1) != _READY for each in self.sockets):
                raise ConnectionError("it is closed")
            if not self.rank:
                for each in self.sockets:
                    each.sendall(_READY)
        except OSError as error:
            raise RuntimeError(f"Connection closed by peer: a worker of this machine is gone ({error})") from error


class Meeting:
    """The place where ranks of one machine find each other: rank 0 opens it, before it tells its name."""

    def __init__(self, size: int) -> None:
        self.server: socket.socket | None = None
        try:
            self.memory = os.memfd_create("orca-sums")
        except (AttributeError, OSError):  # a system without such memory, or one that grants none
            return
        os.ftruncate(self.memory, (size + 1) * _PIECE)
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(f"\0orca-{secrets.token_hex(16)}")
        self.server.listen(size)

    @property
    def name(self) -> str:
        """Return where others find it; "" where there is no such place."""
        return "" if self.server is None else self.server.getsockname().decode()

    def admit(self, timeout: float | None) -> socket.socket:
        """Return a connection from a process of this user: names of such places are no secret."""
        assert self.server is not None
        self.server.settimeout(timeout)
        while True:
            link, _ = self.server.accept()
            if _is_mine(link):
                link.settimeout(timeout)
                return link
            link.close()

    def close(self) -> None:
        """Let nobody in any more; the memory stays with those who have it."""
        if self.server is not None:
            self.server.close()
            os.close(self.memory)


def shared_sums(
    meeting: Meeting | None, name: str, rank: int, size: int, agree: Callable[[bool], bool], timeout: float | None
) -> SharedSums | None:
    """Return the sums of the ranks of one machine; None on every rank where one of them cannot join.

    Args:
        meeting: Rank 0's meeting; None on the others.
        name: Its name.
        rank: The number of this rank.
        size: How many ranks there are.
        agree: Tells all ranks whether something is true on each.
        timeout: Seconds to wait for another rank; None for no limit.
    """
    link = None if meeting is not None else _connection(name)
    if not agree(bool(name) and (meeting is not None or link is not None)):
        return None
    if meeting is not None:
        links = [meeting.admit(timeout) for _ in range(size - 1)]
        for each in links:
            socket.send_fds(each, [_READY], [meeting.memory])
        return SharedSums(meeting.memory, rank, size, links)
    assert link is not None
    link.settimeout(timeout)
    _, (memory, *_), *_ = socket.recv_fds(link, 1, 1)
    try:
        return SharedSums(memory, rank, size, [link])
    finally:
        os.close(memory)


def _connection(name: str) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(name)
        if _is_mine(link):
            return link
    except OSError:  # a container of its own, say
        pass
    link.close()
    return None


def _is_mine(link: socket.socket) -> bool:
    """Say whether the other end of a connection belongs to this user."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())
