"""HDFS: where its NameNodes answer over HTTP, and as whom to ask. Owns which settings of Hadoop are read and sent.

Nothing here opens a connection: storage/webhdfs.py does. Workers need no settings of Hadoop: the driver's addresses
travel to them in one environment variable, which holds names and addresses alone, never a token or a password.
"""

from __future__ import annotations

import base64
import getpass
import json
import logging
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
_PORTS = {"http": (9870, 50070), "https": (9871, 50470)}
_TRAVELS = re.compile(
    r"fs\.defaultFS|fs\.default\.name|dfs\.nameservices|dfs\.ha\.namenodes\..+|dfs\.http\.policy"
    r"|dfs\.namenode\.(rpc|http|https)-address(\..+)?|hadoop\.security\.authentication"
)
_PATH = re.compile(r"(?P<scheme>hdfs|webhdfs|swebhdfs):(//(?P<service>[^/]*))?(?P<place>/.*)?", re.DOTALL)
_ADDRESS = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(:(?P<port>\d+))?")


@dataclass(frozen=True)
class HdfsCluster:
    """One HDFS: its name in paths, and how it is reached.

    Attributes:
        root: How its paths begin: the scheme with a nameservice, or a NameNode's host and port.
        addresses: The web addresses of its NameNodes, one of which is the active one.
        user: The name to ask under; None with Kerberos, where the ticket says it.
        kerberos: Whether it asks for a Kerberos ticket.
        origin: The source of the addresses, as a sentence for messages.
    """

    root: str
    addresses: tuple[str, ...]
    user: str | None
    kerberos: bool
    origin: str


def owns(path: str) -> bool:
    """Say whether a path is one of HDFS."""
    return _PATH.fullmatch(path) is not None


def locate(path: str) -> tuple[HdfsCluster, str]:
    """Return the HDFS that a path is on, and the path's place on it.

    Args:
        path: `hdfs://host:port/p`, `hdfs://nameservice/p`, `hdfs:///p` (fs.defaultFS), or `webhdfs://host:port/p`
            with the web address of a NameNode or a gateway (swebhdfs: over TLS).
    """
    parts = _PATH.fullmatch(path)
    if parts is None:
        raise ArgumentError(
            f"{path!r} is no path of HDFS. Write it like hdfs://namenode:8020/folder/file.", code="bad-hdfs-path"
        )
    settings = properties()
    scheme, service = parts["scheme"], (parts["service"] or "").rsplit("@", 1)[-1]
    kerberos = settings.get("hadoop.security.authentication", "simple").lower() == "kerberos"
    if scheme == "hdfs":
        service = service or _default_service(settings, path)
        addresses, origin = _addresses(settings, service), _FROM_SETTINGS
        if not addresses:
            addresses, origin = _guesses(settings, service, path), _GUESSED
    else:
        if not service:
            raise ArgumentError(
                f"{path!r} names no host. Write it like {scheme}://namenode:9870/folder/file.", code="bad-hdfs-path"
            )
        kind = "https" if scheme == "swebhdfs" else "http"
        port = "" if _split(service)[1] else f":{_PORTS[kind][0]}"
        addresses, origin = (f"{kind}://{service}{port}",), _FROM_PATH
    cluster = HdfsCluster(f"{scheme}://{service}", addresses, None if kerberos else user_name(), kerberos, origin)
    return cluster, "/" + (parts["place"] or "").strip("/")


def filesystem(path: str) -> tuple[Any, str]:
    """Return the file system of a path of HDFS, and the path's place in it. Nobody is asked yet."""
    cluster, place = locate(path)
    try:
        from orca.storage.webhdfs import HdfsFileSystem

        if cluster.kerberos:
            import requests_kerberos  # noqa: F401
    except ImportError as error:
        if error.name == "requests_kerberos":
            need = f"{path}: hadoop.security.authentication is kerberos, which"
            raise MissingDependency.of("requests-kerberos", "kerberos", need) from error
        if error.name in ("requests", "urllib3"):
            raise MissingDependency.of("requests", "hdfs", path) from error
        raise
    return HdfsFileSystem(cluster), place


def user_name() -> str:
    """Return the name under which HDFS is asked: HADOOP_USER_NAME, the driver's, or the login name."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or _sent().get(_USER) or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def properties() -> dict[str, str]:
    """Return the settings of Hadoop that say where HDFS is: those of HADOOP_CONF_DIR, before those the driver sent."""
    folder = os.environ.get("HADOOP_CONF_DIR")
    files = [Path(folder) / name for name in ("core-site.xml", "hdfs-site.xml")] if folder else []
    settings = {**_sent(), **read_settings(file for file in files if file.is_file())}
    return {name: value for name, value in settings.items() if _TRAVELS.fullmatch(name)}


def environment() -> dict[str, str]:
    """Return the environment variables by which other processes reach the same HDFS; {} without any."""
    try:
        settings = properties()
    except ArgumentError as error:  # no reason to end a run that may need no HDFS
        logger.warning("%s", error)
        return {}
    # YARN hands variables on through a shell, which would take quotes away.
    text = json.dumps({_USER: user_name(), **settings}, sort_keys=True).encode()
    return {VARIABLE: base64.urlsafe_b64encode(text).decode()} if settings else {}


def adopt(variables: Mapping[str, str]) -> None:
    """Use the environment of the driver in this process, which may be the driver itself."""
    if dict(variables) != environment():
        os.environ.update(variables)


@dataclass(frozen=True)
class Reaching:
    """A function that reaches on a worker the HDFS that the driver reaches."""

    function: Callable[..., Any]
    variables: Mapping[str, str] = field(default_factory=environment)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        adopt(self.variables)
        return self.function(*args)


def _sent() -> dict[str, str]:
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        return {str(key): str(value) for key, value in dict(json.loads(base64.urlsafe_b64decode(text))).items()}
    except (ValueError, TypeError) as error:
        raise ArgumentError(
            f"the environment variable {VARIABLE} holds no settings: {text[:80]!r}. Unset it: Orca sets it itself.",
            code="bad-hadoop-settings",
        ) from error


def read_settings(files: Iterable[Path]) -> dict[str, str]:
    """Return the settings in files of Hadoop's, variables filled in; later files come first."""
    settings: dict[str, str] = {}
    for path in files:
        try:
            entries = ElementTree.parse(path).getroot().iter("property")
        except (ElementTree.ParseError, OSError) as error:
            raise ArgumentError(
                f"Hadoop's settings {path} cannot be read: {error}. Check HADOOP_CONF_DIR.",
                code="bad-hadoop-configuration",
            ) from error
        for entry in entries:
            name, value = (entry.findtext(part) or "" for part in ("name", "value"))
            settings[name.strip()] = value.strip()
    return {name: _filled(value, settings) for name, value in settings.items()}


