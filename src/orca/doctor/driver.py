"""Driver: the checks that need no ranks. Owns what is looked at before any worker starts, one function each."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orca
from orca.core.engine import cores
from orca.doctor.examination import Case, Check
from orca.doctor.finding import Finding, error, ok, said, warn
from orca.doctor.survey import catching_proxies, written

_EXECUTORS_WITHIN = 4.0  # seconds in which executors that are still starting may appear, as for training
# What a Python worker holds once torch is loaded, before any data or model.
WORKER_BYTES = 700 << 20


def version(case: Case) -> Iterator[Finding]:
    """Tell which Orca, Python and libraries the driver runs."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    have = []
    for package in ("torch", "tensorflow", "pyspark", "ray", "openvino"):
        try:
            have.append(f"{package} {version_of(package)}")
        except PackageNotFoundError:
            continue
    yield ok("driver", f"Orca {orca.__version__} on Python {platform.python_version()}", ", ".join(have))


def engine(case: Case) -> Iterator[Finding]:
    """Tell where training would run."""
    where = {"spark": f"Spark {_spark_version(case)} at {case.master}", "ray": "Ray", "local": "processes here"}
    yield ok("engine", f"{where[case.engine]}: {case.workers} worker(s) on {case.nodes} node(s)")


def java(case: Case) -> Iterator[Finding]:
    """Tell which Java Spark runs on, and where it was found."""
    if case.connect:
        return
    system = case.session.sparkContext._jvm.java.lang.System
    number, home = system.getProperty("java.version"), system.getProperty("java.home")
    yield ok("java", f"Java {number} runs Spark", f"{home}, {_origin(home)}")


def slots(case: Case) -> Iterator[Finding]:
    """Compare the slots of Spark with the workers, which must all run at the same time."""
    per_node = case.workers // case.nodes
    have = slots_of(case)
    if have is None:
        yield warn("slots", "the Spark Connect server does not tell how many tasks it runs at once", case.master)
    elif have >= case.workers:
        yield ok("slots", f"{case.workers} worker(s) run at the same time", f"{have} slot(s)")
    else:
        yield error(
            "slots",
            f"{case.workers} workers must run at the same time, and Spark runs {have} task(s) at once",
            f"workers_per_node={per_node} on {case.nodes} node(s), spark.task.cpus={_task_cpus(case)}",
            _room(case, have, per_node),
        )
    asked = case.setting("spark.executor.instances")
    if asked.isdigit() and int(asked) > case.nodes and not case.master.startswith("local["):
        yield warn(
            "executors",
            f"{asked} executors were asked for and {case.nodes} are there: training would use those alone",
            "the cluster has no room for the others, or they are still starting",
            f"init_orca_context(num_nodes={case.nodes}, ...), or smaller cores= and memory=",
        )


def slots_of(case: Case) -> int | None:
    """Return how many workers can run at the same time; None where nobody tells."""
    if case.engine == "local":
        return None
    if case.engine == "ray":
        return sum(int(node["Resources"].get("CPU", 0)) for node in _ray_nodes())
    from orca.cluster.spark import slots as spark_slots

    deadline = time.monotonic() + (0.0 if case.master.startswith("local[") else _EXECUTORS_WITHIN)
    while True:
        have = spark_slots(case.session)
        if have is None or have >= case.workers or time.monotonic() > deadline:
            return have
        time.sleep(0.2)


def dynamic_allocation(case: Case) -> Iterator[Finding]:
    """Look for dynamic allocation, with which Spark runs no barrier job."""
    if case.setting("spark.dynamicAllocation.enabled", "false").lower() != "true":
        yield ok("allocation", "the executors stay", "spark.dynamicAllocation.enabled is off")
    elif case.master.startswith("local["):
        yield ok("allocation", "dynamic allocation is on, and has no meaning for a local master")
    else:
        yield error(
            "allocation",
            "dynamic allocation is on: Spark refuses to start workers together while executors come and go",
            "spark.dynamicAllocation.enabled=true",
            'init_orca_context(..., conf={"spark.dynamicAllocation.enabled": "false"})',
        )


