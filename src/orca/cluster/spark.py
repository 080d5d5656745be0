"""Spark: sessions on a kind of cluster. Owns Kind, the settings of all sessions, and the life of the JVM."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from orca.cluster.java import ensure_java
from orca.cluster.site import defaults_file, has_spark_home, site_settings, yielding
from orca.core.imports import ImportHook, is_imported
from orca.core.loading import MODULES, hush_pyspark, slow_modules
from orca.core.units import check_seconds, positive, size_of
from orca.errors import ArgumentError, MissingDependency, OrcaError
from orca.monitor.spark_logs import silence
from orca.monitor.waiting import Pace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
hush_pyspark()

LOOPBACK = "127.0.0.1"
PATIENCE = 30.0
START_PATIENCE = 600.0  # seconds that executors of a launcher's cluster may take to start
LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

# Settings that Spark's pages, logs and event files do not show: secrets, keys of any kind, the variables of workers.
REDACTION = "spark.redaction.regex"
NOT_SHOWN = "(?i)secret|password|passphrase|credential|token|key|executorEnv[.]|appMasterEnv[.]"

DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Too few slots for a barrier job: Spark's own pace is 40 tries in 10 minutes.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "3",
    "spark.driver.maxResultSize": "0",
    "spark.python.worker.reuse": "true",
    REDACTION: NOT_SHOWN,
}
DAEMON, OUR_DAEMON = "spark.python.daemon.module", "orca.engines.daemon"
SHORT_TRACEBACKS = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
DYNAMIC = "spark.dynamicAllocation.enabled"
# A pause of two minutes, of the network or of the driver, ends nothing: Spark's own limit is just that. An executor
# whose machine is cut off is given up soon after, as the hub does (monitor/protocol.py).
OUTLIVES_PAUSES = {"spark.network.timeout": "180s", "spark.network.timeoutInterval": "10s"}
# spark-submit fills these in by itself before anybody can ask whether the user did.
LAUNCH_DEFAULTS = {"spark.app.name": "orca", "spark.ui.showConsoleProgress": "false"}
# Only these go on the JVM's command line, which other users of the machine can read; all others by a private file.
ON_COMMAND_LINE = frozenset(
    "spark.app.name spark.cores.max spark.driver.bindAddress spark.driver.cores spark.driver.host spark.driver.memory "
    "spark.executor.cores spark.executor.instances spark.executor.memory spark.master spark.submit.deployMode "
    "spark.ui.enabled spark.ui.showConsoleProgress".split()
)
INCUBATOR = b"WARNING: Using incubator modules:"  # the JVM's word about a module that Spark's launcher always asks for


@dataclass(frozen=True)
class SessionOptions:
    """Every keyword that init_orca_context takes for Spark beyond its named arguments.

    Those without a meaning on a kind of cluster are accepted there and do nothing, as in the systems we follow.
    """

    conf: Mapping[str, Any] = field(default_factory=dict)
    master: str | None = None
    driver_memory: str | None = None
    driver_cores: int | None = None
    spark_log_level: str = "WARN"
    redirect_spark_log: bool = True
    python_location: str | None = None
    extra_python_lib: str | None = None
    py_files: str | None = None
    jars: str | None = None
    additional_archive: str | None = None
    hadoop_user_name: str | None = None
    hadoop_conf: str | None = None
    conda_name: str | None = None
    penv_archive: str | None = None
    spark_yarn_archive: str | None = None
    queue: str | None = None
    ship_environment: bool = True
    start_timeout: float | None = None
    container_image: str | None = None
    enable_numa_binding: bool = False
    extra_executor_memory_for_ray: str | None = None
    # Ray on Spark.
    redis_port: int | None = None
    redis_password: str | None = None
    object_store_memory: str | int | None = None
    verbose: bool = False
    env: Mapping[str, str] | None = None
    extra_params: Mapping[str, Any] | None = None
    num_ray_nodes: int | None = None
    ray_node_cpu_cores: int | None = None
    include_webui: bool = False
    system_config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.conf, Mapping):
            raise ArgumentError(
                f"conf must be a dict of Spark settings; got {type(self.conf).__name__}.", code="bad-spark-conf"
            )
        for name in ("env", "extra_params", "system_config"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise ArgumentError(f"{name} must be a dict; got {type(value).__name__}.", code="bad-spark-conf")
        for name in ("num_ray_nodes", "ray_node_cpu_cores"):
            if (count := getattr(self, name)) is not None:
                positive(name, count)
        if self.object_store_memory is not None:
            size_of(self.object_store_memory, "object_store_memory")
        if str(self.spark_log_level).upper() not in LOG_LEVELS:
            raise ArgumentError(
                f"spark_log_level can only be one of {', '.join(LOG_LEVELS)}; got {self.spark_log_level!r}.",
                code="unknown-log-level",
            )
        check_seconds(self.start_timeout, "start_timeout", no_limit=None)
        if self.enable_numa_binding:
            raise ArgumentError(
                "enable_numa_binding=True is not supported: workers are not bound to nodes of memory. Leave it out, "
                "and start Spark's workers, or this program, with `numactl --cpunodebind=0 --membind=0`.",
                code="numa-binding-unsupported",
            )


@dataclass(frozen=True)
class Request:
    """The user's request: nodes, cores and memory of each, and bytes of each for Ray beside Spark."""

    cores: int | str
    memory: str
    num_nodes: int
    options: SessionOptions
    log_output: bool = False
    for_ray: int = 0


