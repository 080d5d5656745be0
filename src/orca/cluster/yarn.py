"""Yarn: Spark on a Hadoop cluster, its driver here or in the application master.

Owns what is asked of YARN, what goes along (the Python environment, Spark's jars, the program's own modules), and how
long it is waited for.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orca.cluster import archive, environment, proof
from orca.cluster.hadoop import (
    Application,
    Hadoop,
    configuration_folder,
    knock,
    name_nodes,
    resource_managers,
    settings_of,
)
from orca.cluster.news import say
from orca.cluster.ray import size_of
from orca.cluster.spark import (
    OUTLIVES_PAUSES,
    PATIENCE,
    Kind,
    Options,
    Request,
    executors,
    is_dynamic,
    listed,
    set_environment,
    spark_home,
)
from orca.core import hdfs
from orca.errors import ArgumentError, OrcaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ARCHIVES = "spark.yarn.dist.archives"
UNPACKED = "environment"  # the link to the unpacked environment in the folder of a container
INSIDE = "ORCA_ON_YARN"  # set in the application master that runs a program's driver
SUBMITTED = "ORCA_SUBMITTED"  # set for a program whose driver `orca submit` runs here: the tag, and a start_timeout
LONGEST = 1800.0  # seconds for containers that YARN has given to fetch the environment and start
FIRST_WORD = 30.0  # seconds until it is said what is waited for; the next words come after twice the time
# Python, with torch in it, runs beside the executor's heap. Spark's own allowance of a tenth is for the JVM alone.
BESIDE_HEAP_MB = 1024


class YarnClient(Kind):
    """Be YARN with the driver in this process."""

    ARCHIVES = ARCHIVES

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Return the settings that need no JVM, after a look whether the cluster is there at all."""
        here = reach(request.options, life)
        tag = f"orca-{uuid.uuid4().hex[:12]}"
        return {
            **asked(request),
            "spark.submit.deployMode": "client",
            "spark.driver.host": here,
            "spark.driver.memory": request.options.driver_memory or "2g",
            "spark.yarn.tags": tag,
        }

    def more_settings(self, request: Request, gateway: Any, life: ExitStack) -> dict[str, str]:
        """Bring to the cluster what goes along and return the settings that name it."""
        hadoop = Hadoop(gateway)
        life.callback(hadoop.close)
        check_queue(hadoop, request.options)
        told, python = shipped(hadoop, request.options)
        set_environment({"PYSPARK_PYTHON": python}, life)
        return told

    @contextmanager
    def starting(self, request: Request, settings: Mapping[str, str], gateway: Any) -> Iterator[None]:
        """Watch the application while it is started: Spark would wait for a container without a word."""
        with Patience(Hadoop(gateway), settings["spark.yarn.tags"], request.options.start_timeout) as patience:
            try:
                yield
            except Exception as error:
                if patience.told:
                    raise OrcaError(patience.told) from None
                raise OrcaError(f"Spark did not start on YARN: {reason(error)}") from error

    def check(self, session: SparkSession, request: Request) -> None:
        """Wait for the executors, and let each prove that it runs what this program runs."""
        hadoop = Hadoop(session.sparkContext._gateway)
        try:
            wait_for_executors(session, hadoop, request)
        finally:
            hadoop.close()
        send_modules(session)
        proof.prove(session)


class YarnCluster(YarnClient):
    """Be YARN with the driver in the application master: this program submits itself, and runs again there."""

    brings = False

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Submit this program and end with its status; inside the application master, take what YARN gave."""
        if INSIDE in os.environ:
            return {}
        from orca.cluster.submit import submit_this_program

        raise SystemExit(submit_this_program(request))

    def more_settings(self, request: Request, gateway: Any, life: ExitStack) -> dict[str, str]:
        """Return nothing: all was said when the program was submitted."""
        return {}

    @contextmanager
    def starting(self, request: Request, settings: Mapping[str, str], gateway: Any) -> Iterator[None]:
        """Add nothing: the application runs already."""
        yield


class YarnSubmitted(YarnClient):
    """YARN as `orca submit --cluster_mode yarn-client` chose it for this program."""

    brings = False

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Return nothing: all was said when the program was submitted."""
        return {}

    def more_settings(self, request: Request, gateway: Any, life: ExitStack) -> dict[str, str]:
        """Return nothing: what goes along is on its way."""
        return {}

    @contextmanager
    def starting(self, request: Request, settings: Mapping[str, str], gateway: Any) -> Iterator[None]:
        """Watch the application by the tag that the command gave it."""
        tag, _, limit = os.environ[SUBMITTED].partition(" ")
        if limit and request.options.start_timeout is None:
            request = replace(request, options=replace(request.options, start_timeout=float(limit)))
        with super().starting(request, {"spark.yarn.tags": tag}, gateway):
            yield

    def check(self, session: SparkSession, request: Request) -> None:
        """Add nothing: the launcher of this program chose what it runs on."""


# What is asked for.


