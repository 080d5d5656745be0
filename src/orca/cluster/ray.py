"""Ray: a cluster of ours on this machine, one at an address, or one on the executors of a Spark. Owns how Ray is
started, kept quiet and ended, and how many of a Spark's cores it takes.

On Spark, nodes are started by Ray's own command `ray start`: a head without CPUs beside the driver, and a Spark job
with a task for each worker node, which holds cores of Spark for as long as it lives.

Not `ray.util.spark`: untested on YARN, nodes without a token, a dashboard open to the network, fixed times of sleep.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import uuid
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from orca.cluster import guard
from orca.cluster import spark as _spark
from orca.cluster.news import knock, wait_until
from orca.cluster.ray_access import DEFAULTS, about_token, on_loopback, prepare, secret_variables
from orca.cluster.spark import SessionOptions, set_entries
from orca.cluster.words import checked_cores
from orca.core.arguments import refuse_unknown
from orca.core.network import resolved
from orca.core.reuse import SINGLE_USE
from orca.core.units import size_of
from orca.errors import ArgumentError, MissingDependency, OrcaError, TooFewSlots, near, recorded_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

RUNTIMES = ("spark", "ray")
# The keywords of a Ray on Spark, here and in init_orca_context.
ON_SPARK = (
    "redis_port", "redis_password", "object_store_memory", "verbose", "env", "extra_params", "num_ray_nodes",
    "ray_node_cpu_cores", "include_webui", "system_config",
)  # fmt: skip
HEAD_PATIENCE = 60.0  # seconds in which the head node must be up
NODES_PATIENCE = 120.0  # seconds in which the worker nodes must be up
NODE_MEMORY, WORKER_MEMORY = 512 << 20, 768 << 20  # of a node's own processes, and of a worker with torch in it
SLOT_PATIENCE = 4.0  # seconds in which executors that are still starting may appear
LEFT_PATIENCE = 5.0  # seconds for processes of an ended Ray to end by themselves
HEAD_STORE = 1 << 30  # bytes of the object store beside the driver
STORE_SHARE = 0.3  # of an executor's memory, for Ray's object store beside it
UP = "Ray runtime started"  # the head node's words
NO_DASHBOARD = {"include-dashboard": "false"}
LEAST_STORE = 100 << 20  # bytes; Ray refuses less than 75 MB


class OrcaRayContext:
    """The Ray of this program: alone, or on the Spark that is up. The newest one is the one that `get` answers with.

    Args:
        runtime: "spark": on the executors of the Spark that is up, or beside one that is local. "ray": a Ray alone.
        cores: The CPUs of a Ray alone that is started here; None takes all.
        num_nodes: Accepted; a Ray that is started here has one node, and one on Spark takes `num_ray_nodes`.
        options: On Spark: num_ray_nodes, ray_node_cpu_cores, object_store_memory, env, extra_params, include_webui,
            system_config, verbose (and sc, redis_port, redis_password, which nothing needs). Alone: address ("auto",
            "host:6379", "ray://host:10001") of a running one, and the arguments of ray.init.

    Raises:
        ArgumentError: An argument is wrong.
    """

    def __init__(
        self, runtime: str = "spark", cores: int | str | None = None, num_nodes: int = 1, **options: Any
    ) -> None:
        if runtime not in RUNTIMES:
            raise ArgumentError(
                f"runtime can only be spark or ray; got {runtime!r}.{near(runtime, RUNTIMES)}", code="unknown-runtime"
            )
        self.runtime, self.cores, self.reused = runtime, checked_cores(cores, star=True), False
        self.options = {name: value for name, value in options.items() if value is not None and name != "sc"}
        if runtime == "spark":
            refuse_unknown(self.options, ON_SPARK, "OrcaRayContext()")
        self.share = SessionOptions(**(self.options if runtime == "spark" else {}))
        self.address_info: dict[str, Any] = {}
        self._place: RayAlone | RayOnSpark | None = None  # where it runs; None while it does not
        self._job: tuple[str, ...] = ()
        self._pid = os.getpid()
        _contexts.append(self)

    @classmethod
    def get(cls, initialize: bool = True) -> OrcaRayContext:
        """Return the context of this program's Ray, which `initialize` starts if it is not up."""
        context = known()
        if context is None:
            raise ArgumentError("No active RayContext. Call init_orca_context() first.", code="no-ray-context")
        if initialize:
            context.init()
        return context

    @property
    def initialized(self) -> bool:
        """Say whether this Ray is up, and this process connected to it."""
        return self._place is not None and _job(_ray()) == self._job

    def init(self, driver_cores: int = 0) -> dict[str, Any]:
        """Start Ray or connect to it; a Ray that this process is already connected to is reused.

        Args:
            driver_cores: Accepted; the driver takes no CPUs of Ray.

        Returns:
            The address information, as ray.init gives it.

        Raises:
            ArgumentError: There is no Spark to put it on, or Spark is too small for it.
        """
        if self.initialized:
            return self.address_info
        self.stop()  # the rest of one whose connection the program has ended
        self.reused = _connected()
        place = RayAlone(None, {}) if self.reused else self._seat()
        prepare(starts=place.starts)
        ray = _ray()
        connection = None if self.reused else place.start(ray)
        self._place, self.address_info, self._job = place, _address_info(ray, connection), _job(ray)
        self._pid = os.getpid()
        _contexts.append(self)
        atexit.register(self.stop)
        return self.address_info

    def stop(self) -> None:
        """Leave Ray, and end it where it was started here; one that was reused stays. More than once is fine."""
        place, self._place, self.address_info = self._place, None, {}
        while self in _contexts:
            _contexts.remove(self)
        if place is not None and not self.reused and self._pid == os.getpid():
            place.stop(connected=_job(_ray()) == self._job)

    @property
    def num_nodes(self) -> int:
        """Return how many nodes can have workers: all that are alive but a head without CPUs."""
        return len(self._nodes())

    @property
    def num_ray_nodes(self) -> int:
        """Return num_nodes, under the name that older programs know."""
        return self.num_nodes

    @property
    def total_cores(self) -> int:
        """Return the CPUs of all nodes together."""
        return int(sum(node["Resources"].get("CPU", 0) for node in self._nodes()))

    @property
    def ray_node_cpu_cores(self) -> int:
        """Return the CPUs of a node."""
        return self.total_cores // self.num_nodes

    @property
    def redis_address(self) -> str:
        """Return the address at which Ray is joined, under the name that it had while Ray stood on Redis."""
        return str(self.address_info.get("address", ""))

    @property
    def driver_host(self) -> str:
        """Return the address of the node that this process is on."""
        return str(self.address_info.get("node_ip_address") or _ray().util.get_node_ip_address())

    def _nodes(self) -> list[dict[str, Any]]:
        if not self.initialized:
            raise ArgumentError(
                "this Ray context is not up. Call its init(), or init_orca_context().", code="ray-not-up"
            )
        nodes = [node for node in _ray().nodes() if node["Alive"]]
        return [node for node in nodes if node["Resources"].get("CPU", 0)] or nodes

    def _seat(self) -> RayAlone | RayOnSpark:
        """Return the place of this Ray, if it started now."""
        if self.runtime == "ray":
            cores = self.cores if isinstance(self.cores, int) else None
            return RayAlone(cores, self.options)
        session = _spark.active_session()
        if session is None:
            raise ArgumentError(
                "a Ray on Spark needs a Spark, and none is up. Call init_orca_context() first.", code="no-spark-for-ray"
            )
        if _spark.is_connect(session):
            raise ArgumentError(
                "a Ray on Spark needs a SparkContext, which a Spark Connect session has not. Call "
                "init_orca_context(runtime='ray') for a Ray without Spark.",
                code="connect-has-no-context",
            )
        executors, width = _spark.nodes(session), _spark.slots(session) or 1
        if not _spark.is_local(session):
            return RayOnSpark(session, executors, max(1, width // executors), self.share)
        if (self.share.num_ray_nodes or 1) > 1:
            words = f"a local Spark has one Ray node; num_ray_nodes={self.share.num_ray_nodes} is ignored."
            warnings.warn(words, stacklevel=3)
        return _beside(width, self.share)


class RayAlone:
    """A Ray without Spark: started on this machine, or joined at an address.

    Args:
        cores: The CPUs of one that is started; None takes all.
        options: Keywords of ray.init.
    """

    def __init__(self, cores: int | None, options: Mapping[str, Any]) -> None:
        self.cores, self.options = cores, dict(options)
        self.address = self.options.pop("address", None)
        self._folder = ""  # of the session that was started here

    @property
    def starts(self) -> bool:
        """Say whether it is started here."""
        return self.address is None

    def start(self, ray: Any) -> Any:
        """Start or join it; return the result of ray.init."""
        keywords = [name for name in inspect.signature(ray.init).parameters if name != "kwargs"]
        given = [name for name in self.options if not name.startswith("_")]
        refuse_unknown(given, keywords, "init_orca_context(runtime='ray')")
        _knock(self.address)
        # address="local": never join, by chance, a Ray that another program of this user has started.
        local = {"address": "local", "num_cpus": self.cores, "include_dashboard": False}
        ours = local if self.starts else {"address": self.address}
        try:
            with on_loopback() if self.starts else contextlib.nullcontext():
                connection = ray.init(**{"logging_level": logging.WARNING, **ours, **self.options})
        except Exception as error:
            ray.shutdown()
            where = "start Ray on this machine" if self.starts else f"join Ray at {self.address!r}"
            hint = f". {about_token()}" if not self.starts and isinstance(error, ConnectionError) else ""
            raise OrcaError(
                f"could not {where}: {type(error).__name__}: {error}{hint}", code="ray-not-started"
            ) from error
        self._folder = connection.address_info["session_dir"] if self.starts else ""
        return connection

    def stop(self, connected: bool) -> None:
        """Leave it, and end it where it was started here; `connected` says whether the connection is still this one."""
        if connected:
            with _none_left(self._folder):
                _ray().shutdown()


class RayOnSpark:
    """A Ray on the executors of Spark.

    Args:
        session: The session whose executors get Ray's nodes.
        executors: How many there are.
        width: Cores of each.
        options: The resources that Ray gets.

    Raises:
        ArgumentError: Not so much can be had of this Spark.
    """

    starts = True

    def __init__(self, session: SparkSession, executors: int, width: int, options: SessionOptions) -> None:
        self.session, self.share = session, options
        self.nodes, self.cpus, self.hold = seats(executors, width, options)
        self._life, self._folder = ExitStack(), ""

    @property
    def held(self) -> int:
        """Return how many cores of Spark Ray's nodes hold."""
        return self.nodes * self.hold

    def start(self, ray: Any) -> Any:
        """Start the nodes and connect to them; return the result of ray.init."""
        try:
            return self._set_up(ray)
        except BaseException:
            self.stop()
            raise

    def stop(self, connected: bool = True) -> None:
        """Leave Ray, where the connection is still this one, and end its nodes; Spark stays."""
        with _none_left(self._folder):
            if connected:
                _ray().shutdown()
            self._life.close()

    def _set_up(self, ray: Any) -> Any:
        context, share, secret = self.session.sparkContext, self.share, secret_variables()
        conf = context.getConf()
        host = resolved(str(conf.get("spark.driver.host")))
        port, client = _free_ports(host, 2)
        params = {name.lstrip("-").replace("_", "-"): value for name, value in (share.extra_params or {}).items()}
        # Paths of sockets must be short.
        folder = self._folder = tempfile.mkdtemp(prefix="ray-", dir=params.pop("temp-dir", "/tmp"))
        self._life.callback(shutil.rmtree, folder, ignore_errors=True)
        # Tasks of Python get these with their function: they need not be in Spark's settings, which others can read.
        variables = {**{name: os.environ[name] for name in DEFAULTS}, **_variables(share), **secret}
        set_entries(context.environment, variables, self._life)
        head = {"head": None, "node-ip-address": host, "port": port, "ray-client-server-port": client, "num-cpus": 0}
        head |= {"num-gpus": 0, "object-store-memory": HEAD_STORE, "temp-dir": folder}
        head |= {"include-dashboard": "true", "dashboard-host": "127.0.0.1"} if share.include_webui else NO_DASHBOARD
        if share.system_config:
            head["system-config"] = json.dumps(dict(share.system_config))
        self._start_head(_command({**head, **params}), {**os.environ, **variables}, folder)
        set_entries(os.environ, {"RAY_ADDRESS": f"{host}:{port}"}, self._life)
        gpus = int(conf.get("spark.executor.resource.gpu.amount", None) or 0)
        node = {"address": f"{host}:{port}", "num-cpus": self.cpus, "num-gpus": gpus}
        if store := _store(share, conf.get("spark.executor.memory", None)):
            node["object-store-memory"] = store
        nodes = Nodes(self.session, RayNode(tuple(_command({**node, **params})), folder, gpus, ray.__version__))
        self._life.callback(nodes.stop)
        nodes.start(self.nodes, self.hold)
        level = logging.INFO if share.verbose else logging.WARNING
        connection = ray.init(address=f"{host}:{port}", logging_level=level)
        self._wait_for(nodes, ray)
        return connection

    def _start_head(self, command: list[str], env: dict[str, str], folder: str) -> None:
        path = Path(folder, "head.log")
        head = guard.start(command, env, str(path), folder)
        self._life.callback(guard.end, head)
        # It listens before all of its parts are there, and says so when they are.
        wait_until(lambda: head.poll() is not None or UP in path.read_text(errors="replace"), HEAD_PATIENCE, every=0.1)
        text = path.read_text(errors="replace")
        if self.share.verbose:
            sys.stdout.write(text)
        if head.poll() is not None or UP not in text:
            state = f"was not up in {HEAD_PATIENCE:.0f} s" if head.poll() is None else "ended"
            raise OrcaError(
                f"could not start Ray on Spark: its head node {state}: {_last_line(text)}", code="ray-not-started"
            )

    def _wait_for(self, nodes: Nodes, ray: Any) -> None:
        def up() -> int:
            return sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0))

        wait_until(lambda: nodes.failure or up() >= self.nodes, NODES_PATIENCE, every=0.2)
        if nodes.failure:
            raise OrcaError(f"could not start Ray on Spark: {nodes.failure}", code="ray-not-started")
        if up() < self.nodes:
            raise TooFewSlots(
                f"{self.nodes} Ray node(s) of {self.cpus} core(s) were to start on Spark, and {up()} did in two "
                "minutes: other jobs hold its cores. End them, or ask for less with num_ray_nodes and "
                "ray_node_cpu_cores."
            )


