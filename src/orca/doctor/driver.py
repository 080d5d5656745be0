"""Driver: the checks that need no ranks. Owns the checks before any worker starts, one function each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

import orca
from orca.cluster.news import human
from orca.cluster.proof import FRAMEWORKS, describe
from orca.cluster.ray import free_slots
from orca.cluster.spark import DEFAULTS, DYNAMIC, is_connect, is_dynamic
from orca.core.resources import cores
from orca.core.units import size_of
from orca.doctor.examination import Case
from orca.doctor.finding import Finding, error, ok, summary, warn
from orca.storage.files import probe_file

WORKER_BYTES = 700 << 20  # memory of a Python worker once torch is loaded, before any data or model
TRAINING = 4  # times its weights that a model needs in training: weights, gradients and two moments of Adam
_ROOM = {"spark": "Spark runs {} task(s) at once", "ray": "Ray has {} CPU(s)", "local": "this machine has {} core(s)"}

# Settings that Orca gives a session of its own, and the harm of other values.
_HARM = {
    "spark.python.worker.reuse": "every job starts its Python workers and loads torch again",
    "spark.sql.execution.arrow.pyspark.enabled": "toPandas and DataFrames made from pandas go row by row, much slower",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "Spark takes many minutes to say that slots are few",
    "spark.driver.maxResultSize": "a model larger than this cannot come back from training",
}


def version(case: Case) -> Iterator[Finding]:
    """Tell which Orca, Python and libraries the driver runs."""
    here = describe(loaded=False)
    packages = ", ".join(f"{name} {here.packages[name]}" for name in FRAMEWORKS if name in here.packages)
    yield ok("driver", f"Orca {orca.__version__} on Python {here.python}", packages)


def engine(case: Case) -> Iterator[Finding]:
    """Tell the place of training."""
    where = {"ray": "Ray", "local": "processes here"}.get(case.engine)
    where = where or f"Spark {case.session.version} at {case.master}"
    yield ok("engine", f"{where}: {case.workers} worker(s) on {case.nodes} node(s)")


def java(case: Case) -> Iterator[Finding]:
    """Tell which Java Spark runs on."""
    if not is_connect(case.session):
        system = case.session.sparkContext._jvm.java.lang.System
        yield ok("java", f"Java {system.getProperty('java.version')} runs Spark", system.getProperty("java.home"))


def slots(case: Case) -> Iterator[Finding]:
    """Compare the room on the cluster with the workers, which must all run at the same time."""
    have, per_node = slots_of(case), case.workers // case.nodes
    room = _ROOM[case.engine].format(have)
    if have is None:
        yield ok("slots", "the Spark Connect server does not say how many tasks it runs at once", case.master)
    elif have >= case.workers:
        yield ok("slots", f"{case.workers} worker(s) run at the same time", room)
    elif case.engine == "local":
        yield warn("slots", f"{case.workers} workers wait for each other, as {room}", "", f"workers_per_node={have}")
    else:
        yield error(
            "slots",
            f"{case.workers} workers must run at the same time, and {room}",
            f"workers_per_node={per_node} on {case.nodes} node(s)",
            _more_room(case, have, per_node),
        )
    instances = case.setting("spark.executor.instances")
    if instances.isdigit() and int(instances) > case.nodes and not case.master.startswith("local["):
        yield warn(
            "executors",
            f"{instances} executors were asked for and {case.nodes} are there: training would use those alone",
            "the cluster has no room for the others, or they are still starting",
            f"init_orca_context(num_nodes={case.nodes}, ...), or smaller cores= and memory=",
        )


def slots_of(case: Case) -> int | None:
    """Return how many workers can run at the same time; None where nobody tells."""
    if case.engine == "local":
        return cores()
    if case.engine == "ray":
        return int(sys.modules["ray"].cluster_resources().get("CPU", 0))
    return free_slots(case.session, case.workers)


def ranks_to_start(case: Case) -> int:
    """Return how many ranks to start: where slots are few, as many as there is room for find other problems."""
    if case.engine == "spark" and _refuses_barriers(case):
        return 0
    have = None if case.engine == "local" else slots_of(case)
    return case.workers if have is None else min(case.workers, have)


def allocation(case: Case) -> Iterator[Finding]:
    """Look for dynamic allocation, with which Spark runs no barrier job."""
    if _refuses_barriers(case):
        yield error(
            "allocation",
            "dynamic allocation is on: Spark refuses to start workers together while executors come and go",
            f"{DYNAMIC}=true",
            _conf(DYNAMIC, "false"),
        )
    else:
        yield ok("allocation", "the executors stay", f"{DYNAMIC} is off, or the master is a local one")


def settings(case: Case) -> Iterator[Finding]:
    """Look for settings of Spark that hurt."""
    harmful = [(name, value) for name in _HARM if (value := case.setting(name, DEFAULTS[name])) != DEFAULTS[name]]
    for name, value in harmful:
        yield warn("settings", f"{name}: {_HARM[name]}", f"{name}={value}", _conf(name, DEFAULTS[name]))
    if not harmful:
        yield ok("settings", "no setting of Spark that is known to hurt")


def overhead(case: Case) -> Iterator[Finding]:
    """Compare the memory a container leaves to Python with the workers' need: YARN and Kubernetes kill for more."""
    if not case.master.startswith(("yarn", "k8s")):
        return
    name = "spark.executor.memoryOverhead"
    setting = case.setting(name)
    heap = size_of(case.setting("spark.executor.memory", "1g"), "spark.executor.memory")
    room = size_of(f"{setting}m" if setting.isdigit() else setting, name) if setting else max(384 << 20, heap // 10)
    need = (case.workers // case.nodes) * (WORKER_BYTES + TRAINING * (case.model or 0))
    if room < need:
        yield warn(
            "memory",
            f"a container leaves {human(room)} to Python, and its workers need about {human(need)}: it may be killed",
            f"{name}={setting or 'not set'}",
            _conf(name, f"{-(-need // (1 << 20))}m"),
        )


def storage(case: Case) -> Iterator[Finding]:
    """Write to model_dir from the driver, and read it back."""
    if not case.model_dir:
        return
    try:
        with probe_file(case.model_dir):
            pass
    except Exception as problem:
        yield error(
            "storage",
            f"the driver cannot write to model_dir {case.model_dir!r}",
            summary(problem),
            "model_dir='…', a folder you may write to, on storage that all nodes share",
        )
    else:
        yield ok("storage", f"the driver can write to model_dir {case.model_dir!r}")


def _refuses_barriers(case: Case) -> bool:
    return is_dynamic(case.session) and not case.master.startswith("local[")


def _conf(name: str, value: str) -> str:
    return f'init_orca_context(..., conf={{"{name}": "{value}"}})'


def _more_room(case: Case, have: int, per_node: int) -> str:
    """Return the line that makes room for all workers, or asks for fewer."""
    runtime = 'runtime="ray", ' if case.engine == "ray" else ""
    cpus = case.setting("spark.task.cpus", "1")
    per_task = int(cpus) if cpus.isdigit() else 1
    if per_task > 1 and have * per_task >= case.workers:
        return _conf("spark.task.cpus", "1")
    more = f"init_orca_context({runtime}cores={per_node * per_task}, ...)"
    return f"{more}, or workers_per_node={have // case.nodes} in the Estimator" if have >= case.nodes else more


CHECKS: dict[str, tuple[Callable[[Case], Iterable[Finding]], ...]] = {
    "spark": (version, engine, java, slots, allocation, settings, overhead, storage),
    "ray": (version, engine, slots, storage),
    "local": (version, engine, slots, storage),
}
