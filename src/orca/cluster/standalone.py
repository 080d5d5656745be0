"""Standalone: Spark's own cluster, at an address or of our own on this machine. Owns its daemons and their secret."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orca.cluster import guard
from orca.cluster.java import ensure_java
from orca.cluster.news import knock, wait_until
from orca.cluster.proof import prove
from orca.cluster.spark import (
    LOOPBACK,
    PATIENCE,
    Kind,
    Request,
    executor_settings,
    executors,
    is_dynamic,
    log4j,
    on_this_machine,
    private_folder,
    spark_home,
)
from orca.core.units import positive
from orca.errors import ArgumentError, OrcaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Standalone(Kind):
    """Spark's own cluster: the one at `master`, or a master and workers of ours on this machine."""

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Return the settings of one executor per node; start the daemons where no master is given."""
        cores = positive("cores", request.cores, " for cluster_mode='standalone'")
        master = request.options.master
        where = _reach(master, request, life) if master else _own_standalone(request, life)
        return {
            **executor_settings(request),
            "spark.cores.max": str(request.num_nodes * cores),
            # The session is there when its executors are, or PATIENCE has passed.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:.0f}s",
            **where,
        }

    def check(self, session: SparkSession, request: Request) -> None:
        """Raise where the cluster gave no executor at all: the first job would wait forever."""
        if executors(session) == 0 and not is_dynamic(session):
            raise OrcaError(
                f"{session.sparkContext.master} gave no executor with {request.cores} cores and {request.memory} of "
                f"memory within {PATIENCE:.0f} s. Its workers are too small, taken or not there: look at the master's "
                "page, or ask for less with cores= and memory=.",
                code="no-executor",
            )
        if (request.options.master or "").startswith("spark://"):
            prove(session)


def _reach(master: str, request: Request, life: ExitStack) -> dict[str, str]:
    """Return the settings for a given master after knocking at its door."""
    if master.startswith("local-cluster["):
        return {"spark.master": master, **on_this_machine(request, life)}
    addresses = re.findall(r"([^,/:\[\]]+|\[[^\]]+\]):(\d+)", master.removeprefix("spark://"))
    if not master.startswith("spark://") or not addresses:
        raise ArgumentError(f"master must look like 'spark://host:7077'; got {master!r}.", code="bad-spark-master")
    here, _ = knock(":".join(address) for address in addresses)
    if not here:
        raise ArgumentError(
            f"no Spark master answers at {master}. Start it, or leave master out and one is started here.",
            code="spark-master-unreachable",
        )
    return {"spark.master": master, "spark.driver.host": here}


def _own_standalone(request: Request, life: ExitStack) -> dict[str, str]:
    """Start a master and the workers on the loopback interface and return the settings that reach them."""
    ensure_java()
    here = on_this_machine(request, life)
    folder = private_folder(life)
    secret = secrets.token_hex(32)
    launch = _Launch(folder, os.path.join(spark_home(), "bin", "spark-class"), secret, time.monotonic() + PATIENCE)
    master = launch.start("master", "org.apache.spark.deploy.master.Master", [], life)
    url = launch.wait(master, r"Starting Spark master at (spark://\S+)")
    size = ["--cores", str(request.cores), "--memory", request.memory]
    workers = [
        launch.start(
            f"worker-{i}",
            "org.apache.spark.deploy.worker.Worker",
            [*size, "--work-dir", os.path.join(folder, f"work-{i}"), url],
            life,
        )
        for i in range(request.num_nodes)
    ]
    for worker in workers:
        launch.wait(worker, r"(Successfully registered with master)")
    return {
        "spark.master": url,
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        # They are sure to come, and all start at once on the cores of one machine.
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{3 * PATIENCE:.0f}s",
        **here,
    }


@dataclass(frozen=True)
class _Daemon:
    """A started daemon: its name, its process and the file it logs to."""

    name: str
    process: subprocess.Popen[bytes]
    log: str


@dataclass(frozen=True)
class _Launch:
    """The common part of Spark's daemons: their folder, script and secret, and the time by which all must be up."""

    folder: str
    script: str
    secret: str
    deadline: float

    def start(self, name: str, main: str, options: list[str], life: ExitStack) -> _Daemon:
        """Start a daemon on a free port of the loopback interface; it ends with `life`, or with this process."""
        config = os.path.join(self.folder, "log4j2.properties")
        with open(config, "w") as out:
            out.write(log4j("info"))  # We wait for lines of this level.
        java_options = [
            os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
            f"-Dlog4j2.configurationFile={config}",
            "-Dspark.authenticate=true",
            "-Dspark.master.rest.enabled=false",  # It would take jobs from anybody on this machine, without the secret.
            "-Dspark.ui.killEnabled=false",
            "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # They idle all their life: start fast, stay small.
        ]
        env = {
            "SPARK_DAEMON_MEMORY": "512m",
            **os.environ,
            "SPARK_LOCAL_IP": LOOPBACK,
            # Workers hand it on to executors the same way. A command line could be read by other users.
            "_SPARK_AUTH_SECRET": self.secret,
            "SPARK_DAEMON_JAVA_OPTS": " ".join(java_options).strip(),
        }
        path = os.path.join(self.folder, f"{name}.log")
        command = [self.script, main, "--host", LOOPBACK, "--port", "0", "--webui-port", "0", *options]
        process = guard.start(command, env, path, self.folder)
        life.callback(guard.end, process)
        return _Daemon(name, process, path)

    def wait(self, daemon: _Daemon, pattern: str) -> str:
        """Return the match of a pattern in the daemon's log; raise with the log's end where there is none in time."""

        def look() -> tuple[bool, re.Match[str] | None] | None:
            is_dead = daemon.process.poll() is not None
            match = re.search(pattern, Path(daemon.log).read_text(errors="replace"))
            return (is_dead, match) if is_dead or match else None

        is_dead, match = wait_until(look, self.deadline - time.monotonic(), every=0.05) or (False, None)
        if match:
            return match[1]
        state = f"ended with status {daemon.process.returncode}" if is_dead else f"not up in {PATIENCE:.0f} s"
        tail = "\n".join(Path(daemon.log).read_text(errors="replace").splitlines()[-20:])
        raise OrcaError(
            f"Spark's {daemon.name} on {LOOPBACK} {state}. The end of its log:\n{tail}", code="spark-daemon-failed"
        )
