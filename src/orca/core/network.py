"""Network: the addresses, ports and interfaces of a run's connections. Owns the settings `orca.hub.*`,
`orca.rendezvous.*` and `orca.tls`, and which interface gloo and NCCL use.

A setting is an entry of `conf=` of init_orca_context, or a variable of the process that listens: `orca.hub.port` is
ORCA_HUB_PORT. The variable of a node wins, as nodes have addresses of their own.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from orca.errors import ArgumentError, OrcaError, near

PREFIX = "orca."
TLS = "orca.tls"
SETTINGS = (*(f"orca.{place}.{what}" for place in ("hub", "rendezvous") for what in ("bind", "host", "port")), TLS)
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")

_settings: dict[str, str] = {}  # of this program, or those that its driver sent
_chosen: dict[str, str] = {}  # the interfaces that were set here, by variable


@dataclass(frozen=True)
class Endpoint:
    """The place where a process listens for the others of its run.

    Attributes:
        bind: The address to listen on.
        host: The address at which others reach it.
        ports: The ports to try, the first that is free; port 0 lets the system pick.
    """

    bind: str
    host: str
    ports: range = range(1)


def adopt(settings: Mapping[str, str]) -> None:
    """Use these settings in this process from now on.

    Raises:
        ArgumentError: There is no such setting, or it has another value.
    """
    for name, value in settings.items():
        if name not in SETTINGS:
            raise ArgumentError(
                f"{name!r} is no setting of Orca; there are {', '.join(SETTINGS)}.{near(name, SETTINGS)}",
                code="unknown-setting",
            )
        if name.endswith(".port"):
            _ports(name, value)
        if name == TLS and value not in ("true", "false"):
            raise ArgumentError(f"{TLS} must be 'true' or 'false'; got {value!r}.", code="wrong-setting")
    _settings.clear()
    _settings.update(settings)


def settings() -> dict[str, str]:
    """Return the settings of this process, for the ranks of a run."""
    return {name: value for name in SETTINGS if (value := _setting(name))}


def endpoint(place: str, host: str) -> Endpoint:
    """Return where the "hub" or the "rendezvous" listens: as its settings say, else on the one interface of `host`."""
    bind, advertised, ports = (_setting(f"{PREFIX}{place}.{what}") for what in ("bind", "host", "port"))
    own = host.strip("[]")
    return Endpoint(bind.strip("[]") or own, advertised.strip("[]") or own, _ports(f"orca.{place}.port", ports or "0"))


def wants_tls() -> bool:
    """Return whether the user asks for encrypted connections between ranks."""
    return _setting(TLS) == "true"


def resolved(host: str) -> str:
    """Return the IP address of a host, which may be an IPv6 address in brackets; one of IPv4 where it has both."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OrcaError(
            f"the address of {host!r} is not known on {socket.gethostname()}: {error}.", code="unknown-host"
        ) from error
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])


def choose_interface(host: str) -> None:
    """Let gloo and NCCL use the interface that has this address, unless the user has chosen: they would guess."""
    for name in _INTERFACES:
        if os.environ.get(name, "") in ("", _chosen.get(name)):
            os.environ[name] = _chosen[name] = interface_of(host)


def interface_of(host: str) -> str:
    """Return the name of the network interface that has this address."""
    address = ipaddress.ip_address(host)
    for name, addresses in psutil.net_if_addrs().items():
        for own in addresses:
            if own.family in (socket.AF_INET, socket.AF_INET6):
                other = ipaddress.ip_address(own.address.partition("%")[0])
                if other == address or (address.is_loopback and other.is_loopback):
                    return name
    raise OrcaError(
        f"no network interface of {socket.gethostname()} has the address {host}. Check the cluster's DNS, or name the "
        "interface there with GLOO_SOCKET_IFNAME.",
        code="no-network-interface",
    )


def _setting(name: str) -> str:
    return os.environ.get(name.upper().replace(".", "_")) or _settings.get(name, "")


def _ports(name: str, text: str) -> range:
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not 0 <= first <= last < 1 << 16:
        raise ArgumentError(
            f"{name} must be a port or a range of ports, as 7100 or 7100-7110; got {text!r}.", code="wrong-port"
        )
    return range(first, last + 1)
