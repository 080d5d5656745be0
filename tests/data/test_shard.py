from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca import OrcaContext, XShards
from orca.errors import ArgumentError, DataError
from orca.data.shard import SparkXShards

A = np.arange(14, dtype=np.float32).reshape(7, 2)
B = np.arange(7)


def test_arrays_are_cut_along_their_rows(spark: Any) -> None:
    shards = XShards.partition({"x": [A, {"b": B}], "y": (B,)}, num_shards=3)
    assert isinstance(shards, SparkXShards)
    assert shards.num_partitions() == 3
    parts = shards.collect()
    assert [len(part["y"][0]) for part in parts] == [3, 2, 2]
    np.testing.assert_array_equal(np.concatenate([part["x"][0] for part in parts]), A)
    np.testing.assert_array_equal(np.concatenate([part["x"][1]["b"] for part in parts]), B)
    assert all(isinstance(part["y"], tuple) and isinstance(part["x"], list) for part in parts)


def test_there_are_as_many_shards_as_cores_unless_told(spark: Any) -> None:
    assert XShards.partition(A).num_partitions() == spark.sparkContext.defaultParallelism == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("words", "XShards.partition takes numpy arrays and dicts, lists and tuples of them; got str"),
        (
            {"x": A, "y": B[:5]},
            r"all arrays of data must have the same number of rows; got shapes \[\(7, 2\), \(5,\)\]",
        ),
        ({}, r"data must be arrays with rows in their first dimension; got shapes \[\]"),
        ({"x": 3}, r"data must be arrays with rows in their first dimension; got shapes \[\(\)\]"),
        (
            A[:2],
            r"the number of shards must not be larger than the number of rows; got 3 shards for 2 row\(s\). Pass a sm",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(spark: Any, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        XShards.partition(data, num_shards=3)


def test_the_number_of_shards_must_be_positive(spark: Any) -> None:
    for number in (0, -2):
        with pytest.raises(ArgumentError, match=f"num_shards must be a positive whole number; got {number}"):
            XShards.partition(A, num_shards=number)


def test_a_function_is_applied_to_every_shard(spark: Any) -> None:
    shards = XShards.partition({"x": A}, num_shards=2).transform_shard(lambda shard, by: {"x": shard["x"] * by}, 3)
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in shards.collect()]), A * 3)
    np.testing.assert_array_equal(shards.first()["x"], A[:4] * 3)
    assert len(shards.take(1)) == 1


def test_shards_are_computed_at_once_unless_lazy(spark: Any) -> None:
    assert OrcaContext._eager_mode
    shards = XShards.partition(B, num_shards=2)
    assert shards.is_cached()
    with pytest.raises(Exception, match="division by zero|ZeroDivisionError"):
        shards.transform_shard(lambda shard: 1 // 0)
    OrcaContext._eager_mode = False
    try:
        lazy = XShards.partition(B, num_shards=2).transform_shard(lambda shard: 1 // 0)  # nobody asked for it yet
        assert not lazy.is_cached()
        with pytest.raises(Exception, match="division by zero|ZeroDivisionError"):
            lazy.compute()
    finally:
        OrcaContext._eager_mode = True
    assert not shards.uncache().is_cached()
    assert shards.cache().is_cached()


def test_a_part_of_every_shard_is_selected(spark: Any) -> None:
    shards = XShards.partition({"x": A, "y": B}, num_shards=2)
    assert [part.tolist() for part in shards["y"].collect()] == [[0, 1, 2, 3], [4, 5, 6]]
    with pytest.raises(ArgumentError, match="Invalid key for this XShards: 'z'"):
        shards["z"]
    with pytest.raises(ArgumentError, match="No selection operation available for this XShards"):
        shards.transform_shard(lambda shard: 1)["x"]


def test_the_length_counts_what_the_shards_hold(spark: Any) -> None:
    assert len(XShards.partition(B, num_shards=2)) == 7
    assert len(XShards.partition(B, num_shards=2).transform_shard(lambda shard: 1)) == 2