class Kind:
    """A kind of cluster."""

    ARCHIVES = "spark.archives"  # the setting that names archives which go along
    brings = True  # whether files of the driver's machine go along; not where they came with the program

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Start the daemons of the kind, if any, until `life` ends, and return the Spark settings that reach it."""
        return {}

    def more_settings(self, request: Request, gateway: Any, life: ExitStack) -> dict[str, str]:
        """Return the settings for which the driver's JVM is needed."""
        return {}

    def starting(self, request: Request, settings: Mapping[str, str], gateway: Any) -> AbstractContextManager[None]:
        """Watch over the building of the session."""
        return nullcontext()

    def check(self, session: SparkSession, request: Request) -> None:
        """Raise where the new session cannot work."""


class Local(Kind):
    """One JVM with threads."""

    def settings(self, request: Request, life: ExitStack) -> dict[str, str]:
        """Return the settings of a local master; everything stays on the loopback interface."""
        return {
            "spark.master": f"local[{request.cores}]",
            "spark.driver.memory": request.options.driver_memory or request.memory,
            **on_this_machine(request, life),
        }


class Submitted(Kind):
    """The cluster of this program's launcher, with its settings: spark-submit, a notebook server, SPARK_REMOTE."""

    def check(self, session: SparkSession, request: Request) -> None:
        """Wait for the executors, and let each prove that it runs this program's environment."""
        if is_connect(session) or is_local(session):
            return
        wait_for_executors(session)
        from orca.cluster.proof import prove  # which imports this module

        prove(session)


