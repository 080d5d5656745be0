"""Ray: a cluster of ours on this machine, one at an address, or one on the executors of a Spark. Owns how Ray is
started, kept quiet and ended, and what of a Spark's cores it takes.

On Spark, nodes are started by Ray's own command `ray start`: a head without CPUs beside the driver, and a Spark job
with a task for each worker node, which holds that node's cores for as long as it lives.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import psutil

from orca.cluster import guard
from orca.cluster.news import knock, wait_until
from orca.cluster.spark import SessionOptions, set_entries
from orca.core.units import size_of
from orca.errors import ArgumentError, MissingDependency, OrcaError, TooFewSlots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

HEAD_PATIENCE = 60.0  # seconds in which the head node must be up
NODES_PATIENCE = 120.0  # seconds in which the worker nodes must be up
NODE_MEMORY, WORKER_MEMORY = 512 << 20, 768 << 20  # of a node's own processes, and of a worker with torch in it
LEFT_PATIENCE = 5.0  # seconds for processes of an ended Ray to end by themselves
HEAD_STORE = 1 << 30  # bytes of the object store beside the driver
STORE_SHARE = 0.3  # of an executor's memory, for Ray's object store beside it
UP = "Ray runtime started"  # the head node's words
NO_DASHBOARD = {"include-dashboard": "false"}
LEAST_STORE = 100 << 20  # bytes; Ray refuses less than 75 MB
# What Ray reads from the environment of all its processes; what the user has set stays.
DEFAULTS = {
    # Under `uv run` Ray would upload the whole working folder to itself and build an environment from it.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",  # what its autoscaler is about to do, on the driver's standard output
    # Ray announces with a warning that it will stop hiding GPUs from tasks without one: take the new way now.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class OrcaRayContext:
    """The Ray that init_orca_context(runtime="ray") answers with.

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
        started = None if self.reused else self._start(ray)
        self.address_info, self._job = _address_info(ray, started), _job(ray)
        self.initialized = True
        return self.address_info

    def _start(self, ray: Any) -> Any:
        quiet = {"logging_level": logging.WARNING}
        if self.address is None:
            # address="local": never join, by chance, a Ray that another program of this user has started.
            ours: dict[str, Any] = {"address": "local", "num_cpus": self.cores, "include_dashboard": False}
        else:
            ours = {"address": self.address}
        try:
            return ray.init(**{**quiet, **ours, **self.options})
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


