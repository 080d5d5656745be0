"""HDFS: where its NameNodes answer over HTTP, and as whom to ask. Owns what of Hadoop's settings is read and sent.

Nothing here talks to anyone: core/webhdfs.py does. Workers need no settings of Hadoop's: the driver's addresses travel
to them in one environment variable, which holds names and addresses alone, never a token or a password.
"""

from __future__ import annotations

import base64
import functools
import getpass
import json
import logging
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orca.errors import ArgumentError, MissingDependency

VARIABLE = "ORCA_HDFS"
SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
_USER = "user"
_FROM_SETTINGS = "These addresses come from Hadoop's settings (dfs.namenode.http-address in hdfs-site.xml)."
_FROM_PATH = "This address stands in the path."
_GUESSED = (
    "These addresses are a guess, as no settings tell of this HDFS: let HADOOP_CONF_DIR name the folder of its "
    "core-site.xml and hdfs-site.xml, or write the path as webhdfs://host:port/..."
)
logger = logging.getLogger(__name__)
# Ports of a NameNode that nobody configured: those of Hadoop 3, then of Hadoop 2.
_HTTP_PORTS, _HTTPS_PORTS = (9870, 50070), (9871, 50470)
_TRAVELS = re.compile(
    r"fs\.defaultFS|fs\.default\.name|dfs\.nameservices|dfs\.ha\.namenodes\..+|dfs\.http\.policy"
    r"|dfs\.namenode\.(rpc|http|https)-address(\..+)?|hadoop\.security\.authentication"
)
_PATH = re.compile(r"(?P<scheme>hdfs|webhdfs|swebhdfs):(//(?P<service>[^/]*))?(?P<place>/.*)?", re.DOTALL)


@dataclass(frozen=True)
class Cluster:
    """Be one HDFS: how it is named in paths, and how it is reached.

    Attributes:
        root: How its paths begin: the scheme with a nameservice, or a NameNode's host and port.
        addresses: The web addresses of its NameNodes, one of which is the active one.
        user: The name to ask under; None with Kerberos, where the ticket says it.
        kerberos: Whether it wants to see a Kerberos ticket.
        origin: Where the addresses come from, as a sentence for messages.
    """

    root: str
    addresses: tuple[str, ...]
    user: str | None
    kerberos: bool
    origin: str


def owns(path: str) -> bool:
    """Say whether a path is one of HDFS."""
    return path.split(":", 1)[0] in SCHEMES and _PATH.fullmatch(path) is not None


def locate(path: str) -> tuple[Cluster, str]:
    """Return the HDFS that a path is on, and the path's place on it.

    Args:
        path: `hdfs://host:port/p`, `hdfs://nameservice/p`, `hdfs:///p` (fs.defaultFS), or `webhdfs://host:port/p`
            with the web address of a NameNode or a gateway (swebhdfs: over TLS).

    Raises:
        ArgumentError: No settings tell where that is.
    """
    parts = _PATH.fullmatch(path)
    if parts is None:
        raise ArgumentError(f"{path!r} is no path of HDFS. Write it like hdfs://namenode:8020/folder/file.")
    settings = properties()
    service = (parts["service"] or "").rsplit("@", 1)[-1]
    place = "/" + (parts["place"] or "").strip("/")
    kerberos = settings.get("hadoop.security.authentication", "simple").lower() == "kerberos"
    user = None if kerberos else user_name()
    if parts["scheme"] != "hdfs":
        if not service:
            raise ArgumentError(f"{path!r} names no host. Write it like {parts['scheme']}://namenode:9870/folder/file.")
        tls = parts["scheme"] == "swebhdfs"
        port = "" if _port_of(service) else f":{(_HTTPS_PORTS if tls else _HTTP_PORTS)[0]}"
        address = f"{'https' if tls else 'http'}://{service}{port}"
        return Cluster(f"{parts['scheme']}://{service}", (address,), user, kerberos, _FROM_PATH), place
    service = service or _default_service(settings, path)
    addresses = _addresses(settings, service)
    origin = _FROM_SETTINGS if addresses else _GUESSED
    addresses = addresses or _guesses(settings, service, path)
    return Cluster(f"hdfs://{service}", addresses, user, kerberos, origin), place