def reach(options: Options, life: ExitStack) -> str:
    """Set HADOOP_CONF_DIR, see that YARN and HDFS answer, and return this machine's address towards them."""
    folder = configuration_folder(options.hadoop_conf)
    set_environment({"HADOOP_CONF_DIR": str(folder), "YARN_CONF_DIR": str(folder)}, life)
    told = settings_of(folder)
    managers = resource_managers(told)
    if not managers:
        raise ArgumentError(
            f"{folder}/yarn-site.xml names no ResourceManager: set yarn.resourcemanager.address or "
            "yarn.resourcemanager.hostname in it, or copy the file from the cluster."
        )
    asking = f"{folder} says that it is there: start it, or take the settings of another cluster by hadoop_conf=."
    here = knock("ResourceManager of YARN", managers, asking)
    if name_nodes(told):
        knock("NameNode of HDFS", name_nodes(told), asking)
    return here


def asked(request: Request) -> dict[str, str]:
    """Return the settings that say what the application asks of YARN."""
    if not isinstance(request.cores, int):
        raise ArgumentError(f"cores must be a positive int on YARN; got {request.cores!r}.")
    options = request.options
    beside = size_of(request.memory, "memory") // 10 + request.for_ray
    told = {
        "spark.master": "yarn",
        "spark.executor.instances": str(request.num_nodes),
        "spark.executor.cores": str(request.cores),
        "spark.executor.memory": request.memory,
        "spark.executor.memoryOverhead": f"{beside // (1 << 20) + BESIDE_HEAP_MB}m",
        # `check` waits for the executors, and tells what they are waited for.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
        **OUTLIVES_PAUSES,
        # Ranks run in barrier stages, for which Spark wants a fixed number of executors.
        "spark.dynamicAllocation.enabled": "false",
        # One secret for each application, which YARN hands to its containers.
        "spark.authenticate": "true",
    }
    if options.driver_cores:
        told["spark.driver.cores"] = str(options.driver_cores)
    if options.queue:
        told["spark.yarn.queue"] = options.queue
    for name, value in environment_of_workers(options).items():
        told[f"spark.executorEnv.{name}"] = value
        told[f"spark.yarn.appMasterEnv.{name}"] = value
    return told


def environment_of_workers(options: Options) -> dict[str, str]:
    """Return the environment variables that containers get."""
    return {**hdfs.environment(), **{str(name): str(value) for name, value in (options.env or {}).items()}}


def check_queue(hadoop: Hadoop, options: Options) -> None:
    """Raise where there is no such queue: YARN would say so only in its own log."""
    queue = options.queue or str(options.conf.get("spark.yarn.queue", ""))
    if queue:
        known = hadoop.queues()
        if queue.rpartition(".")[2] not in [name.rpartition(".")[2] for name in known]:
            raise ArgumentError(f"YARN has no queue {queue!r}; it has {', '.join(known)}. Pass one of them as queue=.")


# What goes along.


def shipped(hadoop: Hadoop, options: Options) -> tuple[dict[str, str], str]:
    """Bring environment and jars to the cluster; return the settings that name them and the workers' interpreter."""
    base = str(options.conf.get("spark.yarn.stagingDir", "")) or None
    archives = listed(options.additional_archive)
    if options.penv_archive:
        archives.insert(0, f"{_archive(hadoop, options.penv_archive, base)}#{UNPACKED}")
        python = f"{UNPACKED}/bin/python"
    elif options.python_location or not options.ship_environment:
        python = options.python_location or os.environ.get("PYSPARK_PYTHON") or sys.executable
    else:
        _refuse_other_conda(options.conda_name)
        packed = environment.pack()
        name = f"environment-{environment.digest_of(packed.path)[:20]}{archive.SUFFIX}"
        place = hadoop.share(packed.path, name, base)
        archives.insert(0, f"{place}#{UNPACKED}")
        python = f"{UNPACKED}/{packed.python}"
    told = {ARCHIVES: ",".join(archives)} if archives else {}
    return {**told, **_jars(hadoop, options, base)}, python


def _refuse_other_conda(name: str | None) -> None:
    """Raise where another environment is named than the one that goes along: the one this program runs in."""
    here = os.environ.get("CONDA_DEFAULT_ENV")
    if name and name != here:
        raise ArgumentError(
            f"conda_name={name!r} is not the environment that this program runs in ({here or sys.prefix}), which goes "
            f"to the cluster by itself. Activate it (conda activate {name}) and leave conda_name out, or pass "
            "penv_archive= with a packed one."
        )


def _archive(hadoop: Hadoop, given: str, base: str | None) -> str:
    """Return the address of an archive: where it is on the cluster, or where it is brought to."""
    path, _, _ = given.partition("#")
    if "://" in path and not path.startswith("file:"):
        return path
    file = Path(path.removeprefix("file://")).expanduser()
    if not file.is_file():
        raise ArgumentError(f"penv_archive is {given}, and there is no such file.")
    digest = environment.digest_of(file)[:20]
    return hadoop.share(file, f"environment-{digest}{''.join(file.suffixes[-2:])}", base)


