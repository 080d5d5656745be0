"""Proof: whether executors run the driver's environment. Owns the comparison, and which differences matter.

A difference that matters ends the program before its first step, with a message; one warning lists the others.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.resources
import logging
import os
import pickle
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orca.cluster.spark import executor_infos, is_connect, is_dynamic, slots
from orca.errors import OrcaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# Every rank imports these.
NEEDED = ("cloudpickle", "fsspec", "numpy", "psutil", "pyarrow")
# Models, optimizers and data of these travel between driver and ranks, whether the driver has loaded them yet or not.
FRAMEWORKS = ("keras", "openvino", "pandas", "pyspark", "ray", "safetensors", "tensorflow", "tf-keras", "torch")
_SPREAD = 0.3  # seconds a task waits where Spark cannot start all of them at once, for the others to go elsewhere
_ROW = "host string, python string, wrong array<string>, other array<string>, pins array<string>"
_INSTALLED = {"site-packages", "dist-packages"}
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+?)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)


@dataclass(frozen=True)
class Description:
    """A Python and its packages.

    Args:
        python: Its version, "3.11.7".
        implementation: "CPython".
        machine: The processor, "x86_64".
        packages: Versions of all distributions, by canonical name.
        loaded: Those of which something is imported.
        orca: The digest of Orca's own code.
    """

    python: str
    implementation: str
    machine: str
    packages: dict[str, str]
    loaded: frozenset[str]
    orca: str


def describe(loaded: bool = True) -> Description:
    """Describe the Python this runs in.

    Args:
        loaded: Whether to list the loaded modules, which only the driver is asked for.
    """
    packages = _installed(tuple(sys.path))
    return Description(
        platform.python_version(),
        platform.python_implementation(),
        platform.machine(),
        packages,
        _loaded(packages) if loaded else frozenset(),
        _own_digest(),
    )


def differences(driver: Description, worker: Description) -> list[str]:
    """Return sentences about the differences between worker and driver that matter.

    These are the minor version of Python, the processor, Orca itself, and the packages that Orca needs, that the driver
    has loaded, or whose objects travel.
    """
    wrong = []
    if _minor(driver.python) != _minor(worker.python) or driver.implementation != worker.implementation:
        wrong.append(
            f"{worker.implementation} {worker.python} there, {driver.implementation} {driver.python} in the driver"
        )
    if driver.machine != worker.machine:
        wrong.append(f"a {worker.machine} processor there, {driver.machine} in the driver")
    wrong += [text for _, text, matters in _packages(driver, worker) if matters]
    if driver.orca != worker.orca:
        wrong.append(f"another code of Orca there ({worker.orca[:8]}) than in the driver ({driver.orca[:8]})")
    return wrong


def remarks(driver: Description, worker: Description) -> list[str]:
    """Return sentences about the differences of packages that a program may live with."""
    other = [text for _, text, matters in _packages(driver, worker) if not matters]
    if _minor(driver.python) == _minor(worker.python) and driver.python != worker.python:
        other.append(f"Python {worker.python} there, {driver.python} in the driver")
    return other


def pins(driver: Description, worker: Description) -> list[str]:
    """Return the packages that the worker needs in the driver's version, as pip takes them."""
    return [f"{name}=={driver.packages[name]}" for name, _, matters in _packages(driver, worker) if matters]


def _packages(driver: Description, worker: Description) -> Iterator[tuple[str, str, bool]]:
    """Yield each package that differs, how it differs, and whether the program needs the driver's version."""
    for name, here in sorted(driver.packages.items()):
        there = worker.packages.get(name)
        if here == there:
            continue
        matters = name in NEEDED or name in driver.loaded or (name in FRAMEWORKS and there is not None)
        # 2.4.0+cpu and 2.4.0+cu124 exchange everything. Orca's own code has a digest.
        alike = name == "orca-dl" or (there is not None and here.partition("+")[0] == there.partition("+")[0])
        yield name, f"{name} {there or 'is not installed'} there, {here} in the driver", matters and not alike


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def prove(session: SparkSession) -> None:
    """Let every executor of a session prove that it runs the driver's Python, packages and Orca.

    Args:
        session: The session, its executors registered.
    """
    dynamic = is_dynamic(session)
    # As many tasks as can run at once, all at once: every executor has some of them.
    count = max(1, slots(session) or 1)
    frame = session.range(0, count, 1, count)
    task = _task(describe(), _SPREAD if dynamic else 0.0)
    start = time.monotonic()
    try:
        rows = frame.mapInArrow(task, _ROW, barrier=not dynamic).collect()
    except Exception as error:
        raise _failure(str(error), _hosts(session)) or error from error
    wrong = [(text, f"{row.host} ({row.python})") for row in rows for text in row.wrong]
    if wrong:
        raise OrcaError(
            f"the executors do not run what the driver ({sys.executable}) runs:\n{_listed(wrong)}\n"
            f"{_advice(dict.fromkeys(pin for row in rows for pin in row.pins))}",
            code="executors-differ",
        )
    other = [(text, row.host) for row in rows for text in row.other]
    if other:
        log.warning("packages that this program has not loaded differ on executors:\n%s", _listed(other))
    hosts = len({row.host for row in rows})
    log.info("%d tasks on %d hosts run the driver's environment (%.1f s)", count, hosts, time.monotonic() - start)


