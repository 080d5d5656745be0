"""Yarn: Spark on a Hadoop cluster, its driver here or in the application master.

Owns the request to YARN, the shipment (the Python environment, Spark's jars, the program's own modules), and waiting.

The Python clients of YARN (skein, yarn-api-client) are no longer maintained; Hadoop's own client, in Spark's JVM,
knows high availability and Kerberos.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING, Any

from orca.cluster import environment, proof
from orca.cluster.hadoop import Application, Hadoop, configuration_folder, name_nodes, resource_managers, settings_of
from orca.cluster.news import knock, say, wait_until
from orca.cluster.site import site_settings
from orca.cluster.spark import (
    PATIENCE,
    Kind,
    Request,
    SessionOptions,
    comma_list,
    executor_settings,
    executors,
    is_dynamic,
    set_environment,
    spark_home,
)
from orca.core.units import positive, size_of
from orca.errors import ArgumentError, OrcaError
from orca.monitor.background import beside
from orca.monitor.waiting import Pace
from orca.storage import hdfs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
STAGING = "spark.yarn.stagingDir"

ARCHIVES = "spark.yarn.dist.archives"
UNPACKED = "environment"  # the link to the unpacked environment in the folder of a container
INSIDE = "ORCA_ON_YARN"  # set in the application master that runs a program's driver
SUBMITTED = "ORCA_SUBMITTED"  # set for a program whose driver `orca submit` runs here: the tag, and a start_timeout
LONGEST = 1800.0  # seconds for containers that YARN has given to fetch the environment and start
# Python, with torch in it, runs beside the executor's heap. Spark's own allowance of a tenth is for the JVM alone.
BESIDE_HEAP_MB = 1024


class YarnClient(Kind):
    """YARN with the driver in this process."""

    ARCHIVES = ARCHIVES

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Return the settings that need no JVM, after a look whether the cluster is there at all."""
        return {
            "spark.driver.host": reach(request.options, life),
            **needs(request),
            "spark.submit.deployMode": "client",
        }

    def more_settings(self, request: Request, gateway: Any, life: ExitStack) -> dict[str, str]:
        """Bring environment and jars to the cluster and return the settings that name them."""
        _, settings, python = shipped(gateway, request.options, life)
        set_environment({"PYSPARK_PYTHON": python}, life)
        return settings

    @contextmanager
    def starting(self, request: Request, settings: Mapping[str, str], gateway: Any) -> Iterator[None]:
        """Watch the application while it is started: Spark would wait for a container without a word."""
        hadoop = Hadoop(gateway)
        reasons: list[str] = []
        try:
            with _watched(hadoop, settings["spark.yarn.tags"], request.options.start_timeout, reasons):
                yield
        except Exception as error:  # the watch is over: where it ended the application, it has said why
            if reasons:
                raise OrcaError(reasons[0], code="spark-not-started") from None
            raise OrcaError(f"Spark did not start on YARN: {reason(error)}", code="spark-not-started") from error

    def check(self, session: SparkSession, request: Request) -> None:
        """Wait for the executors, and let each prove that it runs this program's environment."""
        hadoop = Hadoop(session.sparkContext._gateway)
        try:
            wait_for_executors(session, hadoop, request)
        finally:
            hadoop.close()
        if INSIDE not in os.environ:  # there, modules beside the program were sent with it
            for path in environment.own_modules():
                session.sparkContext.addPyFile(str(path))
        proof.prove(session)


class YarnCluster(Kind):
    """YARN with the driver in the application master: this program submits itself, and runs again there."""

    brings = False
    check = YarnClient.check

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Submit this program and end with its status; inside the application master, take YARN's containers."""
        if INSIDE in os.environ:
            return {}
        from orca.cluster.submit import submit_this_program

        raise SystemExit(submit_this_program(request))


class YarnSubmitted(Kind):
    """YARN as `orca submit --cluster_mode yarn-client` chose it for this program, with the settings made then."""

    brings = False

    @contextmanager
    def starting(self, request: Request, settings: Mapping[str, str], gateway: Any) -> Iterator[None]:
        """Watch the application by the tag that the command gave it."""
        tag, _, limit = os.environ[SUBMITTED].partition(" ")
        if limit and request.options.start_timeout is None:
            request = replace(request, options=replace(request.options, start_timeout=float(limit)))
        with YarnClient().starting(request, {"spark.yarn.tags": tag}, gateway):
            yield


# The request.


def reach(options: SessionOptions, life: ExitStack) -> str:
    """Set HADOOP_CONF_DIR, see that YARN and HDFS answer, and return this machine's address towards them."""
    folder = configuration_folder(options.hadoop_conf)
    set_environment({"HADOOP_CONF_DIR": str(folder), "YARN_CONF_DIR": str(folder)}, life)
    settings = settings_of(folder)
    managers = resource_managers(settings)
    if not managers:
        raise ArgumentError(
            f"{folder}/yarn-site.xml names no ResourceManager: set yarn.resourcemanager.address or "
            "yarn.resourcemanager.hostname in it, or copy the file from the cluster.",
            code="no-resource-manager",
        )
    ways = []
    for what, addresses in {"ResourceManager of YARN": managers, "NameNode of HDFS": name_nodes(settings)}.items():
        here, refusals = knock(addresses)  # Hadoop's own client would try for a quarter of an hour.
        if refusals and not here:
            raise OrcaError(
                f"no {what} answers at {' or '.join(refusals)}. {folder} says that it is there: start it, or take the "
                "settings of another cluster by hadoop_conf=.",
                code="yarn-unreachable",
            )
        ways.append(here)
    return ways[0]


