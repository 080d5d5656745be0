from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orca.core import network
from orca.core.engine import Settings
from orca.core.network import Endpoint, adopt, choose_interface, endpoint, interface_of, resolved
from orca.core.rendezvous import Client, Rendezvous, StoreMethod
from orca.core.source import Shards
from orca.engines.local import LocalEngine
from orca.engines.spark import _address
from orca.errors import ArgumentError, OrcaError
from orca.monitor.hub import Hub
from orca.monitor.link import Link


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(network, "_chosen", {})
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
    yield
    adopt({})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_hub_and_rendezvous_listen_where_their_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoint("hub", "10.0.0.1") == Endpoint("10.0.0.1", "10.0.0.1")
    assert endpoint("hub", "[fd00::1]") == Endpoint("fd00::1", "fd00::1")
    adopt({"orca.hub.bind": "0.0.0.0", "orca.hub.host": "gate.example", "orca.hub.port": "7100-7110"})
    assert endpoint("hub", "10.0.0.1") == Endpoint("0.0.0.0", "gate.example", range(7100, 7111))
    assert endpoint("rendezvous", "10.0.0.1") == Endpoint("10.0.0.1", "10.0.0.1")
    monkeypatch.setenv("ORCA_HUB_HOST", "10.9.9.9")  # of this node
    assert endpoint("hub", "10.0.0.1").host == "10.9.9.9"
    assert network.settings() == {
        "orca.hub.bind": "0.0.0.0",
        "orca.hub.host": "10.9.9.9",
        "orca.hub.port": "7100-7110",
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"orca.hub.ports": "1"}, r"'orca\.hub\.ports' is no setting of Orca; .*Did you mean 'orca\.hub\.port'"),
        ({"orca.hub.port": "high"}, "orca.hub.port must be a port or a range of ports"),
        ({"orca.hub.port": "9-8"}, "must be a port or a range"),
        ({"orca.rendezvous.port": "70000"}, "must be a port or a range"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        adopt(settings)
    assert network.settings() == {}


def test_a_hub_behind_another_address_and_port_is_reached_there() -> None:
    taken, port = socket.create_server(("127.0.0.1", 0)), free_port()
    with taken, Hub(1, "127.0.0.3", bind="0.0.0.0", ports=range(port, port + 1)) as hub:
        assert (hub.ticket.host, hub.ticket.port) == ("127.0.0.3", port)
        with Link.connect(hub.ticket, rank=0) as link:
            assert link.all_gather("here") == ["here"]
    busy = taken_port()
    with busy, pytest.raises(ArgumentError, match=r"cannot listen on '127\.0\.0\.1' at the ports .*orca\.hub\.port"):
        number = busy.getsockname()[1]
        with Hub(1, "127.0.0.1", ports=range(number, number + 1)):
            raise AssertionError("it listens")


def taken_port() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with taken_port() as busy:
        number = busy.getsockname()[1]
        if number + 5 >= 1 << 16:
            pytest.skip("the system picked the last ports")
        with Hub(1, ports=range(number, number + 5)) as hub:
            assert number < hub.ticket.port < number + 5


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_hub_and_rendezvous_work_over_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    assert resolved("[::1]") == "::1" == _address("[::1]:40001") and _address("127.0.0.1:40001") == "127.0.0.1"
    assert interface_of("::1") == interface_of("127.0.0.1")
    with Hub(1, "::1") as hub, Link.connect(hub.ticket, rank=0) as link:
        assert link.all_gather("here") == ["here"]
    server = Rendezvous("::1", "secret", 1)
    client = Client("::1", server.port, "secret", 0, 10.0)
    client.ask(StoreMethod.SET, b"key", b"value")
    assert client.ask(StoreMethod.GET, b"key") == b"value"
    client.close()
    server.close()


def test_gloo_and_nccl_use_the_interface_of_the_engine_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_interface("127.0.0.1")
    loopback = interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == loopback
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    with pytest.raises(OrcaError, match=r"no network interface of .* has the address 192\.0\.2\.77\. Check"):
        choose_interface("192.0.2.77")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    choose_interface("192.0.2.77")  # behind a translation of addresses: no interface has it
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth7", "ib0")


def tell(world: Any, rows: Any, heartbeat: Any) -> tuple[str, str, list[int]]:
    return os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"], world.all_gather(world.rank)


def test_ranks_meet_at_the_ports_and_interfaces_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = interface_of("127.0.0.1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    port = free_port()
    adopt({"orca.rendezvous.port": str(port), "orca.rendezvous.bind": "0.0.0.0", "orca.rendezvous.host": "127.0.0.4"})

    def no_rows(items: Any, folder: Path) -> dict[str, Any]:
        return {}

    results = LocalEngine(2).run(tell, Shards(no_rows, list), Settings(progress=False))
    assert results == [(loopback, "ib0", [0, 1])] * 2