class RayOnSpark(OrcaRayContext):
    """The Ray that init_orca_context(init_ray_on_spark=True) puts on the executors of Spark.

    Args:
        session: The session whose executors get Ray's nodes.
        executors: How many there are.
        width: Cores of each.
        options: What Ray gets of them.

    Raises:
        ArgumentError: Not so much can be had of this Spark.
    """

    def __init__(self, session: SparkSession, executors: int, width: int, options: SessionOptions) -> None:
        super().__init__(cores=options.ray_node_cpu_cores)
        self.session, self.share = session, options
        self.nodes, self.node_cores = seats(executors, width, options)
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
            self.address_info = _address_info(ray, self._set_up(ray))
        except BaseException:
            self._close()
            raise
        self.initialized = True
        _on_spark.append(self)
        return self.address_info

    def stop(self) -> None:
        """Leave Ray and end its nodes; Spark stays. More than once is fine."""
        if self.initialized:
            _on_spark.remove(self)
            self.initialized = False
            self.address_info = {}
            self._close()

    def _close(self) -> None:
        with _none_left():
            self._life.close()

    def _set_up(self, ray: Any) -> Any:
        """Start head and nodes; return what ray.init returns."""
        context, share, secret = self.session.sparkContext, self.share, _secret()
        conf = context.getConf()
        host = socket.gethostbyname(str(conf.get("spark.driver.host")))
        port, client = _free_ports(host, 2)
        params = {name.lstrip("-").replace("_", "-"): value for name, value in (share.extra_params or {}).items()}
        folder = tempfile.mkdtemp(prefix="ray-", dir=params.pop("temp-dir", "/tmp"))  # paths of sockets must be short
        self._life.callback(shutil.rmtree, folder, ignore_errors=True)
        # Tasks of Python get these with their function: they need not be in Spark's settings, which others can read.
        variables = {**{name: os.environ[name] for name in DEFAULTS}, **_variables(share), **secret}
        set_entries(context.environment, variables, self._life)
        head = {"head": None, "node-ip-address": host, "port": port, "ray-client-server-port": client, "num-cpus": 0}
        head |= {"num-gpus": 0, "object-store-memory": HEAD_STORE, "temp-dir": folder}
        head |= {"include-dashboard": "true", "dashboard-host": "0.0.0.0"} if share.include_webui else NO_DASHBOARD
        if share.system_config:
            head["system-config"] = json.dumps(dict(share.system_config))
        self._start_head(_command({**head, **params}), {**os.environ, **variables}, folder)
        set_entries(os.environ, {"RAY_ADDRESS": f"{host}:{port}"}, self._life)
        gpus = int(conf.get("spark.executor.resource.gpu.amount", None) or 0)
        node = {"address": f"{host}:{port}", "num-cpus": self.node_cores, "num-gpus": gpus}
        if store := _store(share, conf.get("spark.executor.memory", None)):
            node["object-store-memory"] = store
        nodes = Nodes(self.session, Node(tuple(_command({**node, **params})), folder, gpus, ray.__version__))
        self._life.callback(nodes.stop)
        nodes.start(self.nodes, self.node_cores)
        self._life.callback(ray.shutdown)
        level = logging.INFO if share.verbose else logging.WARNING
        started = ray.init(address=f"{host}:{port}", logging_level=level)
        self._wait_for(nodes, ray)
        return started

    def _start_head(self, command: list[str], env: dict[str, str], folder: str) -> None:
        path = os.path.join(folder, "head.log")
        head = guard.start(command, env, path, folder)
        self._life.callback(guard.end, head)
        # It listens before all of its parts are there, and says so when they are.
        wait_until(lambda: head.poll() is not None or UP in _read(path), HEAD_PATIENCE, every=0.1)
        text = _read(path)
        if self.share.verbose:
            sys.stdout.write(text)
        if head.poll() is not None or UP not in text:
            state = f"was not up in {HEAD_PATIENCE:.0f} s" if head.poll() is None else "ended"
            raise OrcaError(f"could not start Ray on Spark: its head node {state}: {_last_line(text)}")

    def _wait_for(self, nodes: Nodes, ray: Any) -> None:
        def up() -> int:
            return sum(1 for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0))

        wait_until(lambda: nodes.failure or up() >= self.nodes, NODES_PATIENCE, every=0.2)
        if nodes.failure:
            raise OrcaError(f"could not start Ray on Spark: {nodes.failure}")
        if up() < self.nodes:
            raise TooFewSlots(
                f"{self.nodes} Ray node(s) of {self.node_cores} core(s) were to start on Spark, and {up()} did in two "
                "minutes: other jobs hold its cores. End them, or ask for less with num_ray_nodes and "
                "ray_node_cpu_cores."
            )