def needs(request: Request) -> dict[str, str]:
    """Return the settings by which the application asks YARN for resources."""
    positive("cores", request.cores, " on YARN")
    options = request.options
    beside = size_of(request.memory, "memory") // 10 + request.for_ray
    settings = {
        "spark.master": "yarn",
        "spark.yarn.tags": f"orca-{uuid.uuid4().hex[:12]}",
        **executor_settings(request),
        "spark.executor.memoryOverhead": f"{beside // (1 << 20) + BESIDE_HEAP_MB}m",
        # `check` waits for the executors, and says why.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
        # One secret for each application, which YARN hands to its containers.
        "spark.authenticate": "true",
    }
    if options.driver_cores:
        settings["spark.driver.cores"] = str(options.driver_cores)
    if options.queue:
        settings["spark.yarn.queue"] = options.queue
    for name, value in {**hdfs.environment(), **(options.env or {})}.items():
        settings[f"spark.executorEnv.{name}"] = settings[f"spark.yarn.appMasterEnv.{name}"] = str(value)
    return settings


def _check_queue(hadoop: Hadoop, options: SessionOptions) -> None:
    """Raise where there is no such queue: YARN would say so only in its own log."""
    queue = options.queue or str(options.conf.get("spark.yarn.queue", ""))
    if queue:
        queues = hadoop.queues()
        if queue.rpartition(".")[2] not in [name.rpartition(".")[2] for name in queues]:
            raise ArgumentError(
                f"YARN has no queue {queue!r}; it has {', '.join(queues)}. Pass one of them as queue=.",
                code="unknown-queue",
            )


# The shipment.


def shipped(gateway: Any, options: SessionOptions, life: ExitStack) -> tuple[Hadoop, dict[str, str], str]:
    """Bring environment and jars to the cluster.

    Returns:
        The cluster, the settings that name the shipment, and the workers' interpreter.
    """
    hadoop = Hadoop(gateway)
    life.callback(hadoop.close)
    _check_queue(hadoop, options)
    base = str(options.conf.get(STAGING) or site_settings(spark_home()).get(STAGING, "")) or None
    archives = comma_list(options.additional_archive)
    python = options.python_location or os.environ.get("PYSPARK_PYTHON") or sys.executable
    address = ""
    if options.penv_archive:
        address = _archive(hadoop, options.penv_archive, base)
    elif options.ship_environment and not options.python_location:
        _refuse_other_conda(options.conda_name)
        address = _archive(hadoop, str(environment.pack()), base)
    if address:
        python = f"{UNPACKED}/{environment.PYTHON}"
        archives.insert(0, f"{address}#{UNPACKED}")
    settings = {ARCHIVES: ",".join(archives)} if archives else {}
    return hadoop, {**settings, **_jars(hadoop, options, base)}, python


def _refuse_other_conda(name: str | None) -> None:
    """Raise where another environment is named than the one that goes along: the one this program runs in."""
    here = os.environ.get("CONDA_DEFAULT_ENV")
    if name and name != here:
        raise ArgumentError(
            f"conda_name={name!r} is not the environment that this program runs in ({here or sys.prefix}), which goes "
            f"to the cluster by itself. Activate it (conda activate {name}) and leave conda_name out, or pass "
            "penv_archive= with a packed one.",
            code="other-conda-environment",
        )


def _archive(hadoop: Hadoop, name: str, base: str | None) -> str:
    """Return the address of an archive: where it is on the cluster, or where it is brought to."""
    path, _, _ = name.partition("#")
    if "://" in path and not path.startswith("file:"):
        return path
    file = Path(path.removeprefix("file://")).expanduser()
    if not file.is_file():
        raise ArgumentError(f"penv_archive is {name}, and there is no such file.", code="missing-archive")
    digest = environment.digest_of(file)[:20]
    return hadoop.share(file, f"environment-{digest}{''.join(file.suffixes[-2:])}", base)


def _jars(hadoop: Hadoop, options: SessionOptions, base: str | None) -> dict[str, str]:
    if options.spark_yarn_archive:
        return {"spark.yarn.archive": options.spark_yarn_archive}
    folder = Path(spark_home(), "jars")
    if not options.ship_environment and not options.python_location:
        return {"spark.yarn.jars": f"local:{folder}/*"}  # the nodes have the same files at the same paths
    jars = sorted(folder.glob("*.jar"))
    digest = hashlib.sha256("".join(f"{jar.name} {jar.stat().st_size}\n" for jar in jars).encode()).hexdigest()[:20]
    file = environment.cache_folder() / f"spark-{digest}.zip"

    def written(out: IO[bytes]) -> None:
        log.info("collecting the %d jars of Spark in %s", len(jars), file)
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as collection:
            for jar in jars:
                collection.write(jar, jar.name)

    environment.keep(file, written)
    return {"spark.yarn.archive": hadoop.share(file, f"spark-{digest}.zip", base)}


