from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    loaded = {"torch._dynamo", "orca.job", "orca.frameworks.torch.learner"} <= set(sys.modules)
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"loaded": [loaded], "draw": [np.random.rand()]})


def test_workers_are_forked_with_the_framework_loaded_and_random_numbers_of_their_own(spark: Any) -> None:
    rows = spark.range(3, numPartitions=3).mapInArrow(look, "loaded boolean, draw double", barrier=True).collect()
    assert [row.loaded for row in rows] == [True] * 3
    assert len({row.draw for row in rows}) == 3


@pytest.mark.slow
def test_a_framework_that_is_imported_after_the_context_is_loaded_before_the_first_job(
    run_program: Callable[..., Any],
) -> None:
    run_program(
        """
        import os, sys, time
        import psutil, pyarrow
        from orca import OrcaContext, init_orca_context, stop_orca_context
        from orca.cluster.spark import tell_modules

        def parents(batches):
            for _ in batches:
                yield pyarrow.RecordBatch.from_pydict({"parent": [os.getppid()]})

        def has_torch(process):
            try:
                is_daemon = "orca.engines.daemon" in process.cmdline()
                return is_daemon and "orca.frameworks.torch.learner" in process.environ().get("ORCA_MODULES", "")
            except psutil.Error:  # it has ended meanwhile
                return False

        init_orca_context(cluster_mode="local", cores=1)
        assert "torch" not in sys.modules
        import torch

        def daemons():
            children = psutil.Process().children(recursive=True)
            return [each.pid for each in children if has_torch(each)]

        deadline = time.monotonic() + 60
        while not daemons():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        first = min(daemons())
        session = OrcaContext.get_spark_session()
        tell_modules(session)  # as a fit does
        [row] = session.range(1, numPartitions=1).mapInArrow(parents, "parent long").collect()
        assert row.parent == first
        stop_orca_context()
        """
    )


def daemon_output(folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a daemon that loads a module which prints; at the end of its input it ends, and its group with it."""
    (folder / "ours_that_prints.py").write_text("print('loaded')")
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    environment = {**os.environ, **environment, "PYTHONPATH": path, "ORCA_MODULES": "ours_that_prints"}
    command = [sys.executable, "-m", "orca.engines.daemon"]
    return subprocess.run(command, env=environment, input=b"", capture_output=True, timeout=60)


def test_a_module_that_prints_does_not_speak_to_spark(tmp_path: Path) -> None:
    output = daemon_output(tmp_path)
    assert output.stderr.decode().splitlines()[0] == "loaded"
    [port] = struct.unpack("!i", output.stdout)
    assert 0 < port < 1 << 16


def test_nothing_is_loaded_where_workers_have_little_memory(tmp_path: Path) -> None:
    assert b"loaded" not in daemon_output(tmp_path, PYSPARK_EXECUTOR_MEMORY_MB="1024").stderr


@contextmanager
def daemon(modules: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon that looks around often; by then it has told its port."""
    code = "import orca.engines.daemon as daemon; daemon._LOOK = 0.1; daemon.main()"
    environment = {**os.environ, "ORCA_MODULES": modules}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert len(process.stdout.read(4)) == 4
        yield process
        process.stdin.close()


def test_a_daemon_ends_once_another_has_its_modules_and_more() -> None:
    with daemon("json") as first, daemon("csv") as other, daemon("json csv wave") as last:
        assert first.wait(20) == other.wait(20) == 0
        assert last.poll() is None