def filesystem(path: str) -> tuple[Any, str]:
    """Return the file system of a path of HDFS, and the path's place in it. Nobody is asked yet.

    Raises:
        ArgumentError: No settings tell where that is.
        MissingDependency: The package requests, or with Kerberos requests-kerberos, is not installed.
    """
    cluster, place = locate(path)
    try:
        from orca.core.webhdfs import HdfsFileSystem
    except ImportError as error:
        if error.name not in ("requests", "urllib3"):
            raise
        raise MissingDependency.of("requests", "hdfs", path) from error
    if cluster.kerberos:
        try:
            import requests_kerberos  # noqa: F401
        except ImportError as error:
            raise MissingDependency.of(
                "requests-kerberos", "kerberos", f"{path}: hadoop.security.authentication is kerberos, which"
            ) from error
    return HdfsFileSystem(cluster.root, cluster.addresses, cluster.user, cluster.kerberos, cluster.origin), place


def user_name() -> str:
    """Return the name under which HDFS is asked: HADOOP_USER_NAME, the driver's, or the login name."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or _sent().get(_USER) or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def properties() -> dict[str, str]:
    """Return the settings of Hadoop that say where HDFS is: those of HADOOP_CONF_DIR, before those the driver sent."""
    sent = {key: value for key, value in _sent().items() if key != _USER}
    return {**sent, **_read(_conf_files())}


def environment() -> dict[str, str]:
    """Return the environment variables by which other processes reach what this one reaches; {} without any HDFS."""
    try:
        known = properties()
    except ArgumentError as error:  # no reason to end a run that may need no HDFS
        logger.warning("%s", error)
        return {}
    # YARN hands variables on through a shell, which would take quotes away.
    told = json.dumps({_USER: user_name(), **known}, sort_keys=True).encode()
    return {VARIABLE: base64.urlsafe_b64encode(told).decode()} if known else {}


def adopt(sent: Mapping[str, str]) -> None:
    """Use the environment of the driver in this process, which may be the driver itself."""
    if dict(sent) != environment():
        os.environ.update(sent)


def _sent() -> dict[str, str]:
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        return {str(key): str(value) for key, value in dict(json.loads(base64.urlsafe_b64decode(text))).items()}
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"the environment variable {VARIABLE} holds no settings: {text[:80]!r}. Unset it: Orca sets it itself."
        ) from error


def _conf_files() -> tuple[tuple[str, int], ...]:
    """Return Hadoop's files of settings with the time of their last change."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    if not folder:
        return ()
    paths = (Path(folder) / name for name in ("core-site.xml", "hdfs-site.xml"))
    return tuple((str(path), path.stat().st_mtime_ns) for path in paths if path.is_file())


@functools.lru_cache(maxsize=8)
def _read(files: tuple[tuple[str, int], ...]) -> dict[str, str]:
    """Return the settings that may travel."""
    found = read_settings(Path(path) for path, _ in files)
    return {name: value for name, value in found.items() if _TRAVELS.fullmatch(name)}


def read_settings(files: Iterable[Path]) -> dict[str, str]:
    """Return the settings in files of Hadoop's, variables filled in; later files come first.

    Raises:
        ArgumentError: A file is not what Hadoop writes.
    """
    found: dict[str, str] = {}
    for path in files:
        try:
            entries = ElementTree.parse(path).getroot().iter("property")
        except (ElementTree.ParseError, OSError) as error:
            raise ArgumentError(f"Hadoop's settings {path} cannot be read: {error}. Check HADOOP_CONF_DIR.") from error
        for entry in entries:
            name, value = (entry.findtext(part) or "" for part in ("name", "value"))
            found[name.strip()] = value.strip()
    return {name: _filled(value, found) for name, value in found.items()}


def _filled(value: str, found: Mapping[str, str]) -> str:
    """Return a value with its ${names} of other settings and ${env.NAMES} put in."""
    for _ in range(20):  # as many levels as Hadoop follows
        variable = re.search(r"\$\{([^}$\s]+)\}", value)
        if variable is None:
            break
        name = variable[1]
        known = os.environ.get(name[4:].split(":-")[0]) if name.startswith("env.") else found.get(name)
        if known is None:
            break
        value = value[: variable.start()] + known + value[variable.end() :]
    return value