@dataclass(frozen=True)
class RayNode:
    """A worker node of Ray inside a Spark task: it ends with the task, and the task with it.

    Args:
        command: The arguments of the executor's own interpreter.
        folder: Ray's folder, the same on all machines.
        gpus: GPUs that Spark gives the task.
        version: The driver's Ray.
    """

    command: tuple[str, ...]
    folder: str
    gpus: int
    version: str

    def __call__(self, number: int) -> str:
        """Run the node; return why it cannot be started at all. One that ends is an error: Spark starts it anew."""
        from pyspark import TaskContext

        try:
            version = importlib.metadata.version("ray")
        except importlib.metadata.PackageNotFoundError:
            version = "none"
        if version != self.version:
            return (
                f"Spark's executors must have the Ray of this program, {self.version}; they have {version}. Install it "
                f"where their Python ({sys.executable}) is, or ship the environment along."
            )
        env = os.environ | {SINGLE_USE: "1"}  # the executor's own tasks need the memory
        if self.gpus:
            visible = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
            gpus = cast(TaskContext, TaskContext.get()).resources()["gpu"].addresses
            env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[int(gpu)] if visible[0] else gpu for gpu in gpus)
        if stranger := guard.claim(self.folder):
            return stranger
        path = Path(self.folder, f"node-{number}.log")
        node = guard.start([sys.executable, *self.command[1:]], env, str(path), self.folder)
        try:
            node.wait()
            words = _last_line(path.read_text(errors="replace"))
            raise OrcaError(f"a node on {socket.gethostname()} ended: {words}", code="ray-node-ended")
        finally:
            guard.end(node)


