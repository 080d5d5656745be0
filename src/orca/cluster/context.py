"""Context: the cluster a program runs on. Owns init_orca_context, stop_orca_context and the settings of OrcaContext.

Nothing here imports pyspark or ray before a cluster is asked for.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from orca.cluster import ray as _ray
from orca.cluster import spark as _spark
from orca.cluster.kinds import KINDS, kind_of, launcher_kind
from orca.cluster.words import checked_cores
from orca.core.arguments import refuse_unknown
from orca.core.network import PREFIX, adopt
from orca.core.units import java_size, positive
from orca.errors import ArgumentError, near

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    from orca.cluster.ray import OrcaRayContext

log = logging.getLogger(__name__)

DEFAULT_CORES = 2
_RAY_REUSED = "Ray is already up and is reused: the arguments of this call have no effect."


@dataclass(frozen=True)
class Cluster:
    """The cluster this program runs on, as engines place workers on it.

    Args:
        runtime: "spark" or "ray".
        num_nodes: Executors of Spark (1 when local), or nodes of Ray.
        cores: Cores of each; None where a Spark Connect server does not tell.
        driver_host: The address at which workers reach this process.
        connect: Whether the session is a Spark Connect one: no SparkContext, no RDD.
    """

    runtime: str
    num_nodes: int
    cores: int | None
    driver_host: str
    connect: bool = False


@dataclass
class _Live:
    """The Spark that was started in this process, and how it ends."""

    session: Any = None
    life: ExitStack = field(default_factory=ExitStack)
    pid: int = field(default_factory=os.getpid)


_lock = threading.RLock()
_live: list[_Live] = []  # one, or none


def init_orca_context(
    cluster_mode: str | None = None,
    runtime: str = "spark",
    cores: int | str | None = None,
    memory: str = "2g",
    num_nodes: int = 1,
    init_ray_on_spark: bool = False,
    init_executor_gateway: bool = True,
    **kwargs: Any,
) -> Any:
    """Start the cluster this program runs on, or join it.

    A SparkSession that is already active, a Spark Connect one too, is reused with a warning, and so is a Ray. One that
    was there before stays its owner's: neither stop_orca_context nor the end of the program stops it.

    Args:
        cluster_mode: "local", "standalone" (at ``master=``, or started here on the loopback interface),
            "spark-submit" or "bigdl-submit" (the launcher's). None takes the launcher's where there is one, else local.
        runtime: "spark", or "ray" (a local one, or ``address=``), for which cluster_mode stays None.
        cores: Cores per node; "*" takes all of this machine (local only).
        memory: Memory of the driver (local) or of each executor, as "2g" or "512m".
        num_nodes: Nodes, which are executors on Spark; each runs ``cores`` tasks at once.
        init_ray_on_spark: Whether to put a Ray on Spark's executors at once, which leaves Spark one core of each; on a
            local master it is a Ray beside it. Without it, that Ray starts when it is first needed.
        init_executor_gateway: Accepted for old programs; nothing needs it.
        **kwargs: For Spark: conf, master, driver_memory, spark_log_level, python_location, extra_python_lib, py_files,
            jars, additional_archive, hadoop_user_name, ...; for Ray on Spark: num_ray_nodes, ray_node_cpu_cores,
            object_store_memory, env, extra_params, include_webui, system_config, verbose; for Ray alone: address and
            the arguments of ray.init.

    Returns:
        The SparkContext (the session where it is a Spark Connect one), or the OrcaRayContext.

    Raises:
        ArgumentError: An argument is wrong; it is named with its legal values.
        NotYet: Kubernetes is not built yet.
    """
    if runtime not in _ray.RUNTIMES:
        raise ArgumentError(
            f"runtime can only be spark or ray; got {runtime!r}.{near(runtime, _ray.RUNTIMES)}", code="unknown-runtime"
        )
    _own_settings(kwargs)
    memory, num_nodes = java_size(memory, "memory"), positive("num_nodes", num_nodes)
    with _lock:
        if runtime == "ray":
            return _init_ray(cluster_mode, cores, kwargs)
        return _init_spark(cluster_mode, cores, memory, num_nodes, init_ray_on_spark, kwargs)


def _own_settings(kwargs: dict[str, Any]) -> None:
    """Take Orca's own settings out of conf: they are for the runs of this program, whatever the cluster."""
    conf = kwargs.get("conf")
    if isinstance(conf, Mapping) and any(str(name).startswith(PREFIX) for name in conf):
        adopt({name: value for name, value in _spark.spark_values(conf).items() if name.startswith(PREFIX)})
        rest = {name: value for name, value in conf.items() if not str(name).startswith(PREFIX)}
        kwargs.pop("conf")
        kwargs.update({"conf": rest} if rest else {})


def stop_orca_context() -> None:
    """Stop the cluster that init_orca_context started; more than once is fine.

    A session or a Ray that it only reused stays up: others may work on it. Stop such a one in the way it was started.
    """
    adopt({})
    with _lock:
        _ray.end()
        # A program that stopped our session may have made its own since, in our JVM or on our daemons: they stay then.
        if _live and not (_spark.is_stopped(_live[0].session) and _spark.active_session() is not None):
            _close()


def when_stopped(work: Callable[[], None]) -> None:
    """Do something when the Spark of init_orca_context stops; at the end of the program where it is another's."""
    with _lock:
        if _live:
            _live[0].life.callback(work)
        else:
            atexit.register(work)


def running_engine(engine: str | None) -> str:
    """Return an engine, after the Ray that it may need has started; without one, that of the cluster that is up."""
    if engine is None:
        cluster = OrcaContext.cluster()
        return cluster.runtime if cluster else "local"
    if engine == "ray":
        with _lock:
            _ray.bring_up()
    return engine


def _close() -> None:
    while _live:
        live = _live.pop()
        if live.pid == os.getpid():
            live.life.close()


def _init_spark(
    cluster_mode: str | None, cores: int | str | None, memory: str, num_nodes: int, on_ray: bool, kwargs: dict[str, Any]
) -> Any:
    mode = _checked_mode(cluster_mode)
    known = [name for name in inspect.signature(init_orca_context).parameters if name != "kwargs"]
    known += [option.name for option in fields(_spark.SessionOptions)]
    refuse_unknown(kwargs, known, "init_orca_context()")
    options = _spark.SessionOptions(**{name: value for name, value in kwargs.items() if value is not None})
    if options.container_image and not mode.startswith("k8s"):
        raise ArgumentError(
            f"container_image= is for Kubernetes, and cluster_mode is {mode!r}, where no worker would run in it. Leave "
            "it out; on YARN, settings choose containers (spark.executorEnv.YARN_CONTAINER_RUNTIME_TYPE, ...).",
            code="container-image-unused",
        )
    width = checked_cores(cores, star=mode == "local")
    active = _spark.active_session()
    if active is not None:
        answer = _reuse(active)
        _plan_ray(options, on_ray)
        return answer
    if mode == "local" and num_nodes > 1:
        warnings.warn(f"cluster_mode='local' has one node; num_nodes={num_nodes} is ignored.", stacklevel=3)
    if width is None:
        width = _default_cores(cluster_mode, mode)
    at_once = on_ray and mode != "local" and not _is_submitted(mode)
    for_ray = _ray.room(options, num_nodes, width, memory, at_once)  # Refused before anything is started.
    stop_spark()
    session = _start_spark(mode, _spark.Request(width, memory, num_nodes, options, OrcaContext.log_output, for_ray))
    try:
        _plan_ray(options, on_ray)
    except BaseException:
        stop_spark()
        raise
    return _answer(session)


def _start_spark(mode: str, request: _spark.Request) -> Any:
    live = _Live()
    try:
        live.session = _spark.build_session(kind_of(mode), request, live.life)
    except BaseException:
        live.life.close()
        raise
    _live.append(live)
    atexit.register(_at_exit)
    log.info("Spark %s is up at %s", live.session.version, mode)
    return live.session


def stop_spark() -> None:
    """Stop the Spark of init_orca_context, the Ray on it, and the rest of one that the program stopped itself."""
    _ray.end(["spark"])
    _close()


def _reuse(session: Any) -> Any:
    """Answer with an active session, which stays its owner's."""
    warnings.warn(
        "A SparkSession is already active and is reused: cluster_mode, cores, memory, num_nodes and conf of this call "
        "have no effect. Stop it (stop_orca_context() where Orca started it, else session.stop()) to start another.",
        stacklevel=4,
    )
    return _answer(session)


def _plan_ray(options: _spark.SessionOptions, at_once: bool) -> None:
    """Remember the options of the Ray on this Spark until it is needed, which may be now."""
    if _ray.up() is not None:
        if at_once:
            warnings.warn(_RAY_REUSED, stacklevel=4)
        return
    _ray.end(["spark"])  # planned by an earlier call
    context = _ray.OrcaRayContext("spark", **{name: getattr(options, name) for name in _ray.ON_SPARK})
    if at_once:
        context.init()
        if context.reused:
            warnings.warn(_RAY_REUSED, stacklevel=4)


def _answer(session: Any) -> Any:
    return session if _spark.is_connect(session) else session.sparkContext


def _init_ray(cluster_mode: str | None, cores: int | str | None, kwargs: dict[str, Any]) -> OrcaRayContext:
    if cluster_mode is not None:
        raise ArgumentError(
            f"cluster_mode is not supported for runtime='ray'; got {cluster_mode!r}. Leave it out for a Ray on this "
            "machine, or pass address= to connect to a running one.",
            code="cluster-mode-on-ray",
        )
    cores = checked_cores(cores, star=True)
    if (context := _ray.up()) is not None:
        warnings.warn(_RAY_REUSED, stacklevel=3)
        return context
    address = kwargs.pop("address", None) or os.environ.get("RAY_ADDRESS")
    context = _ray.OrcaRayContext("ray", cores, address=address, **kwargs)
    context.init()
    if context.reused:
        warnings.warn(_RAY_REUSED, stacklevel=3)
    return context


def _at_exit() -> None:
    with _lock:
        _close()


# Arguments


def _checked_mode(cluster_mode: str | None) -> str:
    if cluster_mode is None:
        return launcher_kind()
    mode = str(cluster_mode).lower()
    if mode not in KINDS:
        legal = ", ".join(KINDS)
        raise ArgumentError(
            f"cluster_mode can only be {legal}; got {cluster_mode!r}.{near(mode, KINDS)}", code="unknown-cluster-mode"
        )
    return mode


def _default_cores(cluster_mode: str | None, mode: str) -> int | str:
    """Return the cores where the program gave none: all for an explicit local, else 2, and the user is told."""
    if cluster_mode is not None and mode == "local":
        return "*"
    if not _is_submitted(mode):
        warnings.warn(f"cores is not given; {DEFAULT_CORES} per node are used. Pass cores= to change it.", stacklevel=4)
    return DEFAULT_CORES


def _is_submitted(mode: str) -> bool:
    """Say whether the launcher of this program has decided on nodes and cores."""
    return isinstance(KINDS[mode], _spark.Submitted)


# OrcaContext


class _Setting:
    """A class-level property whose value is checked when it is set."""

    def __init__(self, default: Any, legal: str, check: Callable[[Any], Any]) -> None:
        self.value, self.legal, self.check = default, legal, check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, cls: Any, owner: Any = None) -> Any:
        return self.value

    def __set__(self, cls: Any, value: Any) -> None:
        try:
            self.value = self.check(value)
        except (TypeError, ValueError, AttributeError):
            raise ArgumentError(
                f"OrcaContext.{self.name} must be {self.legal}; got {value!r}.", code="bad-context-setting"
            ) from None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _word(pattern: str, spelling: Callable[[str], str]) -> Callable[[Any], str]:
    """Return the check of a word in any case."""

    def check(value: Any) -> str:
        if not re.fullmatch(pattern, spelling(value)):
            raise ValueError
        return spelling(value)

    return check