def build_session(kind: Kind, request: Request, life: ExitStack) -> SparkSession:
    """Build a session on a kind of cluster.

    Args:
        kind: The kind of cluster.
        request: The user's arguments.
        life: Everything started here ends when this stack is closed: session, JVM, daemons, files, environment.

    Returns:
        The session, its executors registered.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency.of("pyspark", "spark", "runtime='spark'") from error

    if "SPARK_REMOTE" in os.environ and isinstance(kind, Submitted):
        session = SparkSession.builder.getOrCreate()
        life.callback(stop_session, session)
        return session

    from pyspark import SparkConf

    options = request.options
    set_environment(_environment(options), life)
    own = spark_values(options.conf)
    proposed = yielding(kind.settings(request, life), site_settings(spark_home()) if has_spark_home() else {})
    settings = {**proposed, **(_files(kind, options) if kind.brings else {}), **own}
    starts_jvm = not _has_jvm()
    gateway = ensure_jvm(settings, request.log_output, life)
    settings |= {key: value for key, value in kind.more_settings(request, gateway, life).items() if key not in own}
    # Read after the JVM is up: spark-defaults.conf and the launcher's settings are in it.
    conf = SparkConf()
    for key, value in settings.items():
        conf.set(key, value)
    for key, value in {**LAUNCH_DEFAULTS, **DEFAULTS}.items():
        conf.setIfMissing(key, value)
    with kind.starting(request, settings, gateway):
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        life.callback(stop_session, session)
        if starts_jvm:  # which ends with the session
            life.callback(silence, session)
    session.sparkContext.setLogLevel(options.spark_log_level.upper())
    for path in (comma_list(options.extra_python_lib) + comma_list(options.py_files)) if kind.brings else []:
        session.sparkContext.addPyFile(path)
    kind.check(session, request)
    if conf.get(DAEMON) == OUR_DAEMON:
        _keep_daemons_ready(session, life)
    return session


def _keep_daemons_ready(session: SparkSession, life: ExitStack) -> None:
    """Start the daemons of Spark's Python workers now, and again when the program imports a framework.

    So they load it while the program does, whether it imports the framework before or after the session starts.
    """
    program = os.getpid()

    def start(library: str | None = None) -> None:
        if os.getpid() == program:  # not in a fork of it
            threading.Thread(target=_start_daemons, args=(session, library), name="orca-daemons", daemon=True).start()

    ImportHook.listeners.append(start)
    life.callback(ImportHook.listeners.remove, start)
    start()


def _start_daemons(session: SparkSession, library: str | None) -> None:
    """Let Spark start daemons in the background, which load the frameworks of the program.

    In a job of an RDD: the JVM has to load and compile far less for it than for the first of a DataFrame.

    Args:
        session: The session.
        library: A framework that the program may be importing now; None for those that it has imported.
    """
    if library is not None and not is_imported(library):
        return
    with contextlib.suppress(Exception):  # the session was stopped meanwhile, or a later job tells
        tell_modules(session)
        width = 1 if is_local(session) else slots(session) or 1
        session.sparkContext.parallelize(range(width), width).mapPartitions(list).collect()


def tell_modules(session: SparkSession) -> None:
    """Let daemons that Spark starts from now on load the frameworks that the program has loaded since."""
    if not is_connect(session) and MODULES in session.sparkContext.environment:
        session.sparkContext.environment[MODULES] = " ".join(slow_modules())


def active_session() -> SparkSession | None:
    """Return the session that is active in this process, classic or Connect, Orca's or not; None without one."""
    if "pyspark" not in sys.modules:
        return None
    remote = sys.modules.get("pyspark.sql.connect.session")
    if remote is not None:
        session = remote.SparkSession.getActiveSession() or remote.SparkSession._default_session
        if session is not None:
            return cast("SparkSession", session)
    try:
        from pyspark import SparkContext
    except ImportError:  # pyspark-client: Connect only.
        return None
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        return None
    from pyspark.sql import SparkSession

    return SparkSession._instantiatedSession or SparkSession(context)


def is_connect(session: Any) -> bool:
    """Say whether a session is a Spark Connect one, which has no SparkContext and no RDD."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_local(session: SparkSession) -> bool:
    """Say whether tasks run in the JVM of Spark's driver."""
    return re.match(r"local(\[|$)", master_of(session)) is not None


def master_of(session: SparkSession) -> str:
    """Return the master of a session; "" where it is hidden, as managed services do."""
    try:
        return str(session.conf.get("spark.master", "") or "")
    except Exception:  # Connect's client raises classes of its own
        return ""


def is_stopped(session: Any) -> bool:
    """Say whether a classic session was stopped."""
    return not is_connect(session) and session.sparkContext._jsc is None


