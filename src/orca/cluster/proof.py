"""Proof: do the executors run what the driver runs? Owns what of two Pythons is compared, and which differences matter.

A difference that matters ends the program before its first step, in words; the others are told in one warning.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orca.cluster.spark import is_connect, is_dynamic, slots
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
_ROW = "host string, python string, wrong array<string>, other array<string>"
_INSTALLED = {"site-packages", "dist-packages"}
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+?)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE)


@dataclass(frozen=True)
class Description:
    """Describe a Python and what is installed in it.

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
        loaded: Whether to find out what is loaded, which only the driver is asked for.
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
    """Return, in words, how a worker differs from the driver in what matters.

    That are the minor version of Python, the processor, Orca itself, and the packages that Orca needs, that the driver
    has loaded, or whose objects travel.
    """
    found = []
    if _minor(driver.python) != _minor(worker.python) or driver.implementation != worker.implementation:
        found.append(
            f"{worker.implementation} {worker.python} there, {driver.implementation} {driver.python} in the driver"
        )
    if driver.machine != worker.machine:
        found.append(f"a {worker.machine} processor there, {driver.machine} in the driver")
    for name in sorted(driver.packages):
        here, there = driver.packages[name], worker.packages.get(name)
        if _matters(name, driver, there) and (there is None or _public(here) != _public(there)):
            found.append(f"{name} {there or 'is not installed'} there, {here} in the driver")
    if driver.orca != worker.orca:
        found.append(f"another code of Orca there ({worker.orca[:8]}) than in the driver ({driver.orca[:8]})")
    return found


def remarks(driver: Description, worker: Description) -> list[str]:
    """Return, in words, the differences of packages that a program may live with."""
    found = []
    for name in sorted(driver.packages):
        here, there = driver.packages[name], worker.packages.get(name)
        told = _matters(name, driver, there) and (there is None or _public(here) != _public(there))
        if here != there and not told:
            found.append(f"{name} {there or 'is not installed'} there, {here} in the driver")
    if _minor(driver.python) == _minor(worker.python) and driver.python != worker.python:
        found.append(f"Python {worker.python} there, {driver.python} in the driver")
    return found


def prove(session: SparkSession) -> None:
    """Let every executor of a session prove that it runs the driver's Python, packages and Orca.

    Args:
        session: The session, its executors registered.

    Raises:
        OrcaError: One does not; it says the host, the package, both versions and what to do.
    """
    dynamic = is_dynamic(session)
    # As many tasks as can run at once, all at once: every executor has some of them.
    count = max(1, slots(session) or 1)
    frame = session.range(0, count, 1, count)
    task = _task(describe(), _SPREAD if dynamic else 0.0)
    began = time.monotonic()
    try:
        rows = frame.mapInArrow(task, _ROW, barrier=not dynamic).collect()
    except Exception as error:
        raise _failure(str(error), _hosts(session)) or error from error
    wrong = _by_text((f"{row.host} ({row.python})", text) for row in rows for text in row.wrong)
    if wrong:
        raise OrcaError(
            f"the executors do not run what the driver ({sys.executable}) runs:\n{_listed(wrong)}\n{_advice(wrong)}"
        )
    other = _by_text((row.host, text) for row in rows for text in row.other)
    if other:
        log.warning("packages that this program has not loaded differ on executors:\n%s", _listed(other))
    hosts = len({row.host for row in rows})
    log.info("%d tasks on %d hosts run the driver's environment (%.1f s)", count, hosts, time.monotonic() - began)


def compare(driver: Description) -> tuple[list[str], list[str]]:
    """Return how this Python differs from the driver's, in what matters and in what does not."""
    here = describe(loaded=False)
    return differences(driver, here), remarks(driver, here)


def _task(driver: Description, wait: float) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what each task runs: it yields one row that says where it is and what is different there."""
    sealed = pickle.dumps(driver)

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
            from orca.cluster.proof import compare

            wrong, other = compare(pickle.loads(sealed))
        except ImportError as error:
            wrong, other = [f"{error} there, which the driver can import"], []
        texts = pa.list_(pa.string())
        yield pa.record_batch(
            [
                pa.array([socket.gethostname()]),
                pa.array([sys.executable]),
                pa.array([wrong], texts),
                pa.array([other], texts),
            ],
            names=["host", "python", "wrong", "other"],
        )

    return task


# What is installed


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of all distributions on a path; the first of a name is the one that is imported."""
    found: dict[str, str] = {}
    # setuptools and Ray put what they bring for themselves on the path once they are imported: nobody installed that.
    own = [entry for entry in path if not _INSTALLED.intersection(Path(entry).parts[:-1])]
    for distribution in importlib.metadata.distributions(path=own):
        # The folder's name tells what reading all of its metadata would, a hundred times faster.
        told = _METADATA.fullmatch(os.path.basename(str(getattr(distribution, "_path", ""))))
        name = told["name"] if told else distribution.metadata["Name"]
        if name:
            found.setdefault(_canonical(name), told["version"] if told else distribution.version)
    return found