def _jars(hadoop: Hadoop, options: Options, base: str | None) -> dict[str, str]:
    """Return the setting that tells the nodes where Spark's jars are."""
    if options.spark_yarn_archive:
        return {"spark.yarn.archive": options.spark_yarn_archive}
    folder = Path(spark_home(), "jars")
    if not options.ship_environment and not options.python_location:
        return {"spark.yarn.jars": f"local:{folder}/*"}  # the nodes have what this machine has, where it has it
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


def send_modules(session: SparkSession) -> None:
    """Send the modules that lie beside the program, where they were not sent with it."""
    if INSIDE not in os.environ:
        for path in environment.own_modules():
            session.sparkContext.addPyFile(str(path))


# Waiting.


class Patience:
    """A watch over an application that waits for its first container: it says what is waited for.

    Args:
        hadoop: The cluster.
        tag: What the application is known by.
        seconds: How long YARN may take, after which the application is ended; None waits on.
    """

    def __init__(self, hadoop: Hadoop, tag: str, seconds: float | None) -> None:
        self.hadoop, self.tag, self.seconds = hadoop, tag, seconds
        self.told = ""
        self._done = threading.Event()

    def __enter__(self) -> Patience:
        self._thread = threading.Thread(target=self._watch, name="orca-yarn", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.hadoop.close()

    def _watch(self) -> None:
        wait = Wait(self.hadoop, self.seconds)
        while not self._done.wait(0.5):
            try:
                found = self.hadoop.tagged(self.tag)
                if found is None:
                    wait = Wait(self.hadoop, self.seconds)  # it is being handed in: the environment is on its way
                elif found.state == "RUNNING" or found.ended or self.hadoop.has_container(found.id):
                    if found.ended:
                        self.told = ended(found.id, found.diagnostics)
                    return
                else:
                    self.told = wait.go_on(found)
                    if self.told:
                        return
            except Exception as error:  # the ResourceManager may be down for a moment
                log.debug("asking YARN: %s", error)


class Wait:
    """The time that an application waits for its first container.

    Args:
        hadoop: The cluster.
        seconds: How long it may; None for no limit.
    """

    def __init__(self, hadoop: Hadoop, seconds: float | None) -> None:
        self.hadoop, self.seconds = hadoop, seconds
        self._began, self._word = time.monotonic(), FIRST_WORD

    def go_on(self, found: Application) -> str:
        """Say now and then what is waited for; end the application where the time is over, and return why."""
        waited = time.monotonic() - self._began
        over = self.seconds is not None and waited > self.seconds
        if not over and waited < self._word:
            return ""
        words = (
            f"YARN gave no container to {found.id} within {waited:.0f} s. It says: {found.diagnostics or 'nothing'}. "
            f"The nodes: {self.hadoop.free()}."
        )
        ask = "Ask for less with memory= and driver_memory=, or for another queue with queue="
        if over:
            self.hadoop.kill(found.id)
            return f"{words} The application was ended. {ask}, or wait longer with start_timeout=."
        self._word *= 2
        say(f"{words} Waiting on; start_timeout= sets a limit. {ask}.")
        return ""


def wait_for_executors(session: SparkSession, hadoop: Hadoop, request: Request) -> None:
    """Return when the executors are there; raise when none comes, and warn when some do not."""
    if is_dynamic(session):
        return
    context = session.sparkContext
    number = str(context.applicationId)
    wanted = int(session.conf.get("spark.executor.instances", None) or request.num_nodes)
    limit = request.options.start_timeout
    began = last = time.monotonic()
    word = FIRST_WORD
    while (there := executors(session)) < wanted:
        now = time.monotonic()
        app = hadoop.application(number)
        if app.ended:
            raise OrcaError(ended(number, app.diagnostics))
        coming = app.containers - 1  # one is the application master's
        if coming > there:
            last = now
        if there == 0 and limit is not None and now - last > limit:
            break
        # With some of them a run can begin.
        if there and (now - began > LONGEST or now - last > max(PATIENCE, limit or 0.0)):
            break
        if now - began > word:
            word *= 2
            say(
                f"{number} has {there} of {wanted} executors and {max(0, coming)} containers for them after "
                f"{now - began:.0f} s. The nodes: {hadoop.free()}. Waiting on."
            )
        time.sleep(0.5)
    if there == 0:
        raise OrcaError(
            f"YARN gave {number} no executor with {request.cores} cores and {request.memory} of memory (and "
            f"{session.conf.get('spark.executor.memoryOverhead', '')} beside the heap) within {limit:.0f} s. "
            f"The nodes: {hadoop.free()}. Ask for less with cores= and memory=, or for another queue with queue=."
        )
    if there < wanted:
        log.warning("%s has %d of %d executors. The nodes: %s.", number, there, wanted, hadoop.free())


def ended(number: str, diagnostics: str) -> str:
    """Return the words for an application that is over before it began."""
    return f"{number} ended on YARN: {diagnostics or 'it says nothing'}. See `yarn logs -applicationId {number}`."


def reason(error: Exception) -> str:
    """Return the first line of an error of the JVM that says something."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    told = [line for line in lines if "Exception: " in line]
    return (told or lines or [type(error).__name__])[0].strip()
