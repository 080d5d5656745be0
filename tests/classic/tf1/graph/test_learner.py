"""The session of a rank: what ranks agree on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from orca_classic.tf1.graph.learner import GraphLearner


def test_updates_of_a_rank_without_rows_count_for_nothing() -> None:
    written: dict[str, Any] = {}
    values = SimpleNamespace(read=lambda names: {"average": np.array([np.nan, 2.0], "float32")}, write=written.update)
    others = np.array([10.0, 20.0])
    world = SimpleNamespace(all_reduce=lambda arrays, how: [arrays[0] + others])
    rank: Any = SimpleNamespace(values=values, world=world, program=SimpleNamespace(averages=("average",)))
    GraphLearner._agree_on_updates(rank, rows=0, step_rows=10)
    np.testing.assert_array_equal(written["average"], [1.0, 2.0])