def is_dynamic(session: SparkSession) -> bool:
    """Say whether Spark allocates executors dynamically."""
    return str(session.conf.get(DYNAMIC, "false")).lower() == "true"


def slots(session: SparkSession) -> int | None:
    """Return how many barrier tasks can run at the same time; None where a Connect server does not tell."""
    if is_connect(session):
        return _slots_of(master_of(session) or None)
    scala = cast(Any, session.sparkContext._jsc).sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def nodes(session: SparkSession) -> int:
    """Return the number of executors; 1 for a local master."""
    if is_connect(session):
        instances = str(session.conf.get("spark.executor.instances", None) or "")
        cluster = re.fullmatch(r"local-cluster\[\s*(\d+).*\]", master_of(session))
        return int(cluster.group(1)) if cluster else int(instances) if instances.isdigit() else 1
    return max(1, executors(session))


def executor_cpus(session: SparkSession) -> float:
    """Return the CPUs of an executor that run tasks; 0 if a Connect server does not tell."""
    cores = str(session.conf.get("spark.executor.cores", None) or "")
    if cores.isdigit() and not is_local(session):
        return float(cores)
    width = slots(session)  # of an executor that takes all of its node
    per_task = int(session.conf.get("spark.task.cpus", None) or 1)
    return 0.0 if width is None else width * per_task / nodes(session)


def driver_host(session: SparkSession) -> str:
    """Return the address at which executors reach this process."""
    if not is_connect(session):
        return str(session.sparkContext.getConf().get("spark.driver.host"))
    # The driver of a Connect session runs in the server; this process is reached by the way it reaches the server.
    server = str(getattr(getattr(session, "client", None), "host", None) or "localhost")
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server, 15002))
        return str(probe.getsockname()[0])
    return LOOPBACK


def _slots_of(master: str | None) -> int | None:
    """Return the slots in the name of a master: local, local[n], local[n,failures], local-cluster[n,c,m]."""
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master or "")
    if local:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master or "")
    return int(cluster[1]) * int(cluster[2]) if cluster else None


def executor_infos(session: SparkSession) -> list[Any]:
    """Return Spark's information about each executor and the driver."""
    return list(cast(Any, session.sparkContext._jsc).sc().statusTracker().getExecutorInfos())


def executors(session: SparkSession) -> int:
    """Return how many executors are registered, the driver not counted."""
    return len(executor_infos(session)) - 1


def wait_for_executors(session: SparkSession) -> None:
    """Wait until the requested executors are there: pods and containers may take minutes to start.

    Raises:
        OrcaError: There is none after as long as they may take.
    """
    count = str(session.conf.get("spark.executor.instances", None) or "")
    if is_dynamic(session) or not count.isdigit():
        return
    end, pace = time.monotonic() + START_PATIENCE, Pace()
    while (there := executors(session)) < int(count) and time.monotonic() < end:
        if pace.is_due():
            log.warning("%d of %s executors are there after %.0f s. Waiting on.", there, count, pace.waited)
        time.sleep(0.2)
    if there == 0:
        raise OrcaError(
            f"none of the {count} executors that were asked for (spark.executor.instances) came in "
            f"{START_PATIENCE:.0f} s. Look at the cluster's page for the reason, or ask for fewer or smaller ones.",
            code="no-executors",
        )


def running(session: SparkSession) -> int:
    """Return how many tasks run now, of all jobs."""
    return sum(int(info.numRunningTasks()) for info in executor_infos(session))


# Settings and environment


def on_this_machine(request: Request, life: ExitStack) -> dict[str, str]:
    """Return the settings of a cluster that never leaves this machine, and set the environment it needs."""
    env, settings = {"SPARK_LOCAL_IP": LOOPBACK}, {}
    if request.options.python_location is None:
        # The workers see the modules this program sees, also those beside its script.
        env["PYTHONPATH"] = os.pathsep.join(_own_path())
        settings = {
            DAEMON: OUR_DAEMON,
            f"spark.executorEnv.{MODULES}": " ".join(slow_modules()),
            # Spark would shorten those of DataFrames, without their causes, in workers of another daemon.
            SHORT_TRACEBACKS: "false",
        }
    set_environment(env, life)
    return {
        **settings,
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.enabled": "false",
    }