def _loaded(packages: dict[str, str]) -> frozenset[str]:
    """Return the distributions of which a module is loaded."""
    folders = ("site-packages", "dist-packages")
    names = set()
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if "." not in name and isinstance(origin, str) and any(folder in origin for folder in folders):
            names.add(name)
    found = {_canonical(name) for name in names} & packages.keys()
    missing = {name for name in names if _canonical(name) not in packages}
    if missing:
        found |= _owners(missing) & packages.keys()
    return frozenset(found)


def _owners(modules: set[str]) -> set[str]:
    """Return the distributions of modules that are called otherwise than they: yaml is PyYAML's."""
    found = set()
    for distribution in importlib.metadata.distributions():
        told = _METADATA.fullmatch(os.path.basename(str(getattr(distribution, "_path", ""))))
        if told is not None:
            record = f"\n{distribution.read_text('RECORD') or ''}"
            if any(f"\n{name}/__init__.py," in record or f"\n{name}.py," in record for name in modules):
                found.add(_canonical(told["name"]))
    return found


@functools.lru_cache(maxsize=1)
def _own_digest() -> str:
    """Return the digest of Orca's code, from a folder or a zip."""
    digest = hashlib.sha256()
    folders: list[tuple[str, Any]] = [("", importlib.resources.files("orca"))]
    files = []
    while folders:
        name, folder = folders.pop()
        for item in folder.iterdir():
            if item.name.endswith(".py"):
                files.append((f"{name}/{item.name}", item))
            elif item.name != "__pycache__" and item.is_dir():
                folders.append((f"{name}/{item.name}", item))
    for name, item in sorted(files, key=lambda file: file[0]):
        digest.update(f"{name}\0{hashlib.sha256(item.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _canonical(name: str) -> str:
    """Return a distribution's name as all spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


# What matters


def _matters(name: str, driver: Description, there: str | None) -> bool:
    """Say whether a program needs the driver's version of a package; `there` is the worker's."""
    if name == "orca-dl":
        return False  # told by the digest of its code
    return name in NEEDED or name in driver.loaded or (name in FRAMEWORKS and there is not None)


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _public(version: str) -> str:
    """Return a version without its build: 2.4.0+cpu and 2.4.0+cu124 exchange everything."""
    return version.partition("+")[0]


# What is told


def _by_text(told: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return who says each text, in order."""
    found: dict[str, list[str]] = {}
    for who, text in told:
        if who not in found.setdefault(text, []):
            found[text].append(who)
    return found


def _listed(found: dict[str, list[str]]) -> str:
    """Return one line a difference, with some of the executors that have it."""
    lines = []
    for text, who in found.items():
        more = f" and {len(who) - 3} more" if len(who) > 3 else ""
        lines.append(f"  {text}: on {', '.join(who[:3])}{more}")
    return "\n".join(lines)


def _advice(texts: Iterable[str]) -> str:
    """Return what to do about differences."""
    wanted = [re.fullmatch(r"(\S+) .+ there, (\S+) in the driver", text) for text in texts]
    pins = " ".join(f"{told[1]}=={told[2]}" for told in wanted if told and told[1] not in ("CPython", "a"))
    line = f"pip install {pins}" if pins else "the same Python and packages"
    return (
        "Let Orca send the driver's environment along (ship_environment=True on YARN, without python_location=), or "
        f"install on the nodes what the driver has: {line}"
    )


def _hosts(session: SparkSession) -> list[str]:
    """Return the hosts of the executors; none where a Connect server does not tell."""
    if is_connect(session):
        return []
    told = cast(Any, session.sparkContext._jsc).sc().statusTracker().getExecutorInfos()
    hosts = sorted({str(info.host()) for info in told})
    driver = str(session.sparkContext.getConf().get("spark.driver.host"))
    return hosts if len(told) == 1 else [host for host in hosts if host != driver] or hosts


def _failure(text: str, hosts: list[str]) -> OrcaError | None:
    """Return what the failure of the job says about an executor's Python; None where it says nothing.

    A job that fails before our code runs does not tell where.
    """
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"on one of {', '.join(hosts[:5])}" if hosts else "on an executor"
    version = re.search(r"different version: (\S+?) than that in driver:? (\d[\d.]*\d)", text)
    if version:
        words = f"Python {version[1]} {where}, {version[2]} in the driver"
        return OrcaError(f"the executors do not run what the driver runs: {words}.\n{_advice([])}")
    module = re.search(r"No module named '([\w.]+)'", text)
    if module:
        words = f"no module {module[1]!r} {where}, which the driver has"
        return OrcaError(f"the executors do not run what the driver runs: {words}.\n{_advice([])}")
    program = re.search(r'Cannot run program "([^"]+)"', text)
    if program:
        return OrcaError(
            f"{where} there is no Python at {program[1]!r}. Give the path that the nodes have it at with "
            "python_location=, or let Orca send the driver's environment along (ship_environment=True on YARN)."
        )
    return None
