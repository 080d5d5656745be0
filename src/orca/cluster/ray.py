"""Ray: a cluster of ours on this machine, one at an address, or one on the executors of a Spark. Owns how Ray is
started, kept quiet and ended, and what of a Spark's cores it takes.

On Spark it is Ray's own `ray.util.spark` that starts the nodes: a head without CPUs beside the driver, and for each
worker node a Spark job of one task, which holds that node's cores for as long as it lives.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from orca.errors import ArgumentError, MissingDependency, OrcaError, TooFewSlots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

HEAD_PATIENCE = 60.0  # seconds in which the head node must listen
HEAD_WORDS = 20.0  # seconds more, in which it should say that all of it is up
NODE_MEMORY, WORKER_MEMORY = 512 << 20, 768 << 20  # of a node's own processes, and of a worker with torch in it
LEFT_PATIENCE = 5.0  # seconds for processes of an ended Ray to end by themselves
END_PATIENCE = 40.0  # seconds for it to end: Ray lets it drain for 30
STORE_SHARE = 0.3  # of an executor's memory, for Ray's object store beside it
LEAST_STORE = 100 << 20  # bytes; Ray refuses less than 75 MB
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# What Ray reads from the environment of all its processes; what the user has set stays.
DEFAULTS = {
    # Under `uv run` Ray would upload the whole working folder to itself and build an environment from it.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",  # what its autoscaler is about to do, on the driver's standard output
    # Ray announces with a warning that it will stop hiding GPUs from tasks without one: take the new way now.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # On Spark, nodes that start on one machine wait for each other, ten seconds unless told.
    "RAY_ON_SPARK_RAY_WORKER_NODE_STARTUP_INTERVAL": "2",
}


class OrcaRayContext:
    """Be the Ray that init_orca_context(runtime="ray") answers with.

    Args:
        cores: The CPUs of a Ray started here; None takes all.
        address: The address of a running Ray ("auto", "host:6379", "ray://host:10001"); None starts one here.
        options: Further keywords for ray.init.
    """

    def __init__(
        self, cores: int | None = None, address: str | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.cores, self.address, self.options = cores, address, dict(options or {})
        self.initialized = False
        self.reused = False
        self.address_info: dict[str, Any] = {}
        self._job: tuple[str, ...] = ()

    def init(self) -> dict[str, Any]:
        """Start Ray or connect to it; a Ray that this process is already connected to is reused.

        Returns:
            The address information, as ray.init gives it.
        """
        if self.initialized:
            return self.address_info
        _knock(self.address)
        prepare(starts=self.address is None)
        ray = _ray()
        self.reused = ray.is_initialized()
        if not self.reused:
            self._start(ray)
        self.address_info, self._job = _address_info(ray), _job(ray)
        self.initialized = True
        return self.address_info

    def _start(self, ray: Any) -> None:
        quiet = {"logging_level": logging.WARNING}
        if self.address is None:
            # address="local": never join, by chance, a Ray that another program of this user has started.
            ours: dict[str, Any] = {"address": "local", "num_cpus": self.cores, "include_dashboard": False}
        else:
            ours = {"address": self.address}
        try:
            ray.init(**{**quiet, **ours, **self.options})
        except Exception as error:
            ray.shutdown()
            where = f"reach Ray at {self.address!r}" if self.address else "start Ray on this machine"
            raise OrcaError(f"could not {where}: {type(error).__name__}: {error}") from error

    def stop(self) -> None:
        """Leave Ray, and end it where it was started here; one that was reused stays. More than once is fine."""
        if self.initialized and not self.reused and _job(_ray()) == self._job:
            with _none_left() if self.address is None else contextlib.nullcontext():
                _ray().shutdown()
        self.initialized = False
        self.address_info = {}

    @property
    def num_nodes(self) -> int:
        """Return how many nodes are alive."""
        return len(self._alive())

    @property
    def total_cores(self) -> int:
        """Return the CPUs of all nodes together."""
        return int(sum(node["Resources"].get("CPU", 0) for node in self._alive()))

    @property
    def driver_host(self) -> str:
        """Return the address of the node that this process is on."""
        return str(self.address_info.get("node_ip_address") or _ray().util.get_node_ip_address())

    def _alive(self) -> list[dict[str, Any]]:
        if not self.initialized:
            raise ArgumentError("this Ray context is stopped. Call init_orca_context(runtime='ray').")
        return [node for node in _ray().nodes() if node["Alive"]]


@dataclass(frozen=True)
class Share:
    """Say what Ray gets of a Spark cluster.

    Attributes:
        nodes: Ray nodes; None is one for each executor.
        cores: CPUs of each; None is all but one of an executor's, which Spark keeps.
        object_store: Bytes of each node's object store; None is 30 % of an executor's memory, beside it.
        env: Environment variables of Ray's processes.
        params: Further options of `ray start`, with or without their dashes; "temp-dir" is the folder for Ray's files.
        dashboard: Whether to start Ray's dashboard, which listens on all interfaces of the driver.
        system_config: Ray's internal settings.
        verbose: Whether Ray may say all it has to say.
    """

    nodes: int | None = None
    cores: int | None = None
    object_store: str | int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    dashboard: bool = False
    system_config: Mapping[str, Any] = field(default_factory=dict)
    verbose: bool = False

    def __post_init__(self) -> None:
        for word, value in {"num_ray_nodes": self.nodes, "ray_node_cpu_cores": self.cores}.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ArgumentError(f"{word} must be a positive int; got {value!r}.")
        for word, told in {"env": self.env, "extra_params": self.params, "system_config": self.system_config}.items():
            if not isinstance(told, Mapping):
                raise ArgumentError(f"{word} must be a dict; got {type(told).__name__}.")
        if self.object_store is not None:
            size_of(self.object_store, "object_store_memory")
        object.__setattr__(self, "env", {str(name): str(value) for name, value in self.env.items()})


class RayOnSpark(OrcaRayContext):
    """Be the Ray that init_orca_context(init_ray_on_spark=True) puts on the executors of Spark.

    Args:
        session: The session whose executors get Ray's nodes.
        executors: How many there are.
        width: Cores of each.
        share: What Ray gets of them.

    Raises:
        ArgumentError: Not so much can be had of this Spark.
    """

    def __init__(self, session: SparkSession, executors: int, width: int, share: Share) -> None:
        super().__init__(cores=share.cores)
        self.session, self.share = session, share
        self.nodes, self.node_cores = seats(executors, width, share)
        self.width = width
        self._life = ExitStack()

    @property
    def held(self) -> int:
        """Return how many cores of Spark Ray's nodes hold."""
        return self.nodes * self.node_cores if self.initialized else 0

    @property
    def num_nodes(self) -> int:
        """Return how many worker nodes are alive; the head beside the driver has no CPUs and takes no workers."""
        return sum(1 for node in self._alive() if node["Resources"].get("CPU", 0))

    def init(self) -> dict[str, Any]:
        """Start the nodes and connect to them.

        Returns:
            The address information, as ray.init gives it.
        """
        if self.initialized:
            return self.address_info
        prepare(starts=True)
        ray = _ray()
        if ray.is_initialized():
            raise ArgumentError(
                "this process is connected to a Ray already, so none can be put on Spark. Call ray.shutdown() (or "
                "stop_orca_context()) before init_orca_context(init_ray_on_spark=True)."
            )
        try:
            self._set_up(ray)
        except BaseException:
            self._life.close()
            raise
        self.address_info = _address_info(ray)
        self.initialized = True
        _on_spark.append(self)
        return self.address_info

    def stop(self) -> None:
        """Leave Ray and end its nodes; Spark stays. More than once is fine."""
        if self.initialized:
            _on_spark.remove(self)
            self.initialized = False
            self.address_info = {}
            self._life.close()

    def _set_up(self, ray: Any) -> None:
        secret = _secret()
        here = {**secret, "PATH": _own_commands(), **self.share.env}
        # Tasks of Python get these with their function: they need not be in Spark's settings, which others can read.
        # They stay, as Ray starts a node anew when it is lost.
        tasks = self.session.sparkContext.environment
        self._life.enter_context(_set(tasks, {**self._environment(), **secret}))
        self._life.enter_context(_set(tasks, {"PATH": _commands_of(self.session, ray.__version__)}))
        with _set(os.environ, here), _hushed(self.share.verbose), _quick_head(self.share.verbose):
            from ray.util.spark import setup_ray_cluster

            self._life.callback(_end_cluster, self.share.verbose)
            try:
                address, _ = setup_ray_cluster(**self._arguments())
            except Exception as error:
                raise _explained(error) from error
            self._life.callback(ray.shutdown)
            ray.init(address=address, logging_level=logging.WARNING)
        up = sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0))
        if up < self.nodes:
            raise TooFewSlots(
                f"{self.nodes} Ray node(s) of {self.node_cores} core(s) were to start on Spark, and {up} did in two "
                "minutes: other jobs hold its cores. End them, or ask for less with num_ray_nodes and "
                "ray_node_cpu_cores."
            )

    def _environment(self) -> dict[str, str]:
        """Return the variables of the tasks that are Ray's nodes."""
        told = {name: os.environ[name] for name in DEFAULTS}
        # Executors may have other cores than their machine.
        return {**told, "RAY_ON_SPARK_WORKER_CPU_CORES": str(self.width), **self.share.env}

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of setup_ray_cluster."""
        conf = self.session.sparkContext.getConf()
        params = {name.lstrip("-").replace("-", "_"): value for name, value in self.share.params.items()}
        root = params.pop("temp_dir", None)
        config = {"system_config": dict(self.share.system_config)} if self.share.system_config else {}
        return {
            "max_worker_nodes": self.nodes,
            "min_worker_nodes": self.nodes,
            "num_cpus_worker_node": self.node_cores,
            # Both must be given, or Ray takes all that the machine has.
            "num_gpus_worker_node": int(conf.get("spark.executor.resource.gpu.amount", None) or 0),
            "object_store_memory_worker_node": _store(self.share, conf.get("spark.executor.memory", None)),
            "head_node_options": {**params, **config, "include_dashboard": self.share.dashboard},
            "worker_node_options": params,
            "ray_temp_root_dir": root,
        }


_on_spark: list[RayOnSpark] = []  # those that are up: one, or none


def size_of(memory: str | int, word: str) -> int:
    """Return a size in bytes: an int, or a number with a unit k, m, g or t.

    Raises:
        ArgumentError: It is neither; `word` names the argument.
    """
    told = re.fullmatch(r"\s*([1-9]\d*)\s*([kmgt]?)b?\s*", str(memory).lower())
    if told is None or isinstance(memory, bool):
        raise ArgumentError(f"{word} must be bytes, or a number with a unit as '2g' or '512m'; got {memory!r}.")
    return int(told.group(1)) * UNITS[told.group(2)]


def beside(slots: int, share: Share) -> OrcaRayContext:
    """Return the Ray for a local Spark, which has no executors to put it on: one beside it, on the same cores."""
    options = {
        "object_store_memory": size_of(share.object_store, "object_store_memory") if share.object_store else None,
        "include_dashboard": share.dashboard,
        "_system_config": dict(share.system_config) or None,
        "runtime_env": {"env_vars": dict(share.env)} if share.env else None,
    }
    return OrcaRayContext(share.cores or slots, None, {k: v for k, v in options.items() if v is not None})


def held(session: Any) -> int:
    """Return how many task slots of a session are taken by the nodes of a Ray on it."""
    return sum(ray.held for ray in _on_spark if ray.session is session)


def _store(share: Share, executor_memory: str | None) -> int | None:
    """Return the bytes of a node's object store; None leaves it to Ray."""
    if share.object_store is not None:
        return size_of(share.object_store, "object_store_memory")
    try:
        return max(LEAST_STORE, int(STORE_SHARE * size_of(executor_memory or "1g", "spark.executor.memory")))
    except ArgumentError:
        return None