def executor_settings(request: Request) -> dict[str, str]:
    """Return the settings of a cluster with one executor on each node."""
    return {
        "spark.executor.instances": str(request.num_nodes),
        "spark.executor.cores": str(request.cores),
        "spark.executor.memory": request.memory,
        "spark.driver.memory": request.options.driver_memory or "2g",
        **OUTLIVES_PAUSES,
        # Ranks run in barrier stages, for which Spark wants a fixed number of executors.
        DYNAMIC: "false",
    }


def _own_path() -> list[str]:
    """Return the folders of sys.path that the interpreter does not add by itself."""
    entries = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    ours = [os.path.abspath(path) for path in sys.path if os.path.exists(path or ".")]
    builtin = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    return list(dict.fromkeys(entries + [path for path in ours if not path.startswith(builtin)]))


def _environment(options: SessionOptions) -> dict[str, str]:
    """Return the environment variables of every session: the interpreter of the workers, the Hadoop user."""
    python = options.python_location or os.environ.get("PYSPARK_PYTHON") or sys.executable
    env = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if options.hadoop_user_name:
        env["HADOOP_USER_NAME"] = options.hadoop_user_name
    return env


def set_environment(env: Mapping[str, str], life: ExitStack) -> None:
    """Set environment variables until `life` ends."""
    set_entries(os.environ, env, life)


def set_entries(where: MutableMapping[str, Any], entries: Mapping[str, Any], life: ExitStack) -> None:
    """Set entries of a mapping until `life` ends, and then put back the old values."""
    for key, value in entries.items():
        life.callback(_put_back, where, key, where.get(key))
        where[key] = value


def _put_back(where: MutableMapping[str, Any], key: str, value: Any) -> None:
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value


def _files(kind: Kind, options: SessionOptions) -> dict[str, str]:
    files = {"spark.jars": options.jars, kind.ARCHIVES: options.additional_archive}
    return {key: ",".join(comma_list(value)) for key, value in files.items() if value}


def comma_list(value: str | Iterable[str] | None) -> list[str]:
    """Return the items of a comma list, or of a list."""
    parts = value.split(",") if isinstance(value, str) else list(value or ())
    return [part.strip() for part in parts if part.strip()]


