"""Rendezvous: ranks share values, threads wait beside each other, and strangers are answered nothing."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta

import pytest

from monitor.ranks import eventually
from monitor.relay import relayed, replayed
from orca.core import rendezvous
from orca.core.engine import is_secondary
from orca.core.rendezvous import Client, Rendezvous, StoreMethod
from orca.errors import OrcaError
from orca.monitor import handshake
from orca.monitor.handshake import key_of
from orca.monitor.link import Parted, from_parting

HOST = "127.0.0.1"


@contextmanager
def met(size: int = 2) -> Iterator[tuple[Rendezvous, list[Client]]]:
    server = Rendezvous(HOST, "secret", size)
    clients = [Client(HOST, server.port, "secret", rank, 5.0) for rank in range(size)]
    try:
        yield server, clients
    finally:
        for client in clients:
            client.close()
        server.close()


def test_values_are_shared_and_counted() -> None:
    with met() as (_, (one, other)):
        assert one.ask(StoreMethod.SET, b"key", b"value\0") == b""
        assert other.ask(StoreMethod.GET, b"key") == b"value\0"
        assert rendezvous.integer(one.ask(StoreMethod.ADD, b"n", rendezvous.number(3)) or b"") == 3
        assert rendezvous.integer(other.ask(StoreMethod.ADD, b"n", rendezvous.number(-5)) or b"") == -2
        assert other.ask(StoreMethod.GET, b"n") == b"-2"  # torch reads such numbers as texts
        assert other.ask(StoreMethod.CHECK, b"key", b"n") and not other.ask(StoreMethod.CHECK, b"key", b"none")
        assert one.ask(StoreMethod.COMPARE_SET, b"key", b"wrong", b"new") == b"value\0"
        assert one.ask(StoreMethod.COMPARE_SET, b"key", b"value\0", b"new") == b"new"
        assert one.ask(StoreMethod.COMPARE_SET, b"fresh", b"", b"first") == b"first"
        assert one.ask(StoreMethod.COMPARE_SET, b"none", b"something", b"first") == b"something"
        assert other.ask(StoreMethod.DELETE, b"key") == b"1" and other.ask(StoreMethod.DELETE, b"key") == b""
        assert rendezvous.integer(other.ask(StoreMethod.COUNT) or b"") == 2
        assert one.ask(StoreMethod.SET, b"large", bytes(3 << 20)) == b"" and other.ask(
            StoreMethod.GET, b"large"
        ) == bytes(3 << 20)


def test_threads_wait_beside_each_other_until_the_value_is_there() -> None:
    with met() as (_, (one, other)), ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(one.ask, StoreMethod.GET, b"late", seconds=10.0) for _ in range(3)]
        waiting.append(threads.submit(one.ask, StoreMethod.WAIT, b"late", b"later", seconds=10.0))
        time.sleep(0.05)
        assert one.ask(StoreMethod.SET, b"meanwhile", b"1") == b""
        other.ask(StoreMethod.SET, b"late", b"value")
        assert [each.result(5.0) for each in waiting[:3]] == [b"value"] * 3 and not waiting[3].done()
        other.ask(StoreMethod.SET, b"later", b"")
        assert waiting[3].result(5.0) == b""


def test_waiting_ends_in_time() -> None:
    with met() as (_, (one, _)):
        started = time.monotonic()
        assert one.ask(StoreMethod.WAIT, b"never", seconds=0.1) is None
        assert one.ask(StoreMethod.GET, b"never", seconds=0.1) is None
        assert time.monotonic() - started < 5.0


def test_store_of_torch_does_what_torchs_own_do() -> None:
    dist = pytest.importorskip("torch.distributed")
    from orca.core.store import run_store

    with met() as (_, (one, other)):
        store, beside = (run_store(client, timedelta(seconds=0.3)) for client in (one, other))
        wrapped = dist.PrefixStore("group", store)  # C++ calls the methods
        wrapped.set("key", "value")
        assert wrapped.get("key") == b"value" == beside.get("group/key")
        assert wrapped.add("n", 2) == 2 and wrapped.check(["key"]) and not wrapped.check(["other"])
        assert wrapped.compare_set("key", "value", "new") == b"new"
        assert wrapped.delete_key("key") and wrapped.num_keys() == 1
        wrapped.wait(["n"])
        wrapped.wait(["n"], timedelta(seconds=1))
        for waits in (
            lambda: wrapped.wait(["no"]),
            lambda: wrapped.get("no"),
            lambda: store.wait(["no"], timedelta(0)),
        ):
            with pytest.raises(dist.DistStoreError, match="wait timeout after .* for the keys (group/)?no"):
                waits()
        if hasattr(store, "clone"):
            copy = wrapped.clone()
            assert copy.add("n", 1) == 3


def test_rank_that_waits_while_rank_0_goes_is_told_so_and_is_not_the_culprit() -> None:
    dist = pytest.importorskip("torch.distributed")
    from orca.core.store import run_store

    server = Rendezvous(HOST, "secret", 2)
    client = Client(HOST, server.port, "secret", 1, 5.0)
    own = run_store(client, timedelta(seconds=30))
    store = dist.PrefixStore("group", own)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait, ["never"])
        assert eventually(lambda: client.ask(StoreMethod.COUNT))
        server.close()
        with pytest.raises(Parted, match="rank 1 lost rank 0, which holds the ranks' rendezvous at") as caught:
            waiting.result(10.0)
    assert from_parting(caught.value) or is_secondary(caught.value)
    client.close()


def test_stranger_is_answered_nothing(caplog: pytest.LogCaptureFixture) -> None:
    get = struct.pack("<Bd", StoreMethod.GET, 0.0) + struct.pack("<I", 3) + b"key"
    with met() as (server, (one, _)):
        one.ask(StoreMethod.SET, b"key", b"value")
        for words in (struct.pack("<I", len(get)) + get, bytes(200), b"orca-hs1" + bytes(68) + get):
            with socket.create_connection((HOST, server.port), 3.0) as stranger:
                stranger.sendall(words)
                heard = b""
                with suppress(ConnectionResetError):
                    while data := stranger.recv(1 << 16):
                        heard += data
                assert len(heard) in (0, 64) and b"value" not in heard
        with pytest.raises(OrcaError, match="rank 1 does not believe the ranks' rendezvous at"):
            Client(HOST, server.port, "wrong", 1, 5.0).ask(StoreMethod.GET, b"key")
        assert one.ask(StoreMethod.GET, b"key") == b"value"
    assert 0 < len(caplog.records) <= 4


def test_recorded_greeting_opens_nothing() -> None:
    with met() as (server, (one, _)), relayed(server.port) as relay:
        client = Client(HOST, relay.port, "secret", 1, 5.0)
        client.ask(StoreMethod.SET, b"key", b"value")
        client.close()
        assert len(relay.said) > 76 and b"secret" not in relay.said
        one.ask(StoreMethod.DELETE, b"key")
        assert len(replayed(server.port, relay.said)) == 64  # numbers and a proof; the request is not carried out
        assert one.ask(StoreMethod.CHECK, b"key") == b""


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 0),
        struct.pack("<I", 3) + b"abc",
        struct.pack("<IBd", 9, 99, 0.0),
        struct.pack("<IBd", 9, StoreMethod.SET, 0.0),
        struct.pack("<IBdI", 13, StoreMethod.GET, 0.0, 1 << 30),
        struct.pack("<IBdI3s", 16, StoreMethod.ADD, 0.0, 3, b"key"),
        struct.pack("<IBdI1sI1s", 19, StoreMethod.ADD, 0.0, 1, b"k", 1, b"1"),
        struct.pack("<IBdI1sI8s", 26, StoreMethod.ADD, 0.0, 1, b"t", 8, bytes(8)),
        struct.pack("<IBdI1sI8s", 26, StoreMethod.ADD, 0.0, 1, b"l", 8, bytes(8)),
        struct.pack("<IBdI1s", 14, StoreMethod.GET, float("nan"), 1, b"n"),
    ],
)
def test_malformed_request_ends_its_connection_alone(frame: bytes) -> None:
    with met() as (server, (one, _)):
        one.ask(StoreMethod.SET, b"t", b"no number")
        one.ask(StoreMethod.SET, b"l", b"9" * 5000)
        with handshake.connect(HOST, server.port, key_of("secret", "rendezvous"), 1, 3.0, 3.0) as rank:
            rank.sendall(frame)
            with suppress(ConnectionResetError):
                assert rank.recv(1 << 16) == b""
        assert one.ask(StoreMethod.GET, b"t") == b"no number"


def test_nothing_is_left_when_it_is_closed() -> None:
    before = set(threading.enumerate())
    with met() as (_, clients):
        for client in clients:
            client.ask(StoreMethod.COUNT)
    assert set(threading.enumerate()) <= before