def memory_of(share: Share, nodes: int, cores: int, executor_memory: str) -> int:
    """Return the bytes that so many Ray nodes of so many cores take beside an executor."""
    return nodes * ((_store(share, executor_memory) or LEAST_STORE) + NODE_MEMORY + cores * WORKER_MEMORY)


def seats(executors: int, width: int, share: Share) -> tuple[int, int]:
    """Return how many nodes Ray gets and the cores of each.

    Raises:
        ArgumentError: They do not fit, or would leave Spark nothing to compute with.
    """
    cores = share.cores or width - 1
    if cores < 1:
        raise ArgumentError(
            f"init_ray_on_spark=True needs executors of 2 cores or more, as Spark keeps one of each; got "
            f"cores={width}. Pass a larger cores=, or use runtime='ray' for a Ray without Spark."
        )
    if cores > width:
        raise ArgumentError(
            f"ray_node_cpu_cores must not be more than the {width} core(s) of an executor; got {cores}."
        )
    nodes = share.nodes or executors
    room = executors * (width // cores)
    if nodes > room:
        raise ArgumentError(
            f"num_ray_nodes={nodes} with ray_node_cpu_cores={cores} does not fit on {executors} executor(s) of {width} "
            f"core(s): {room} node(s) do."
        )
    if nodes * cores >= executors * width:
        raise ArgumentError(
            f"{nodes} Ray node(s) of {cores} core(s) take all {executors * width} core(s) of Spark, which could then "
            "compute nothing. Pass a smaller ray_node_cpu_cores or num_ray_nodes, or a larger cores."
        )
    return nodes, cores


def init_words() -> list[str]:
    """Return the keywords that ray.init takes."""
    return [name for name in inspect.signature(_ray().init).parameters if name != "kwargs"]


def prepare(starts: bool) -> None:
    """Set what Ray reads from the environment when it is imported; what the user has set stays."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    told = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if starts and not told and "ray" not in sys.modules:
        # Kept until the process ends: Ray reads the token once.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


# On Spark


def _secret() -> dict[str, str]:
    """Return the variables by which Ray's nodes prove that they belong together; none where the user wants none."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        return {}
    token, path = os.environ.get("RAY_AUTH_TOKEN"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token is None and path is not None:
        with open(path) as file:
            token = file.read().strip()
    if token is None:
        token = secrets.token_hex(32)
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", token
        with contextlib.suppress(ImportError, AttributeError):  # The program imported ray first: let it look again.
            raylet: Any = importlib.import_module("ray._raylet")
            raylet.AuthenticationTokenLoader.instance().reset_cache()
            raylet.Config.initialize("")
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


@contextmanager
def _set(where: Any, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set entries of a dict of strings, and put back what was there."""
    before = {name: where.get(name) for name in wanted}
    where.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                where.pop(name, None)
            else:
                where[name] = value


def _own_commands() -> str:
    """Return a PATH on which Ray finds its own command, beside this interpreter."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    if shutil.which("ray", path=path) is None:
        raise MissingDependency(
            f"Ray on Spark starts its nodes with the command 'ray', which is not beside {sys.executable} nor on the "
            "PATH. Install ray into the environment of this interpreter: pip install 'orca-dl[ray]'"
        )
    return path


def _commands_of(session: SparkSession, version: str) -> str:
    """Return a PATH for executors on which Ray finds its own command, after a look that they have this Ray."""
    context = session.sparkContext
    folder = os.path.dirname(context.pythonExec)

    def look(_: int) -> tuple[str, str, str]:
        import os
        import shutil

        path = os.pathsep.join([*([folder] if folder else []), os.environ.get("PATH", os.defpath)])
        try:
            import ray
        except ImportError as error:
            return path, "", str(error)
        return path, ray.__version__, "" if shutil.which("ray", path=path) else "no command 'ray' on their PATH"

    ((path, found, wrong),) = context.parallelize([0], 1).map(look).collect()
    if wrong or found != version:
        raise OrcaError(
            f"Spark's executors must have the Ray of this program, {version}; they have {found or 'none'}"
            f"{f' ({wrong})' if wrong else ''}. Install it where their Python ({context.pythonExec}) is, or ship the "
            "environment along."
        )
    return path


@contextmanager
def _hushed(verbose: bool) -> Iterator[None]:
    """Keep Ray's log to errors, unless it may speak."""

    def grave(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    names = (
        "ray.util.spark",
        "ray.util.spark.utils",
        "ray.autoscaler._private.spark.spark_job_server",
        "ray._private.worker",
    )
    loggers = [] if verbose else [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(grave)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Spark session is not provided")  # pyspark, about Ray's threads
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(grave)


@contextmanager
def _quick_head(verbose: bool) -> Iterator[None]:
    """Let the head node be waited for until it listens, and let it be silent.

    Ray itself waits 20 seconds, no more and no less, and writes all that the head says to standard output. Where a
    release of Ray has no such places, it does as it likes.
    """
    from ray.util.spark import cluster_init

    places = ("_start_ray_head_node", "_RAY_HEAD_STARTUP_TIMEOUT")
    if verbose or not all(hasattr(cluster_init, place) for place in places):
        yield
        return
    before = [getattr(cluster_init, place) for place in places]
    for place, value in zip(places, (_start_head, 0.0), strict=True):
        setattr(cluster_init, place, value)
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(cluster_init, place, value)


def _start_head(command: list[str], synchronous: bool, extra_env: Mapping[str, str]) -> tuple[Any, deque[str]]:
    """Start the head node; return its process, when it listens, and the end of what it says."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **extra_env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C in a notebook or terminal is for the program.
    )
    said: deque[str] = deque(maxlen=100)
    started = threading.Event()
    threading.Thread(target=_listen, args=(process, said, started), daemon=True).start()
    told = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    where = (told["--node-ip-address"], int(told["--port"]))
    deadline = time.monotonic() + HEAD_PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(where, timeout=1):
            started.wait(HEAD_WORDS)  # It listens before all of its parts are there.
            break
        time.sleep(0.1)
    if process.poll() is not None:  # Ray will say so, and forgets this file.
        with contextlib.suppress(OSError, KeyError):
            os.unlink(f"{told['--temp-dir']}.lock")
    return process, said


def _listen(process: subprocess.Popen[str], said: deque[str], started: threading.Event) -> None:
    for line in process.stdout or ():
        said.append(line)
        if "Ray runtime started" in line:
            started.set()
        log.debug("Ray's head node: %s", line.rstrip())


def _end_cluster(verbose: bool) -> None:
    """End Ray's nodes on Spark and see the head gone."""
    from ray.util.spark import cluster_init, shutdown_ray_cluster

    cluster = cluster_init._active_ray_cluster
    if cluster is None:
        return
    with _hushed(verbose), _none_left():
        try:
            shutdown_ray_cluster()
        except Exception as error:  # Spark is gone already, and Ray's nodes with it.
            log.debug("ending Ray on Spark: %s", error)
            cluster_init._active_ray_cluster = None
            with contextlib.suppress(OSError):
                cluster.head_proc.terminate()
        _see_gone(cluster.head_proc)
    with contextlib.suppress(OSError):
        os.unlink(f"{cluster.temp_dir}.lock")


@contextmanager
def _none_left() -> Iterator[None]:
    """See that processes of Ray below this one, which is about to end it, do end: its agents do not always."""
    folder = os.path.dirname(_ray().__file__)
    ours = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(folder in word for word in process.cmdline()):
                ours.append(process)
    yield
    for process in psutil.wait_procs(ours, timeout=LEFT_PATIENCE)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _see_gone(process: Any) -> None:
    try:
        process.wait(END_PATIENCE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _explained(error: BaseException) -> OrcaError:
    """Return what to raise for an error of Ray's: how its story begins and ends; all of it is the cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "ray[client]" in lines[-1]:
        return MissingDependency.of("grpcio", "ray", "Ray on Spark")
    return OrcaError(f"could not start Ray on Spark: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}")


# At an address


def _knock(address: str | None) -> None:
    """Raise where nobody listens at an address: Ray itself would try for half a minute."""
    told = re.fullmatch(r"(?:ray://)?\[?([^\[\]]+?)\]?:(\d+)", address or "")
    if told is None:
        return
    try:
        socket.create_connection((told.group(1), int(told.group(2))), timeout=10).close()
    except OSError as error:
        raise OrcaError(f"could not reach Ray at {address!r}: {error}. Is it running there?") from None


def _address_info(ray: Any) -> dict[str, Any]:
    """Return the addresses of the Ray this process is connected to."""
    context = ray.get_runtime_context()
    info = {"address": getattr(context, "gcs_address", None), "node_id": context.get_node_id()}
    node = getattr(ray._private.worker, "_global_node", None)
    return {**info, **(node.address_info if node is not None else {})}


def _job(ray: Any) -> tuple[str, ...]:
    """Return what tells this connection to Ray from one that the program made after it; nothing without one."""
    if not ray.is_initialized():
        return ()
    context = ray.get_runtime_context()
    return str(context.get_node_id()), str(context.get_job_id())


def _ray() -> Any:
    """Return the module ray, or say how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependency.of("ray", "ray", "runtime='ray'") from error
    return ray
