from __future__ import annotations

import sys
from collections.abc import Iterator
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