def _task(driver: Description, wait: float) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of each task: it yields one row with its host and the differences there."""
    pickled_driver = pickle.dumps(driver)

    # A function in a function travels by value: it must run where there is no Orca, to tell so.
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle
        import socket
        import sys
        import time

        import pyarrow as pa

        for _ in batches:
            pass
        time.sleep(wait)
        try:
            from orca.cluster.proof import describe, differences, pins, remarks

            driver, here = pickle.loads(pickled_driver), describe(loaded=False)
            wrong, other, needed = differences(driver, here), remarks(driver, here), pins(driver, here)
        except ImportError as error:
            wrong, other, needed = [f"{error} there, which the driver can import"], [], []
        row = {"host": socket.gethostname(), "python": sys.executable, "wrong": wrong, "other": other, "pins": needed}
        texts = pa.list_(pa.string())
        types = {"host": pa.string(), "python": pa.string(), "wrong": texts, "other": texts, "pins": texts}
        yield pa.RecordBatch.from_pylist([row], schema=pa.schema(types))

    return task


# Packages


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of all distributions on a path; the first of a name is the one that is imported."""
    versions: dict[str, str] = {}
    # setuptools and Ray put packages of their own on the path once they are imported: nobody installed those.
    own = [entry for entry in path if not _INSTALLED.intersection(Path(entry).parts[:-1])]
    for distribution in importlib.metadata.distributions(path=own):
        # The folder's name tells the same as all of its metadata, a hundred times faster.
        folder = _folder_name(distribution)
        name = folder["name"] if folder else distribution.metadata["Name"]
        if name:
            versions.setdefault(_canonical(name), folder["version"] if folder else distribution.version)
    return versions


def _folder_name(distribution: importlib.metadata.Distribution) -> re.Match[str] | None:
    return _METADATA.fullmatch(os.path.basename(str(getattr(distribution, "_path", ""))))


def _loaded(packages: dict[str, str]) -> frozenset[str]:
    modules = set()
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if "." not in name and isinstance(origin, str) and any(folder in origin for folder in _INSTALLED):
            modules.add(name)
    names = {_canonical(name) for name in modules}
    others = {name for name in modules if _canonical(name) not in packages}  # yaml is PyYAML's
    for distribution in importlib.metadata.distributions() if others else ():
        if folder := _folder_name(distribution):
            record = f"\n{distribution.read_text('RECORD') or ''}"
            if any(f"\n{name}/__init__.py," in record or f"\n{name}.py," in record for name in others):
                names.add(_canonical(folder["name"]))
    return frozenset(names & packages.keys())


@functools.lru_cache(maxsize=1)
def _own_digest() -> str:
    """Return the digest of our code: of the packages that the distribution's entry points lead to."""
    packages = {"orca"}
    with suppress(importlib.metadata.PackageNotFoundError):  # a source tree that was never installed
        distribution = importlib.metadata.distribution("orca-dl")
        packages |= {entry.module.partition(".")[0] for entry in distribution.entry_points}
    digest = hashlib.sha256()
    for package in sorted(packages):
        for name, item in sorted(_sources("", importlib.resources.files(package))):
            digest.update(f"{package}{name}\0{hashlib.sha256(item.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _sources(name: str, folder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and files of code in a folder, or in a zip."""
    for item in folder.iterdir():
        if item.name.endswith(".py"):
            yield f"{name}/{item.name}", item
        elif item.name != "__pycache__" and item.is_dir():
            yield from _sources(f"{name}/{item.name}", item)


def _canonical(name: str) -> str:
    """Return a distribution's name as all spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# Messages


def _listed(differences: Iterable[tuple[str, str]]) -> str:
    """Return one line a difference, with some of the executors that have it."""
    places: dict[str, dict[str, None]] = {}
    for text, place in differences:
        places.setdefault(text, {})[place] = None
    lines = []
    for text, where in places.items():
        more = f" and {len(where) - 3} more" if len(where) > 3 else ""
        lines.append(f"  {text}: on {', '.join(list(where)[:3])}{more}")
    return "\n".join(lines)


def _advice(packages: Iterable[str]) -> str:
    names = " ".join(packages)
    line = f"pip install {names}" if names else "the same Python and packages"
    return (
        "Let Orca send the driver's environment along (ship_environment=True on YARN, without python_location=), or "
        f"install on the nodes what the driver has: {line}"
    )


def _hosts(session: SparkSession) -> list[str]:
    """Return the hosts of the executors; none where a Connect server does not tell."""
    if is_connect(session):
        return []
    infos = executor_infos(session)
    hosts = sorted({str(info.host()) for info in infos})
    driver = str(session.sparkContext.getConf().get("spark.driver.host"))
    return hosts if len(infos) == 1 else [host for host in hosts if host != driver] or hosts


def _failure(text: str, hosts: list[str]) -> OrcaError | None:
    """Return the error that a failed job tells of an executor's Python; None where it tells nothing.

    A job that fails before our code runs does not tell where.
    """
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on one of {', '.join(hosts[:5])}" if hosts else "on an executor"
    version = re.search(r"different version: (\S+?) than that in driver:? (\d[\d.]*\d)", text)
    module = re.search(r"No module named '([\w.]+)'", text)
    if version or module:
        python = f"Python {version[1]} {where}, {version[2]} in the driver" if version else ""
        words = python or f"no module {module and module[1]!r} {where}, which the driver has"
        return OrcaError(
            f"the executors do not run what the driver runs: {words}.\n{_advice([])}", code="executors-differ"
        )
    program = re.search(r'Cannot run program "([^"]+)"', text)
    if program:
        return OrcaError(
            f"{where} there is no Python at {program[1]!r}. Give the path that the nodes have it at with "
            "python_location=, or let Orca send the driver's environment along (ship_environment=True on YARN).",
            code="executor-without-python",
        )
    return None
