"""Fixtures of all tests: the shared contexts, and the guard that fails a run which leaves something behind."""

from __future__ import annotations

import gc
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import hypothesis
import pytest

import orca  # noqa: F401 (test modules load TensorFlow, which must find triton loaded)
import programs
from groups import pytest_xdist_make_scheduler  # noqa: F401  # pytest calls it

# torch compiles in the test's own process, and starts no helpers that would count as processes left behind.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Spark's JVMs live for minutes here: what the better compiler takes is never won back.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
gc.disable()  # until all are loaded
# Every run tries the same examples; others: --hypothesis-profile=default --hypothesis-seed=1
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.load_profile("fixed")

ROOT = Path(__file__).resolve().parent.parent
GRACE = 10.0  # seconds for the last processes and folders of a run to go away
TENSORFLOW = {"keras", "tfdata", "tfgraph", "tfgraphs", "tfkeras", "tfpark", "tf1"}  # in the names of their files


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep tests that share a Spark, a Ray or a TensorFlow in one process where pytest-xdist runs several."""
    item.add_marker(pytest.mark.xdist_group(_group_of(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a pytest-xdist that does not see the groups: each of its processes would start a Spark and a Ray."""
    gc.enable()
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist does not see the groups of tests. Install another version of pytest.")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test marked in_rank in a rank: a processor that cannot do what it reports would end the test's process."""
    if pyfuncitem.get_closest_marker("in_rank") is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    programs.in_rank(partial(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_unconfigure() -> None:
    """Let Python's own end see all objects again (see garbage_is_soon_collected)."""
    gc.unfreeze()


def _group_of(item: pytest.Item) -> str:
    params = getattr(getattr(item, "callspec", None), "params", {})
    asked = {*getattr(item, "fixturenames", ()), *(value for value in params.values() if isinstance(value, str))}
    if asked & {"spark", "bigdl"}:
        return "spark"
    if asked & {"ray", "ray_context"}:
        return "ray"
    words = set(re.split(r"[/_.]", item.location[0]))
    if words & {"mxnet", "mxdata"} or any("mxnet" in word for word in asked):
        return "mxnet"
    return "tensorflow" if TENSORFLOW & words else item.location[0]


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run if a process it started, or a temporary folder of Orca's, is still there at its end.

    The run gets a temporary folder and a mark in the environment of its own, so that two runs on one machine do not
    see each other's, and orphans are found too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore Ctrl-C
    tmp_path_factory.getbasetemp()  # pytest's own folder stays where it was, for a look at it after a failure
    mark = uuid.uuid4().hex
    folder = tempfile.mkdtemp(prefix="tests-")
    # Children of all kinds (ranks, Spark's and Ray's workers, programs) find what pytest finds.
    path = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        patch.setenv("ORCA_TEST_RUN", mark)
        patch.setenv("TMPDIR", folder)
        # Two threads of torch in each of several ranks on a busy machine wait far longer than they work.
        patch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        patch.setattr(tempfile, "tempdir", folder)
        yield
        if "orca.engines.forkserver" in sys.modules:
            sys.modules["orca.engines.forkserver"].end_servers()  # as the end of the program would
        processes = programs.end_processes("ORCA_TEST_RUN", mark, GRACE, spared=[os.getpid(), *_spared()])
        folders = _folders_left(Path(folder))
    shutil.rmtree(folder, ignore_errors=True)
    if processes or folders:
        pytest.fail("left behind: " + "; ".join([*processes, *folders]), pytrace=False)


@pytest.fixture(autouse=True)
def garbage_is_soon_collected() -> None:
    """Let the collector, which Keras calls with every model, pass over what stays: modules and TensorFlow's graphs."""
    if len(gc.get_objects()) > 100_000:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def pickled_like_a_users_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let what a test module defines travel by value, as the things of a user's __main__ do."""
    module = getattr(request.node, "module", None)  # a doctest has none
    if module is None:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Yield the one SparkSession of this process: local, 3 slots. Other cluster modes run through run_program."""
    # Spark's workers are forked with what is loaded now; orca_classic gives MXNet the names that numpy has dropped.
    for name in ("torch", "tensorflow", "orca_classic", "mxnet"):
        with suppress(ImportError):
            importlib.import_module(name)

    from orca.cluster.context import OrcaContext, init_orca_context, stop_orca_context

    init_orca_context(cluster_mode="local", cores=3, conf={"spark.sql.shuffle.partitions": "4"})
    yield OrcaContext.get_spark_session()
    stop_orca_context()


@pytest.fixture(scope="session")
def ray_context() -> Iterator[Any]:
    """Yield the OrcaRayContext of a Ray on this machine with 3 slots."""
    from orca.cluster.context import init_orca_context, stop_orca_context

    yield init_orca_context(runtime="ray", cores=3)
    stop_orca_context()


@pytest.fixture
def run_program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return the function that runs code as a program of its own (see programs.run_program)."""
    return programs.run_program


def _spared() -> list[int]:
    """Return the processes that live as long as this one: Spark's gateway, multiprocessing's resource tracker."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    gateway = getattr(getattr(getattr(context, "_gateway", None), "proc", None), "pid", None)
    tracker = getattr(
        getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None), "_pid", None
    )
    return [pid for pid in (gateway, tracker) if pid is not None]


def _folders_left(temporary: Path) -> list[str]:
    """Return what Orca, or a library in its ranks, has left in the run's temporary folder and does not go in time."""
    deadline = time.monotonic() + GRACE
    while True:
        # orca-java-* holds the java that Spark's gateway runs on and goes with this process.
        left = [entry.name for entry in temporary.glob("orca-*") if not entry.name.startswith("orca-java-")]
        left += [entry.name for entry in temporary.glob("__autograph_generated_file*")]  # of ranks with TensorFlow
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)
