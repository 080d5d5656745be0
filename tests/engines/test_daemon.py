from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    loaded = {"torch._dynamo", "orca.job", "orca.frameworks.torch.learner"} <= set(sys.modules)
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"loaded": [loaded], "draw": [np.random.rand()]})


def test_workers_are_forked_with_the_framework_loaded_and_random_numbers_of_their_own(spark: Any) -> None:
    rows = spark.range(3, numPartitions=3).mapInArrow(look, "loaded boolean, draw double", barrier=True).collect()
    assert [row.loaded for row in rows] == [True] * 3
    assert len({row.draw for row in rows}) == 3


def test_a_module_that_prints_does_not_speak_to_spark(tmp_path: Path) -> None:
    (tmp_path / "ours_that_prints.py").write_text("print('loaded')")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "ORCA_MODULES": "ours_that_prints"}
    daemon = [sys.executable, "-m", "orca.engines.daemon"]
    # At the end of its input the daemon ends, and all its group with it.
    said = subprocess.run(daemon, env=environment, input=b"", capture_output=True, timeout=60)
    assert said.stderr.decode().splitlines()[0] == "loaded"
    [port] = struct.unpack("!i", said.stdout)
    assert 0 < port < 1 << 16
