"""Store: the ranks' rendezvous as torch asks for it."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from orca.core import rendezvous
from orca.core.rendezvous import Client, Kind


class RunStore(dist.Store):
    """The values at rank 0, as the store of a process group.

    torch's C++ code calls the methods, in any thread; a method that waits does so in a socket, and other threads of
    Python go on. It must live as long as the process group, which would not keep the Python half of it.

    Args:
        client: The way to rank 0.
        timeout: How long `get` and `wait` wait, where nothing else is said.
    """

    def __init__(self, client: Client, timeout: timedelta) -> None:
        super().__init__()
        self.client = client
        self.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self.client.ask(Kind.SET, key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, once it is there."""
        value = self.client.ask(Kind.GET, key.encode(), seconds=self.timeout.total_seconds())
        if value is None:
            raise _timed_out([key], self.timeout)
        return value

    def add(self, key: str, value: int) -> int:
        """Add to a number and return the sum."""
        return _integer(self.client.ask(Kind.ADD, key.encode(), rendezvous.number(value)))

    def check(self, keys: list[str]) -> bool:
        """Return whether all of these keys have a value."""
        return bool(self.client.ask(Kind.CHECK, *_keys(keys)))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return once all of these keys have a value."""
        patience = self.timeout if timeout is None else timeout
        if self.client.ask(Kind.WAIT, *_keys(keys), seconds=patience.total_seconds()) is None:
            raise _timed_out(keys, patience)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Set a value where it is the expected one (or "" is expected, and there is none); return the value now."""
        expected, desired = _bytes(expected_value), _bytes(desired_value)
        return self.client.ask(Kind.COMPARE_SET, key.encode(), expected, desired) or b""

    def delete_key(self, key: str) -> bool:
        """Delete a value; return whether there was one."""
        return bool(self.client.ask(Kind.DELETE, key.encode()))

    def num_keys(self) -> int:
        """Return how many values there are."""
        return _integer(self.client.ask(Kind.COUNT))

    def clone(self) -> RunStore:
        """Return a store for another thread: this one serves all of them."""
        return self

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815  # the names by which C++ asks for them


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _keys(keys: list[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def _integer(answer: bytes | None) -> int:
    return rendezvous.integer(answer or b"")


def _timed_out(keys: list[str], timeout: timedelta) -> Exception:
    return dist.DistStoreError(f"wait timeout after {timeout.total_seconds():g} s for the keys {', '.join(keys)}")