def _filled(value: str, settings: Mapping[str, str]) -> str:
    """Return a value with its ${names} of other settings and ${env.NAMES} put in."""
    for _ in range(20):  # as many levels as Hadoop follows
        variable = re.search(r"\$\{([^}$\s]+)\}", value)
        if variable is None:
            break
        name = variable[1]
        content = os.environ.get(name[4:].split(":-")[0]) if name.startswith("env.") else settings.get(name)
        if content is None:
            break
        value = value[: variable.start()] + content + value[variable.end() :]
    return value


def _default(settings: Mapping[str, str]) -> str:
    return settings.get("fs.defaultFS") or settings.get("fs.default.name") or ""


def _default_service(settings: Mapping[str, str], path: str) -> str:
    default = _default(settings)
    parts = urlsplit(default)
    if parts.scheme == "hdfs" and parts.netloc:
        return parts.netloc
    setting = f"fs.defaultFS is {default!r}" if default else "no fs.defaultFS is known here"
    folder = os.environ.get("HADOOP_CONF_DIR")
    raise ArgumentError(
        f"{path!r} names no NameNode, and {setting} (HADOOP_CONF_DIR is {folder!r}). Write the path with it, like "
        "hdfs://namenode:8020/folder/file, or let HADOOP_CONF_DIR name a folder whose core-site.xml sets it.",
        code="no-name-node",
    )


def _addresses(settings: Mapping[str, str], service: str) -> tuple[str, ...]:
    """Return the web addresses that the settings have for a nameservice or a NameNode."""
    endings: list[str] = []  # of the names of settings, one for each NameNode: ".ns.nn1", ".ns", ""
    for name in _listed(settings, "dfs.nameservices"):
        own = [f".{name}.{node}" for node in _listed(settings, f"dfs.ha.namenodes.{name}")] or [f".{name}"]
        if service.lower() == name.lower():
            return tuple(filter(None, (_address(settings, ending, "") for ending in own)))
        endings += own
    host, port = _split(service)
    for ending in [*endings, ""]:
        rpc = settings.get(f"dfs.namenode.rpc-address{ending}") or (
            "" if ending else urlsplit(_default(settings)).netloc
        )
        web = [settings.get(f"dfs.namenode.{kind}-address{ending}", "") for kind in _PORTS]
        same_port = not rpc or (_split(rpc)[1] or "8020") == (port or "8020")  # the port where none is written
        if same_port and host in {_split(address)[0] for address in (rpc, *web) if address}:
            address = _address(settings, ending, host)
            if address:
                return (address,)
    return ()


def _address(settings: Mapping[str, str], ending: str, default_host: str) -> str | None:
    """Return the web address of one NameNode; None where the settings have none for it."""
    kind = _kind(settings)
    host, port = _split(settings.get(f"dfs.namenode.{kind}-address{ending}", ""))
    rpc_host, _ = _split(settings.get(f"dfs.namenode.rpc-address{ending}", ""))
    if not host and not port and not rpc_host:
        return None
    if host in ("", "0.0.0.0", "::", "[::]"):  # it listens everywhere, or at the default port
        host = rpc_host if rpc_host not in ("", "0.0.0.0") else default_host
    return f"{kind}://{host}:{port or _PORTS[kind][0]}" if host else None


def _guesses(settings: Mapping[str, str], service: str, path: str) -> tuple[str, ...]:
    """Return the usual addresses of a NameNode that no settings tell of."""
    host, port = _split(service)
    if not port and host in map(str.lower, _listed(settings, "dfs.nameservices")):
        raise ArgumentError(
            f"{path!r}: the settings in HADOOP_CONF_DIR have no dfs.namenode.http-address for the nameservice "
            f"{service!r}. Add one for each of its NameNodes to hdfs-site.xml.",
            code="no-name-node",
        )
    kind = _kind(settings)
    return tuple(f"{kind}://{host}:{usual}" for usual in _PORTS[kind])


def _kind(settings: Mapping[str, str]) -> str:
    return "https" if settings.get("dfs.http.policy", "").upper() == "HTTPS_ONLY" else "http"


def _listed(settings: Mapping[str, str], name: str) -> list[str]:
    return [entry.strip() for entry in settings.get(name, "").split(",") if entry.strip()]


def _split(address: str) -> tuple[str, str | None]:
    """Return the host, an IPv6 address in its brackets, and the port of host:port."""
    match = _ADDRESS.fullmatch(address.strip())
    return (match["host"].lower(), match["port"]) if match else (address.strip().lower(), None)
