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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orca.cluster import environment, proof
from orca.cluster.hadoop import (
    Application,
    Hadoop,
    configuration_folder,
    knock,
    name_nodes,
    resource_managers,
    settings_of,
)
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
LONGEST = 1800.0  # seconds for containers that YARN has given to fetch the environment and start
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
        """Watch the application while it is started: Spark would wait for a container without end."""
        with Patience(Hadoop(gateway), settings["spark.yarn.tags"], request.options.start_timeout) as patience:
            try:
                yield
            except Exception as error:
                if patience.told:
                    raise OrcaError(patience.told) from None
                raise OrcaError(f"Spark did not start on YARN: {_reason(error)}") from error

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
    told = dict(hdfs.environment())
    if "SPARK_LOCAL_IP" in os.environ:
        told["SPARK_LOCAL_IP"] = os.environ["SPARK_LOCAL_IP"]
    return {**told, **{str(name): str(value) for name, value in (options.env or {}).items()}}


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
        place = hadoop.share(packed.path, f"environment-{packed.path.name}", base)
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
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(1 << 22):
            digest.update(piece)
    return hadoop.share(file, f"environment-{digest.hexdigest()[:20]}{''.join(file.suffixes[-2:])}", base)


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
    if not file.exists():
        log.info("collecting the %d jars of Spark in %s", len(jars), file)
        draft = file.with_name(f"{file.name}.draft-{uuid.uuid4().hex[:8]}")
        try:
            with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
                for jar in jars:
                    archive.write(jar, jar.name)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)
    return {"spark.yarn.archive": hadoop.share(file, f"spark-{digest}.zip", base)}


def send_modules(session: SparkSession) -> None:
    """Send the modules that lie beside the program, where they were not sent with it."""
    if INSIDE not in os.environ:
        for path in environment.own_modules():
            session.sparkContext.addPyFile(str(path))


# Waiting.


class Patience:
    """End an application that YARN gives no container to, and tell why.

    Args:
        hadoop: The cluster.
        tag: What the application is known by.
        seconds: How long YARN may take to give a first container.
    """

    def __init__(self, hadoop: Hadoop, tag: str, seconds: float) -> None:
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
        waiting = time.monotonic()
        while not self._done.wait(0.5):
            try:
                found = self.hadoop.tagged(self.tag)
                if found is None:
                    waiting = time.monotonic()  # it is still being handed in: the environment is on its way
                elif found.state == "RUNNING" or found.ended or self.hadoop.has_container(found.id):
                    if found.ended:
                        self.told = ended(found.id, found.diagnostics)
                    return
                elif time.monotonic() - waiting > self.seconds:
                    self.told = no_container(self.hadoop, found, self.seconds)
                    self.hadoop.kill(found.id)
                    return
            except Exception as error:  # the ResourceManager may be down for a moment
                log.debug("asking YARN: %s", error)


def no_container(hadoop: Hadoop, found: Application, seconds: float) -> str:
    """Return the words for an application that YARN does not begin."""
    return (
        f"YARN gave no container to {found.id} within {seconds:.0f} s. It says: {found.diagnostics or 'nothing'}. "
        f"The nodes: {hadoop.free()}. The application was ended. Ask for less with memory= and driver_memory=, for "
        "another queue with queue=, or wait longer with start_timeout=."
    )


def wait_for_executors(session: SparkSession, hadoop: Hadoop, request: Request) -> None:
    """Return when the executors are there; raise when none comes, and warn when some do not."""
    if is_dynamic(session):
        return
    context = session.sparkContext
    number = str(context.applicationId)
    wanted = int(session.conf.get("spark.executor.instances", None) or request.num_nodes)
    patience = max(PATIENCE, request.options.start_timeout)
    began = last = time.monotonic()
    while (there := executors(session)) < wanted:
        now = time.monotonic()
        app = hadoop.application(number)
        if app.ended:
            raise OrcaError(ended(number, app.diagnostics))
        coming = app.containers - 1  # one is the application master's
        if now - began > LONGEST or (coming <= there and now - last > patience):
            break
        if coming > there:
            last = now
        time.sleep(0.5)
    if there == 0:
        raise OrcaError(
            f"YARN gave {number} no executor with {request.cores} cores and {request.memory} of memory (and "
            f"{session.conf.get('spark.executor.memoryOverhead', '')} beside the heap) within {patience:.0f} s. "
            f"The nodes: {hadoop.free()}. Ask for less with cores= and memory=, or for another queue with queue=."
        )
    if there < wanted:
        log.warning("%s has %d of %d executors. The nodes: %s.", number, there, wanted, hadoop.free())


def ended(number: str, diagnostics: str) -> str:
    """Return the words for an application that is over before it began."""
    return f"{number} ended on YARN: {diagnostics or 'it says nothing'}. See `yarn logs -applicationId {number}`."


def _reason(error: Exception) -> str:
    """Return the first line of an error of the JVM that says something."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    told = [line for line in lines if "Exception: " in line]
    return (told or lines or [type(error).__name__])[0].strip()
