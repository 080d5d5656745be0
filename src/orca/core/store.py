"""Store: the ranks' rendezvous as torch asks for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from orca.core import rendezvous
from orca.core.rendezvous import Client, StoreMethod

_newest: list[Any] = []


def run_store(client: Client, timeout: timedelta) -> Any:
    """Return the values at rank 0 as a store of torch's, for a process group.

    It must be held as long as the process group lives, which does not keep the Python half of it: the newest one is
    held here, as threads of a group that has failed may go on asking.

    Args:
        client: The way to rank 0.
        timeout: How long `get` and `wait` wait, where nothing else is said.
    """
    import torch.distributed as dist

    class RunStore(dist.Store):
        """The store. torch's C++ code calls its methods, in any thread.

        A method that waits does so in a socket: other threads of Python go on.
        """

        def set(self, key: str, value: str | bytes) -> None:
            """Set a value."""
            client.ask(StoreMethod.SET, key.encode(), _bytes(value))

        def get(self, key: str) -> bytes:
            """Return a value, once it is there."""
            value = client.ask(StoreMethod.GET, key.encode(), seconds=_patience(self).total_seconds())
            if value is None:
                raise dist.DistStoreError(_late([key], _patience(self)))
            return value

        def add(self, key: str, value: int) -> int:
            """Add to a number and return the sum."""
            return _integer(client.ask(StoreMethod.ADD, key.encode(), rendezvous.number(value)))

        def check(self, keys: list[str]) -> bool:
            """Return whether all of these keys have a value."""
            return bool(client.ask(StoreMethod.CHECK, *_keys(keys)))

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            """Return once all of these keys have a value."""
            patience = _patience(self) if timeout is None else timeout
            if client.ask(StoreMethod.WAIT, *_keys(keys), seconds=patience.total_seconds()) is None:
                raise dist.DistStoreError(_late(keys, patience))

        def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
            """Set a value where it is the expected one (or "" is expected, and there is none); return the value now."""
            expected, desired = _bytes(expected_value), _bytes(desired_value)
            return client.ask(StoreMethod.COMPARE_SET, key.encode(), expected, desired) or b""

        def delete_key(self, key: str) -> bool:
            """Delete a value; return whether there was one."""
            return bool(client.ask(StoreMethod.DELETE, key.encode()))

        def num_keys(self) -> int:
            """Return how many values there are."""
            return _integer(client.ask(StoreMethod.COUNT))

        def clone(self) -> Any:
            """Return a store for another thread: this one serves all of them."""
            return self

        deleteKey, getNumKeys = delete_key, num_keys  # the names by which C++ asks for them

    store = RunStore()
    store.set_timeout(timeout)
    _newest[:] = [store]
    return store


def _patience(store: Any) -> timedelta:
    patience: timedelta = store.timeout  # torch's own, which its stubs leave out
    return patience


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _keys(keys: list[str]) -> list[bytes]:
    return [key.encode() for key in keys]


def _integer(answer: bytes | None) -> int:
    return rendezvous.integer(answer or b"")


def _late(keys: list[str], timeout: timedelta) -> str:
    return f"wait timeout after {timeout.total_seconds():g} s for the keys {', '.join(keys)}"