def settings(case: Case) -> Iterator[Finding]:
    """Look for settings of Spark that are known to hurt."""
    found = False
    for name, harmless, harm in _HARMFUL:
        value = case.setting(name)
        if value and not harmless(value.lower()):
            found = True
            yield warn("settings", f"{name}: {harm}", f"{name}={value}", _conf(name, _BETTER[name]))
    per_task = _task_cpus(case)
    if per_task > 1:
        found = True
        yield warn(
            "settings",
            f"spark.task.cpus={per_task}: a core of an executor counts as 1/{per_task} of a slot",
            f"spark.task.cpus={per_task}",
            _conf("spark.task.cpus", "1"),
        )
    if not found:
        yield ok("settings", "no setting of Spark that is known to hurt")


def overhead(case: Case) -> Iterator[Finding]:
    """Compare the memory a container leaves to Python with what workers need: YARN and Kubernetes kill for more."""
    if not case.master.startswith(("yarn", "k8s")):
        return
    memory = _bytes(case.setting("spark.executor.memory", "1g"))
    share = float(case.setting("spark.executor.memoryOverheadFactor", "0.1"))
    told = case.setting("spark.executor.memoryOverhead")
    room = _bytes(told, unit=1 << 20) if told else max(384 << 20, int(memory * share))
    room += _bytes(case.setting("spark.executor.pyspark.memory") or "0", unit=1 << 20)
    need = (case.workers // case.nodes) * (WORKER_BYTES + 4 * (case.model or 0))
    if room < need:
        yield warn(
            "memory",
            f"a container leaves {size(room)} to Python, and its workers need about {size(need)}: it may be killed",
            f"spark.executor.memoryOverhead={told or 'not set'}",
            _conf("spark.executor.memoryOverhead", f"{-(-need // (1 << 20))}m"),
        )


def hadoop(case: Case) -> Iterator[Finding]:
    """Look for Hadoop's configuration where YARN is the cluster."""
    if case.master.startswith("yarn"):
        yield from hadoop_configuration(os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR"))


def hadoop_configuration(folder: str | None) -> Iterator[Finding]:
    """Look into the folder with Hadoop's configuration."""
    fix = "export HADOOP_CONF_DIR=/etc/hadoop/conf   (or hadoop_conf='/etc/hadoop/conf')"
    if not folder:
        yield error(
            "hadoop", "YARN is found through Hadoop's configuration, and none is named", "no HADOOP_CONF_DIR", fix
        )
        return
    missing = [name for name in ("core-site.xml", "yarn-site.xml") if not Path(folder, name).is_file()]
    if missing:
        yield error("hadoop", f"Hadoop's configuration lacks {' and '.join(missing)}", folder, fix)
    else:
        yield ok("hadoop", "Hadoop's configuration is there", folder)


def proxies(case: Case) -> Iterator[Finding]:
    """Look for proxies that catch connections within this machine."""
    yield from caught(catching_proxies(), "the driver")


def caught(names: tuple[str, ...], where: str) -> Iterator[Finding]:
    """Tell that variables send a machine's connections to itself to a proxy; their values may hold a password."""
    if names:
        yield warn(
            "proxy",
            f"{', '.join(names)} of {where} also catches connections to localhost: gRPC of Ray and Spark Connect fails",
            "no_proxy does not name localhost and 127.0.0.1",
            "export no_proxy=localhost,127.0.0.1,$no_proxy",
        )


def storage(case: Case) -> Iterator[Finding]:
    """Write to model_dir from the driver, and read it back."""
    if not case.model_dir:
        return
    try:
        with written(case.model_dir):
            pass
    except Exception as problem:
        yield error(
            "storage",
            f"the driver cannot write to model_dir {case.model_dir!r}",
            said(problem),
            "model_dir='…', a folder you may write to, on storage that all nodes share",
        )
    else:
        yield ok("storage", f"the driver can write to model_dir {case.model_dir!r}")


def ray_slots(case: Case) -> Iterator[Finding]:
    """Compare the CPUs of Ray with the workers, which need one each at the same time."""
    import ray

    have = slots_of(case) or 0
    free = int(ray.available_resources().get("CPU", 0))
    told = f"{have} CPU(s) on {case.nodes} node(s), {free} free now"
    if have < case.workers:
        yield error(
            "slots",
            f"{case.workers} workers need a CPU each at the same time",
            told,
            f'init_orca_context(runtime="ray", cores={-(-case.workers // case.nodes)})'
            + (f", or workers_per_node={have // case.nodes}" if have >= case.nodes else ""),
        )
    elif free < case.workers:
        yield error(
            "slots",
            f"{case.workers} workers need a CPU each at the same time, and other work of this Ray holds them",
            told,
            "ray status   (and end what holds the CPUs)",
        )
    else:
        yield ok("slots", f"{case.workers} worker(s) run at the same time", told)


def local_cores(case: Case) -> Iterator[Finding]:
    """Compare the cores of this machine with the workers."""
    have = cores()
    if case.workers > have:
        yield warn(
            "slots",
            f"{case.workers} workers share {have} core(s)",
            "they wait for each other",
            f"workers_per_node={have}",
        )
    else:
        yield ok("slots", f"{case.workers} worker(s) have a core each", f"{have} core(s)")


# Details


def _is_true(value: str) -> bool:
    return value == "true"


def _is_second(value: str) -> bool:
    return _seconds(value) <= 5


_HARMFUL: tuple[tuple[str, Any, str], ...] = (
    ("spark.python.worker.reuse", _is_true, "every job starts its Python workers and loads torch again"),
    (
        "spark.sql.execution.arrow.pyspark.enabled",
        _is_true,
        "toPandas and DataFrames made from pandas go row by row, many times slower",
    ),
    (
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval",
        _is_second,
        "too few slots are told after many minutes only",
    ),
    (
        "spark.driver.maxResultSize",
        lambda value: value == "0" or _bytes(value) >= 1 << 30,
        "a model larger than this cannot come back from training",
    ),
    (
        "spark.executor.pyspark.memory",
        lambda value: _bytes(value, unit=1 << 20) >= 8 << 30,
        "it limits the address space, of which torch reserves far more than it uses",
    ),
)
_BETTER = {
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.driver.maxResultSize": "0",
    "spark.executor.pyspark.memory": "8g",
}


def _conf(name: str, value: str) -> str:
    return f'init_orca_context(..., conf={{"{name}": "{value}"}})'


def _room(case: Case, have: int, per_node: int) -> str:
    """Return the line that makes room for all workers, or asks for fewer."""
    per_task = _task_cpus(case)
    if per_task > 1 and have * per_task >= case.workers:
        return _conf("spark.task.cpus", "1")
    more = f"init_orca_context(cores={per_node * per_task}, ...)"
    return f"{more}, or workers_per_node={have // case.nodes} in the Estimator" if have >= case.nodes else more


def _task_cpus(case: Case) -> int:
    told = case.setting("spark.task.cpus", "1")
    return int(told) if told.isdigit() else 1


def _origin(home: str) -> str:
    """Return where the Java of a home came from, as far as this process knows."""
    from orca.cluster.java import ensure_java

    try:
        java = ensure_java()
    except Exception:
        return "chosen by the launcher"
    same = os.path.realpath(java.home) == os.path.realpath(home) or java.origin == "pip"
    return f"from {java.origin}" if same else "chosen by the launcher"


def _spark_version(case: Case) -> str:
    return "" if case.session is None else str(case.session.version)


def _ray_nodes() -> list[dict[str, Any]]:
    return [node for node in sys.modules["ray"].nodes() if node["Alive"]]


def _seconds(told: str) -> float:
    """Return a span of time as Spark writes it, in seconds."""
    for unit, seconds in (("ms", 0.001), ("min", 60.0), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if told.endswith(unit):
            return float(told.removesuffix(unit)) * seconds
    return float(told)


def _bytes(told: str, unit: int = 1) -> int:
    """Return a size as Spark writes it, in bytes; `unit` is what a number alone means."""
    told = told.lower().removesuffix("b")
    for letter, factor in (("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30), ("t", 1 << 40)):
        if told.endswith(letter):
            return int(float(told.removesuffix(letter)) * factor)
    return int(float(told) * unit)


def size(count: int) -> str:
    """Return bytes as people read them."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit in ("B", "kB") else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TB"


_EVERYWHERE: tuple[Check, ...] = (version, engine)
CHECKS: dict[str, tuple[Check, ...]] = {
    "spark": (
        *_EVERYWHERE, java, slots, dynamic_allocation, settings, overhead, hadoop, proxies, storage,
    ),
    "ray": (*_EVERYWHERE, ray_slots, proxies, storage),
    "local": (*_EVERYWHERE, local_cores, storage),
}  # fmt: skip