def _default_service(settings: Mapping[str, str], path: str) -> str:
    default = settings.get("fs.defaultFS") or settings.get("fs.default.name") or ""
    parts = urlsplit(default)
    if parts.scheme == "hdfs" and parts.netloc:
        return parts.netloc
    got = f"fs.defaultFS is {default!r}" if default else "no fs.defaultFS is known here"
    where = os.environ.get("HADOOP_CONF_DIR")
    raise ArgumentError(
        f"{path!r} names no NameNode, and {got} (HADOOP_CONF_DIR is {where!r}). Write the path with it, like "
        "hdfs://namenode:8020/folder/file, or let HADOOP_CONF_DIR name a folder whose core-site.xml sets it."
    )


def _addresses(settings: Mapping[str, str], service: str) -> tuple[str, ...]:
    """Return the web addresses that the settings have for a nameservice or a NameNode."""
    names = [name.strip() for name in settings.get("dfs.nameservices", "").split(",") if name.strip()]
    nodes: list[str] = []  # endings of the names of settings, one for each NameNode: "", ".ns", ".ns.nn1"
    for name in names:
        members = [node.strip() for node in settings.get(f"dfs.ha.namenodes.{name}", "").split(",") if node.strip()]
        endings = [f".{name}.{node}" for node in members] or [f".{name}"]
        if service.lower() == name.lower():
            return tuple(filter(None, (_address(settings, ending, "") for ending in endings)))
        nodes += endings
    default = urlsplit(settings.get("fs.defaultFS") or settings.get("fs.default.name") or "").netloc
    host, matches = _host_of(service), []
    for ending in [*nodes, ""]:
        rpc = settings.get(f"dfs.namenode.rpc-address{ending}") or (default if not ending else "")
        web = [settings.get(f"dfs.namenode.{kind}-address{ending}", "") for kind in ("http", "https")]
        if host in {_host_of(one) for one in (rpc, *web) if one} and (not rpc or _same_port(rpc, service)):
            matches.append(_address(settings, ending, host))
    return tuple(dict.fromkeys(filter(None, matches)))[:1]


def _address(settings: Mapping[str, str], ending: str, host: str) -> str | None:
    """Return the web address of one NameNode; None where the settings have none for it."""
    tls = settings.get("dfs.http.policy", "HTTP_ONLY").upper() == "HTTPS_ONLY"
    kind = "https" if tls else "http"
    given = settings.get(f"dfs.namenode.{kind}-address{ending}", "")
    rpc = _host_of(settings.get(f"dfs.namenode.rpc-address{ending}", ""))
    at = _host_of(given)
    if at in ("", "0.0.0.0", "::", "[::]"):  # it listens everywhere, or at the default port
        at = rpc if rpc not in ("", "0.0.0.0") else host
    if not at or not (given or rpc):
        return None
    return f"{kind}://{at}:{_port_of(given) or (_HTTPS_PORTS if tls else _HTTP_PORTS)[0]}"


def _guesses(settings: Mapping[str, str], service: str, path: str) -> tuple[str, ...]:
    """Return where a NameNode is usually found that no settings tell of."""
    if not _port_of(service) and service.lower() in settings.get("dfs.nameservices", "").lower().split(","):
        raise ArgumentError(
            f"{path!r}: the settings in HADOOP_CONF_DIR have no dfs.namenode.http-address for the nameservice "
            f"{service!r}. Add one for each of its NameNodes to hdfs-site.xml."
        )
    tls = settings.get("dfs.http.policy", "HTTP_ONLY").upper() == "HTTPS_ONLY"
    return tuple(
        f"{'https' if tls else 'http'}://{_host_of(service)}:{port}" for port in (_HTTPS_PORTS if tls else _HTTP_PORTS)
    )


def _host_of(address: str) -> str:
    """Return the host of host:port, an IPv6 address in its brackets."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d+)?", address.strip())
    return match[1].lower() if match else address.strip().lower()


def _port_of(address: str) -> int | None:
    match = re.fullmatch(r"(?:\[[^\]]*\]|[^:]*):(\d+)", address.strip())
    return int(match[1]) if match else None


def _same_port(rpc: str, service: str) -> bool:
    """Say whether two addresses may be one NameNode; 8020 is the port where none is written."""
    return (_port_of(rpc) or 8020) == (_port_of(service) or 8020)