def _rows(value: Any) -> int | None:
    return None if value is None else positive("_shard_size", value)


class OrcaContextMeta(type):
    """The settings of OrcaContext, as properties of the class."""

    log_output = _Setting(False, "True or False", _flag)
    pandas_read_backend = _Setting("spark", "'spark' or 'pandas'", _word("spark|pandas", str.lower))
    serialize_data_creator = _Setting(False, "True or False", _flag)
    train_data_store = _Setting(
        "DRAM", "'DRAM', 'PMEM' or 'DISK_n' with a number n", _word(r"DRAM|PMEM|DISK_\d+", str.upper)
    )
    barrier_mode = _Setting(True, "True or False", _flag)
    _eager_mode = _Setting(True, "True or False", _flag)
    _shard_size = _Setting(None, "None or a positive whole number", _rows)

    @property
    def serialize_data_creation(cls) -> bool:
        """Return serialize_data_creator, which release 0.9 called so."""
        return bool(cls.serialize_data_creator)

    @serialize_data_creation.setter
    def serialize_data_creation(cls, value: bool) -> None:
        cls.serialize_data_creator = value


class OrcaContext(metaclass=OrcaContextMeta):
    """The cluster of this program, and its settings (set them on the class, before they are needed).

    * ``log_output`` (False): write the JVM's output to Python's standard output; set it before init_orca_context.
    * ``pandas_read_backend`` ("spark"): with "pandas", `lines` of read_json is False unless given.
    * ``serialize_data_creator`` (False): run the data creators of one node one after the other.
    * ``train_data_store`` ("DRAM"): "DRAM", "PMEM" or "DISK_n", where training data is kept.
    * ``barrier_mode`` (True): start Ray on Spark in one barrier job.
    * ``_eager_mode`` (True): XShards compute a transformation at once.
    * ``_shard_size`` (None): rows of a shard made from a DataFrame; None is one shard per partition.
    """

    @staticmethod
    def get_spark_context() -> SparkContext:
        """Return the active SparkContext."""
        session = OrcaContext.get_spark_session()
        if _spark.is_connect(session):
            raise ArgumentError(
                "No active SparkContext: the active session is a Spark Connect one, which has none. "
                "Use OrcaContext.get_spark_session().",
                code="connect-has-no-context",
            )
        return session.sparkContext

    @staticmethod
    def get_spark_session() -> SparkSession:
        """Return the active SparkSession."""
        session = _spark.active_session()
        if session is None:
            raise ArgumentError("No active SparkContext. Call init_orca_context() first.", code="no-spark-context")
        return session

    @staticmethod
    def get_sql_context() -> SQLContext:
        """Return a SQLContext of the active SparkContext."""
        context = OrcaContext.get_spark_context()
        from pyspark.sql import SQLContext

        with warnings.catch_warnings():  # Deprecated by Spark, still asked for by programs.
            warnings.simplefilter("ignore", FutureWarning)
            return SQLContext.getOrCreate(context)

    @staticmethod
    def get_ray_context() -> OrcaRayContext:
        """Return the context of this program's Ray, which starts with this call where a Spark is up and no Ray."""
        with _lock:
            return _ray.OrcaRayContext.get()

    @staticmethod
    def cluster() -> Cluster | None:
        """Describe the cluster this program runs on; Spark before Ray where both are up, None where none is.

        The cores that a Ray on Spark holds are not Spark's.
        """
        session = _spark.active_session()
        if session is not None:
            count, free = _spark.nodes(session), _ray.free_slots(session)
            cores = None if free is None else max(1, free // count)
            return Cluster("spark", count, cores, _spark.driver_host(session), _spark.is_connect(session))
        ray = _ray.up()
        return None if ray is None else Cluster("ray", ray.num_nodes, ray.total_cores // ray.num_nodes, ray.driver_host)