@dataclass(frozen=True)
class Node:
    """A worker node of Ray inside a Spark task: it ends with the task, and the task with it.

    Args:
        command: What to run, by the executor's own interpreter.
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
        env = dict(os.environ)
        if self.gpus:
            visible = env.get("CUDA_VISIBLE_DEVICES", "").split(",")
            gpus = cast(TaskContext, TaskContext.get()).resources()["gpu"].addresses
            env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[int(gpu)] if visible[0] else gpu for gpu in gpus)
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, f"node-{number}.log")
        node = guard.start([sys.executable, *self.command[1:]], env, path, self.folder)
        try:
            node.wait()
            raise RuntimeError(f"a node on {socket.gethostname()} ended: {_last_line(_read(path))}")
        finally:
            guard.end(node)


class Nodes:
    """The Spark jobs of one task each that are Ray's worker nodes.

    Args:
        session: The session.
        node: What each task runs.
    """

    def __init__(self, session: SparkSession, node: Node) -> None:
        self.context, self.node, self.failure = session.sparkContext, node, ""
        self._group, self._stopped = f"orca-ray-{uuid.uuid4().hex[:8]}", False
        self._threads: list[threading.Thread] = []

    def start(self, count: int, cores: int) -> None:
        """Start so many nodes in the background, each on so many cores."""
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
            reason = (re.findall(r"RuntimeError: (.*)", str(error)) or [str(error).partition("\n")[0]])[-1]
        if not self._stopped:
            self.failure = reason
            log.warning("Ray on Spark lost a node: %s", reason)


_on_spark: list[RayOnSpark] = []  # those that are up: one, or none


def beside(slots: int, options: SessionOptions) -> OrcaRayContext:
    """Return the Ray for a local Spark, which has no executors to put it on: one beside it, on the same cores."""
    store = options.object_store_memory
    keywords = {
        "object_store_memory": size_of(store, "object_store_memory") if store else None,
        "include_dashboard": options.include_webui,
        "_system_config": dict(options.system_config or {}) or None,
        "runtime_env": {"env_vars": _variables(options)} if options.env else None,
    }
    given = {name: value for name, value in keywords.items() if value is not None}
    return OrcaRayContext(options.ray_node_cpu_cores or slots, None, given)


def _variables(options: SessionOptions) -> dict[str, str]:
    return {str(name): str(value) for name, value in (options.env or {}).items()}


def held(session: Any) -> int:
    """Return how many task slots of a session are taken by the nodes of a Ray on it."""
    return sum(ray.held for ray in _on_spark if ray.session is session)


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


def seats(executors: int, width: int, options: SessionOptions) -> tuple[int, int]:
    """Return how many nodes Ray gets and the cores of each.

    Raises:
        ArgumentError: They do not fit, or would leave Spark nothing to compute with.
    """
    cores = options.ray_node_cpu_cores or width - 1
    if cores < 1:
        raise ArgumentError(
            f"init_ray_on_spark=True needs executors of 2 cores or more, as Spark keeps one of each; got "
            f"cores={width}. Pass a larger cores=, or use runtime='ray' for a Ray without Spark."
        )
    if cores > width:
        raise ArgumentError(
            f"ray_node_cpu_cores must not be more than the {width} core(s) of an executor; got {cores}."
        )
    nodes = options.num_ray_nodes or executors
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
    chosen = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if starts and not chosen and "ray" not in sys.modules:
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
        # The program imported ray first, which has read the mode: there is no public way to let it look again.
        with contextlib.suppress(ImportError, AttributeError):
            raylet: Any = importlib.import_module("ray._raylet")
            raylet.AuthenticationTokenLoader.instance().reset_cache()
            raylet.Config.initialize("")
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def _command(options: Mapping[str, Any]) -> list[str]:
    """Return the command that starts a node: that of `ray start`, by this interpreter."""
    # Ports of its own choice, as several nodes may share a machine.
    options = {"min-worker-port": 0, "max-worker-port": 0, "dashboard-agent-listen-port": 0, **options}
    words = [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words]


def _free_ports(host: str, count: int) -> list[int]:
    with ExitStack() as doors:
        opened = [doors.enter_context(socket.create_server((host, 0))) for _ in range(count)]
        return [door.getsockname()[1] for door in opened]


def _read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it says nothing")


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


# At an address


def _knock(address: str | None) -> None:
    """Raise where nobody listens at an address: Ray itself would try for half a minute."""
    place = re.fullmatch(r"(?:ray://)?(.+:\d+)", address or "")
    here, refusals = knock([place[1]], seconds=10.0) if place else ("", [])
    if refusals and not here:
        raise OrcaError(f"could not reach Ray at {address!r}: {refusals[0]}. Is it running there?")


def _address_info(ray: Any, started: Any) -> dict[str, Any]:
    """Return the addresses of the Ray this process is connected to; `started` is what ray.init returned, if it did."""
    context = ray.get_runtime_context()
    info = {"address": getattr(context, "gcs_address", None), "node_id": context.get_node_id()}
    return {**info, "node_ip_address": ray.util.get_node_ip_address(), **getattr(started, "address_info", {})}


def _job(ray: Any) -> tuple[str, ...]:
    """Return what tells this connection to Ray from one that the program made after it; nothing without one."""
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