# Waiting.


@contextmanager
def _watched(hadoop: Hadoop, tag: str, seconds: float | None, reasons: list[str]) -> Iterator[None]:
    """Watch over an application until it has its first container.

    Args:
        hadoop: The cluster; it is closed at the end.
        tag: The tag by which the application is found.
        seconds: How long YARN may take, after which the application is ended; None waits on.
        reasons: Gets the reason where the application ends.
    """

    def watch(over: Event) -> None:
        wait = Wait(hadoop, seconds)
        while not reasons and not over.wait(0.5):
            try:
                app = hadoop.tagged(tag)
                if app is None:
                    wait = Wait(hadoop, seconds)  # it is being handed in: the environment is on its way
                elif app.ended:
                    reasons.append(ended(app.id, app.diagnostics))
                elif app.state == "RUNNING" or hadoop.has_container(app.id):
                    return
                elif why := wait.go_on(app):
                    reasons.append(why)
            except Exception as error:  # the ResourceManager may be down for a moment
                log.debug("asking YARN: %s", error)

    with closing(hadoop), beside(watch, "orca-yarn"):
        yield


class Wait:
    """The time that an application waits for its first container.

    Args:
        hadoop: The cluster.
        seconds: How long it may; None for no limit.
    """

    def __init__(self, hadoop: Hadoop, seconds: float | None) -> None:
        self.hadoop, self.seconds, self._pace = hadoop, seconds, Pace()

    def go_on(self, app: Application) -> str:
        """Say now and then why it waits; end the application where the time is over, and return the reason."""
        seconds = self._pace.waited
        over = self.seconds is not None and seconds > self.seconds
        if not over and not self._pace.is_due():
            return ""
        words = (
            f"YARN gave no container to {app.id} within {seconds:.0f} s. It says: {app.diagnostics or 'nothing'}. "
            f"The nodes: {self.hadoop.free()}."
        )
        ask = "Ask for less with memory= and driver_memory=, or for another queue with queue="
        if over:
            self.hadoop.kill(app.id)
            return f"{words} The application was ended. {ask}, or wait longer with start_timeout=."
        say(f"{words} Waiting on; start_timeout= sets a limit. {ask}.")
        return ""


def wait_for_executors(session: SparkSession, hadoop: Hadoop, request: Request) -> None:
    """Return when the executors are there; raise when none comes, and warn when some do not."""
    if is_dynamic(session):
        return
    context = session.sparkContext
    number = str(context.applicationId)
    count = int(session.conf.get("spark.executor.instances", None) or request.num_nodes)
    limit = request.options.start_timeout
    there, last, pace = 0, 0.0, Pace()  # `last`: when a container for an executor was there, in seconds from now

    def is_over() -> bool:
        nonlocal there, last
        there, seconds = executors(session), pace.waited
        if there >= count:
            return True
        app = hadoop.application(number)
        if app.ended:
            raise OrcaError(ended(number, app.diagnostics), code="application-failed")
        containers = app.containers - 1  # one is the application master's
        if containers > there:
            last = seconds
        if pace.is_due():
            say(
                f"{number} has {there} of {count} executors and {max(0, containers)} containers for them after "
                f"{seconds:.0f} s. The nodes: {hadoop.free()}. Waiting on."
            )
        if there:  # With some of them a run can begin.
            return seconds > LONGEST or seconds - last > max(PATIENCE, limit or 0.0)
        return limit is not None and seconds - last > limit

    wait_until(is_over, None)
    if there == 0:
        overhead = str(session.conf.get("spark.executor.memoryOverhead", ""))
        raise _no_executor(number, request, overhead, hadoop.free())
    if there < count:
        log.warning("%s has %d of %d executors. The nodes: %s.", number, there, count, hadoop.free())


def _no_executor(number: str, request: Request, overhead: str, nodes: str) -> OrcaError:
    return OrcaError(
        f"YARN gave {number} no executor with {request.cores} cores and {request.memory} of memory (and {overhead} "
        f"beside the heap) within {request.options.start_timeout:.0f} s. The nodes: {nodes}. Ask for less with cores= "
        "and memory=, or for another queue with queue=.",
        code="no-executor",
    )


def ended(number: str, diagnostics: str) -> str:
    """Return the words for an application that is over before it began."""
    return f"{number} ended on YARN: {diagnostics or 'it says nothing'}. See `yarn logs -applicationId {number}`."


def reason(error: Exception) -> str:
    """Return the first line of an error of the JVM that says something."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    exceptions = [line for line in lines if "Exception: " in line]
    return (exceptions or lines or [type(error).__name__])[0].strip()