def spark_values(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as Spark writes them."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()}


# The driver's JVM


def ensure_jvm(options: Mapping[str, str], log_output: bool, life: ExitStack) -> Any:
    """Start the driver's JVM where there is none yet, until `life` ends; return its gateway."""
    from pyspark import SparkConf, SparkContext, java_gateway

    if _has_jvm():
        SparkContext._ensure_initialized()
        return SparkContext._gateway
    ensure_java()
    settings = {**LAUNCH_DEFAULTS, **options}
    conf = SparkConf(loadDefaults=False)
    for key in ON_COMMAND_LINE & settings.keys():
        conf.set(key, settings[key])
    with ExitStack() as launch:
        file = settings_file({key: settings[key] for key in settings.keys() - ON_COMMAND_LINE}, launch)
        own = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")  # a file that the user names there comes last
        arguments = {"PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(file)} {own}"}
        set_environment({**_log_options(launch), **arguments}, launch)
        output = _JvmOutput(sys.stdout if log_output else None)
        try:
            gateway = cast(Any, java_gateway).launch_gateway(conf, popen_kwargs=output.pipes)
        except Exception as error:
            output.finish()
            home = os.environ.get("JAVA_HOME")
            raise OrcaError(
                f"Spark's JVM did not start with JAVA_HOME={home}: {error} Its words are above.",
                code="java-not-started",
            ) from error
    output.opened()
    life.callback(output.finish)
    life.callback(_end_jvm, gateway)
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


def _has_jvm() -> bool:
    """Return whether this process has a JVM for Spark, or its launcher one."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def settings_file(settings: Mapping[str, str], life: ExitStack) -> str:
    """Write settings behind those of spark-defaults.conf, which the file stands for, so that only this user reads them.

    Args:
        settings: The settings.
        life: The file is gone with it.
    """
    defaults = defaults_file(spark_home())
    text = defaults.read_text() if defaults.is_file() else ""
    if REDACTION not in text:
        settings = {REDACTION: NOT_SHOWN, **settings}
    path = os.path.join(private_folder(life), "settings.conf")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write("\n".join([text, *(f"{key} {_escaped(value)}" for key, value in settings.items())]) + "\n")
    return path


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"\\{value}" if value[:1].isspace() else value


def _log_options(launch: ExitStack) -> dict[str, str]:
    """Return the environment that keeps the JVM quiet until setLogLevel is called; a file of the user's comes first."""
    conf_dir = os.environ.get("SPARK_CONF_DIR") or os.path.join(spark_home(), "conf")
    if any(os.path.exists(os.path.join(conf_dir, f"log4j2.{end}")) for end in ("properties", "xml", "json", "yaml")):
        return {}
    path = os.path.join(private_folder(launch), "log4j2.properties")
    with open(path, "w") as out:
        out.write(log4j("warn"))
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    return {"SPARK_SUBMIT_OPTS": f"{options} -Dlog4j2.configurationFile={path}".strip()}


def log4j(level: str) -> str:
    """Return a log4j2 configuration that writes to standard error."""
    return f"""rootLogger.level = {level.lower()}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


class _JvmOutput:
    """The output of the JVM and its workers on the way to the screen, without lines of no use.

    Args:
        to: Python's stream to show standard output and error on, as a notebook does; None leaves standard output alone
            and gives standard error to this process's own.
    """

    def __init__(self, to: IO[str] | None) -> None:
        self.to = to
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._pump, name="orca-jvm-output", daemon=True)
        self._thread.start()

    @property
    def pipes(self) -> dict[str, int]:
        return {"stderr": self._write} if self.to is None else {"stdout": self._write, "stderr": self._write}

    def opened(self) -> None:
        """Close our copy of the JVM's end of the pipe, so that reading ends when the JVM does."""
        os.close(self._write)
        self._write = -1

    def finish(self) -> None:
        """Wait a moment for the last words."""
        if self._write >= 0:
            self.opened()
        self._thread.join(1.0)

    def _pump(self) -> None:
        rest = b""
        with open(self._read, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                self._show(b"".join(line + b"\n" for line in lines if not line.startswith(INCUBATOR)))
                if not INCUBATOR.startswith(rest[: len(INCUBATOR)]):  # no need to wait for the end of the line
                    self._show(rest)
                    rest = b""
        self._show(rest)

    def _show(self, text: bytes) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed
            if self.to is not None:
                self.to.write(text.decode(errors="replace"))
                return
            while text:
                text = text[os.write(2, text) :]


def stop_session(session: SparkSession) -> None:
    """Stop a session; one that is stopped or whose JVM is gone is no reason to fail."""
    if is_stopped(session):
        return  # by the program: once more would take the session that it made since from pyspark
    try:
        session.stop()
    except Exception as error:
        log.debug("stopping the Spark session: %s", error)


def _end_jvm(gateway: Any) -> None:
    """End the JVM we started and wait for it, so that the next session starts a fresh one."""
    from pyspark import SparkContext

    if SparkContext._gateway is gateway:
        SparkContext._gateway = None
        SparkContext._jvm = None
    with contextlib.suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def spark_home() -> str:
    """Return the folder with Spark's bin and jars: SPARK_HOME, or pyspark's own."""
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def private_folder(life: ExitStack) -> str:
    """Return a fresh folder that only this user can read and that is removed with `life`."""
    folder = tempfile.mkdtemp(prefix="orca-spark-")
    life.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder
