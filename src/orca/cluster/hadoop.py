"""Hadoop: the settings of a cluster, and its services as the JVM's own client reaches them.

Owns reading addresses, and the files in the cluster's file system that programs share.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orca.cluster.news import human, telling
from orca.cluster.spark import comma_list
from orca.errors import ArgumentError, OrcaError
from orca.storage.hdfs import read_settings

log = logging.getLogger(__name__)

FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
SHARED = ".orca"  # the folder in the user's home, or in spark.yarn.stagingDir, of files that programs share


def configuration_folder(folder_name: str | None) -> Path:
    """Return the folder of Hadoop's settings: this one, or HADOOP_CONF_DIR, or YARN_CONF_DIR."""
    path = folder_name or os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")
    if not path:
        raise ArgumentError(
            "YARN needs the settings of the cluster, and neither hadoop_conf nor HADOOP_CONF_DIR is given. Copy "
            "core-site.xml, hdfs-site.xml and yarn-site.xml of the cluster to a folder of this machine and pass "
            "hadoop_conf='that folder', or set HADOOP_CONF_DIR to it.",
            code="no-hadoop-configuration",
        )
    folder = Path(path).expanduser()
    if not (folder / "yarn-site.xml").is_file():
        variable = "HADOOP_CONF_DIR" if os.environ.get("HADOOP_CONF_DIR") else "YARN_CONF_DIR"
        name = "hadoop_conf" if folder_name else variable
        there = "has no yarn-site.xml" if folder.is_dir() else "is not a folder"
        raise ArgumentError(
            f"{name} is {path}, which {there}. It must be the folder with core-site.xml, hdfs-site.xml and "
            "yarn-site.xml of the cluster.",
            code="bad-hadoop-configuration",
        )
    return folder


def settings_of(folder: Path) -> dict[str, str]:
    """Return the settings in the files of a folder."""
    return read_settings(folder / name for name in FILES if (folder / name).is_file())


def resource_managers(settings: Mapping[str, str]) -> list[str]:
    """Return host:port of every ResourceManager that programs are given to."""
    return _of_manager(settings, "address", 8032)


def manager_pages(settings: Mapping[str, str]) -> list[str]:
    """Return host:port of the web pages of every ResourceManager."""
    return _of_manager(settings, "webapp.address", 8088)


def _of_manager(settings: Mapping[str, str], what: str, port: int) -> list[str]:
    names = comma_list(settings.get("yarn.resourcemanager.ha.rm-ids"))
    addresses = []
    for end in [f".{name}" for name in names] or [""]:
        host = settings.get(f"yarn.resourcemanager.hostname{end}", "")
        addresses.append(settings.get(f"yarn.resourcemanager.{what}{end}") or (f"{host}:{port}" if host else ""))
    return [address for address in addresses if address and not address.startswith("0.0.0.0")]


def name_nodes(settings: Mapping[str, str]) -> list[str]:
    """Return host:port of every NameNode of the default file system; none where that is not HDFS."""
    place = re.fullmatch(r"hdfs://([^/]+)/?.*", settings.get("fs.defaultFS", ""))
    if place is None:
        return []
    service = place[1]
    names = comma_list(settings.get(f"dfs.ha.namenodes.{service}"))
    if names:
        return list(filter(None, (settings.get(f"dfs.namenode.rpc-address.{service}.{name}") for name in names)))
    return [service if ":" in service else f"{service}:8020"]


@dataclass(frozen=True)
class Application:
    """The state of an application on YARN."""

    id: str
    state: str
    final: str
    diagnostics: str
    tracking: str
    containers: int = 0  # its master's too

    @property
    def ended(self) -> bool:
        """Say whether it is over."""
        return self.state in ("FINISHED", "FAILED", "KILLED")


class Hadoop:
    """A cluster's file system and YARN, through the Hadoop client in Spark's JVM: it knows every kind of login.

    Args:
        gateway: Spark's way into a JVM with its jars, started with HADOOP_CONF_DIR set.
    """

    def __init__(self, gateway: Any) -> None:
        self.gateway, self.jvm = gateway, gateway.jvm
        self._yarn: Any = None

    @cached_property
    def conf(self) -> Any:
        """Return Hadoop's configuration as the JVM reads it."""
        conf = self.jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
        for name in ("core-site.xml", "hdfs-site.xml"):
            conf.addResource(name)
        return conf

    # Files.

    def share(self, file: Path, name: str, base: str | None) -> str:
        """Put a file where every node can read it, unless it is there already, and return its address.

        Args:
            name: Its name there; it must tell the contents, as files are never replaced.
            base: A folder of the cluster's file system, perhaps of many users; None is the user's home.
        """
        hadoop = self.jvm.org.apache.hadoop.fs
        system, folder = self._shared_folder(base)
        place, size = hadoop.Path(folder, name), file.stat().st_size
        if system.exists(place) and system.getFileStatus(place).getLen() == size:
            log.info("%s is there already", place)
            return str(place.toString())
        draft = hadoop.Path(folder, f"{name}.draft-{os.getpid()}-{socket.gethostname()}")
        try:
            with telling(f"uploading {name}, {human(size)}, to {folder}"):
                system.copyFromLocalFile(False, True, hadoop.Path(file.resolve().as_uri()), draft)
            system.setPermission(draft, hadoop.permission.FsPermission("600"))
            if not system.rename(draft, place) and system.getFileStatus(place).getLen() != size:
                raise OrcaError(
                    f"{place} is not a whole copy of {file.name} and cannot be replaced. Remove it.",
                    code="damaged-upload",
                )
        finally:
            with contextlib.suppress(Exception):
                system.delete(draft, False)
        return str(place.toString())

    def _shared_folder(self, base: str | None) -> tuple[Any, Any]:
        """Return the file system and the folder of this user's shared files; raise where it is another's."""
        hadoop = self.jvm.org.apache.hadoop.fs
        home = hadoop.Path(base) if base else hadoop.FileSystem.get(self.conf).getHomeDirectory()
        system = home.getFileSystem(self.conf)
        user = str(self.jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName())
        folder = system.makeQualified(hadoop.Path(home, f"{SHARED}-{user}" if base else SHARED))
        system.mkdirs(folder)
        owner = str(system.getFileStatus(folder).getOwner())
        if owner not in (user, ""):  # "": a store without owners
            raise OrcaError(
                f"{folder} belongs to {owner} and not to {user}: what lies there would run in this user's name. "
                "Set another folder with conf={'spark.yarn.stagingDir': ...}.",
                code="foreign-staging-folder",
            )
        # YARN keeps such files in the cache of this user's programs on a node.
        system.setPermission(folder, hadoop.permission.FsPermission("700"))
        return system, folder

    # YARN.

    @property
    def yarn(self) -> Any:
        """Return the client of the ResourceManager."""
        if self._yarn is None:
            client = self.jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
            client.init(self.conf)
            client.start()
            self._yarn = client
        return self._yarn

    def queues(self) -> list[str]:
        """Return the names of the queues that programs may be given to."""
        queues = self.yarn.getAllQueues()
        leaves = [queue for queue in queues if not list(queue.getChildQueues() or [])]
        return sorted(str(queue.getQueueName()) for queue in leaves)

    def free(self) -> str:
        """Return a text about the resources of the nodes, and how much of them is taken."""
        kind = self.jvm.org.apache.hadoop.yarn.api.records.NodeState
        states = self.gateway.new_array(kind, 1)
        states[0] = kind.RUNNING
        nodes = []
        for node in self.yarn.getNodeReports(states):
            have, use = node.getCapability(), node.getUsed()
            nodes.append(
                f"{node.getNodeId().getHost()}: {use.getMemorySize()} of {have.getMemorySize()} MB and "
                f"{use.getVirtualCores()} of {have.getVirtualCores()} cores are taken"
            )
        return "; ".join(nodes) or "no node is running"

    def tagged(self, tag: str) -> Application | None:
        """Return the application that carries a tag; None while there is none."""
        request = self.jvm.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
        request.setApplicationTags(self.jvm.java.util.Collections.singleton(tag))
        reports = list(self.yarn.getApplications(request))
        return _application(reports[0]) if reports else None

    def application(self, number: str) -> Application:
        """Return how an application is doing."""
        return _application(self.yarn.getApplicationReport(self._id(number)))

    def has_container(self, number: str) -> bool:
        """Say whether the application master of an application has a container: it starts, or runs."""
        early_states = ("NEW", "SUBMITTED", "SCHEDULED")
        attempts = self.yarn.getApplicationAttempts(self._id(number))
        return any(str(each.getYarnApplicationAttemptState().toString()) not in early_states for each in attempts)

    def kill(self, number: str) -> None:
        """End an application."""
        self.yarn.killApplication(self._id(number))

    def close(self) -> None:
        """Close the client of the ResourceManager."""
        if self._yarn is not None:
            with contextlib.suppress(Exception):
                self._yarn.stop()
            self._yarn = None

    def _id(self, number: str) -> Any:
        return self.jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(number)


def _application(report: Any) -> Application:
    usage = report.getApplicationResourceUsageReport()
    return Application(
        str(report.getApplicationId().toString()),
        str(report.getYarnApplicationState().toString()),
        str(report.getFinalApplicationStatus().toString()),
        str(report.getDiagnostics() or "").strip(),
        str(report.getTrackingUrl() or ""),
        int(usage.getNumUsedContainers()) if usage is not None else 0,
    )