class Nodes:
    """The Spark jobs of one task each that are Ray's worker nodes.

    Args:
        session: The session.
        node: The node that each task runs.
    """

    def __init__(self, session: SparkSession, node: RayNode) -> None:
        self.context, self.node, self.failure = session.sparkContext, node, ""
        self._group, self._stopped = f"orca-ray-{uuid.uuid4().hex[:8]}", False
        self._threads: list[threading.Thread] = []

    def start(self, count: int, cores: int) -> None:
        """Start so many nodes in the background, each of which holds so many cores of Spark."""
        from pyspark import InheritableThread
        from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

        needs = TaskResourceRequests().cpus(cores)
        if self.node.gpus:
            needs.resource("gpu", self.node.gpus)
        profile = ResourceProfileBuilder().require(needs).build
        for number in range(count):
            self._threads.append(InheritableThread(target=self._run, args=(number, profile), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """End the jobs, and with them the nodes."""
        self._stopped = True
        with contextlib.suppress(Exception):  # Spark is gone already, and Ray's nodes with it.
            self.context.cancelJobGroup(self._group)
        for thread in self._threads:
            thread.join(LEFT_PATIENCE)

    def _run(self, number: int, profile: Any) -> None:
        try:
            self.context.setJobGroup(self._group, "nodes of Ray", interruptOnCancel=True)
            (reason,) = self.context.parallelize([number], 1).withResources(profile).map(self.node).collect()
        except Exception as error:
            reason = str(recorded_in(str(error)) or str(error).partition("\n")[0])
        if not self._stopped:
            self.failure = reason
            log.warning("Ray on Spark lost a node: %s", reason)


_contexts: list[OrcaRayContext] = []  # those that are up or to be started, the newest last


def known() -> OrcaRayContext | None:
    """Return the context that is up, else the one that would be started; None where there is nothing to put one on."""
    for context in reversed(_contexts):
        if context.initialized:
            return context
    if _contexts:
        return _contexts[-1]
    return OrcaRayContext() if _connected() or _spark.active_session() is not None else None


def up() -> OrcaRayContext | None:
    """Return the context that is up."""
    context = known() if _contexts else None
    return context if context is not None and context.initialized else None


def end(runtimes: Collection[str] = RUNTIMES) -> None:
    """Stop and forget the contexts of these runtimes."""
    for context in [context for context in reversed(_contexts) if context.runtime in runtimes]:
        context.stop()


def bring_up() -> None:
    """Start the Ray of this program, where there is something to put it on.

    It is done before the engine is loaded, as Ray reads its settings when it is imported.
    """
    if not _connected() and (context := known()) is not None:
        context.init()


def _connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _beside(slots: int, options: SessionOptions) -> RayAlone:
    """Return the Ray for a local Spark, which has no executors to put it on: one beside it, on the same cores."""
    store = options.object_store_memory
    keywords = {
        "object_store_memory": size_of(store, "object_store_memory") if store else None,
        "include_dashboard": options.include_webui,
        "_system_config": dict(options.system_config or {}) or None,
        "runtime_env": {"env_vars": _variables(options)} if options.env else None,
    }
    options_of_init = {name: value for name, value in keywords.items() if value is not None}
    return RayAlone(options.ray_node_cpu_cores or slots, options_of_init)


def _variables(options: SessionOptions) -> dict[str, str]:
    return {str(name): str(value) for name, value in (options.env or {}).items()}


def held(session: Any) -> int:
    """Return how many task slots of a session are taken by the nodes of a Ray on it."""
    places = {context._place for context in _contexts}
    return sum(place.held for place in places if isinstance(place, RayOnSpark) and place.session is session)


def free_slots(session: SparkSession, wanted: int = 0) -> int | None:
    """Return how many barrier tasks can run at once beside a Ray on this Spark; None if unknown.

    Args:
        session: The session of Spark.
        wanted: How many are needed: for some seconds, executors that are still starting are waited for.
    """

    def free() -> int | None:
        width = _spark.slots(session)
        return None if width is None else width - held(session)

    def enough() -> bool:
        return (now := free()) is None or now >= wanted

    wait_until(enough, 0.0 if _spark.is_local(session) else SLOT_PATIENCE, every=0.2)
    return free()


def _store(options: SessionOptions, executor_memory: str | None) -> int | None:
    """Return the bytes of a node's object store; None leaves it to Ray."""
    if options.object_store_memory is not None:
        return size_of(options.object_store_memory, "object_store_memory")
    try:
        return max(LEAST_STORE, int(STORE_SHARE * size_of(executor_memory or "1g", "spark.executor.memory")))
    except ArgumentError:
        return None


def memory_of(options: SessionOptions, nodes: int, cores: int, executor_memory: str) -> int:
    """Return the bytes that so many Ray nodes of so many cores take beside an executor."""
    return nodes * ((_store(options, executor_memory) or LEAST_STORE) + NODE_MEMORY + cores * WORKER_MEMORY)


def room(options: SessionOptions, executors: int, width: int | str, memory: str, at_once: bool) -> int:
    """Return the bytes beside each executor for Ray: as the user says, else as a Ray needs that starts at once.

    Raises:
        ArgumentError: Ray does not fit on these executors.
    """
    extra, together = options.extra_executor_memory_for_ray, 0
    if at_once and isinstance(width, int):
        count, cpus, hold = seats(executors, width, options)
        together = min(count, width // hold)  # Spark may put them on one executor.
    if extra is not None:
        return size_of(extra, "extra_executor_memory_for_ray")
    return memory_of(options, together, cpus, memory) if together else 0


def seats(executors: int, width: int, options: SessionOptions) -> tuple[int, int, int]:
    """Return how many nodes Ray gets, the CPUs of each, and the cores of Spark that each holds.

    A node has all cores of its executor unless told. It leaves one of them to Spark, which only computes now and then.
    """
    if width < 2:
        raise ArgumentError(
            f"a Ray on Spark needs executors of 2 cores or more, as Spark keeps one of each; got cores={width}. Pass a "
            "larger cores=, or use runtime='ray' for a Ray without Spark.",
            code="executors-too-small-for-ray",
        )
    cpus = options.ray_node_cpu_cores or width
    if cpus > width:
        raise ArgumentError(
            f"ray_node_cpu_cores must not be more than the {width} core(s) of an executor; got {cpus}.",
            code="too-many-ray-cores",
        )
    hold = min(cpus, width - 1)
    nodes = options.num_ray_nodes or executors
    room = executors * (width // hold)
    if nodes > room:
        raise ArgumentError(
            f"num_ray_nodes={nodes} with ray_node_cpu_cores={cpus} does not fit on {executors} executor(s) of {width} "
            f"core(s): {room} node(s) do.",
            code="too-many-ray-nodes",
        )
    if nodes * hold >= executors * width:
        raise ArgumentError(
            f"{nodes} Ray node(s) of {cpus} core(s) take all {executors * width} core(s) of Spark, which could then "
            "compute nothing. Pass a smaller ray_node_cpu_cores or num_ray_nodes, or a larger cores.",
            code="no-cores-left-for-spark",
        )
    return nodes, cpus, hold


# On Spark


def _command(options: Mapping[str, Any]) -> list[str]:
    """Return the command that starts a node: that of `ray start`, by this interpreter."""
    # Ports of its own choice, as several nodes may share a machine.
    options = {"min-worker-port": 0, "max-worker-port": 0, "dashboard-agent-listen-port": 0, **options}
    words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]


def _free_ports(host: str, count: int) -> list[int]:
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets = [stack.enter_context(socket.create_server((host, 0), family=family)) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it says nothing")


@contextmanager
def _none_left(folder: str) -> Iterator[None]:
    """End child processes of the Ray in a folder that outlive it, as its agents sometimes do.

    A Ray that the program itself has started works in another folder.
    """
    ours = []
    for process in psutil.Process().children(recursive=True) if folder else ():
        with contextlib.suppress(psutil.Error):
            if any(folder in word for word in process.cmdline()):
                ours.append(process)
    yield
    for process in psutil.wait_procs(ours, timeout=LEFT_PATIENCE)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()


# At an address


def _knock(address: str | None) -> None:
    """Raise where nobody listens at an address: Ray itself would try for half a minute."""
    place = re.fullmatch(r"(?:ray://)?(.+:\d+)", address or "")
    here, refusals = knock([place[1]], seconds=10.0) if place else ("", [])
    if refusals and not here:
        raise OrcaError(
            f"could not reach Ray at {address!r}: {refusals[0]}. Is it running there?", code="ray-unreachable"
        )


def _address_info(ray: Any, connection: Any) -> dict[str, Any]:
    """Return the addresses of the Ray this process is connected to; `connection` is the result of ray.init, if any."""
    context = ray.get_runtime_context()
    info = {"address": getattr(context, "gcs_address", None), "node_id": context.get_node_id()}
    return {**info, "node_ip_address": ray.util.get_node_ip_address(), **getattr(connection, "address_info", {})}


def _job(ray: Any) -> tuple[str, ...]:
    """Return the identity of the present connection to Ray; () without one."""
    if not ray.is_initialized():
        return ()
    context = ray.get_runtime_context()
    return str(context.get_node_id()), str(context.get_job_id())


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise MissingDependency.of("ray", "ray", "runtime='ray'") from error
    return ray
