"""XShards in Parquet files: what is saved is what is loaded, and no code comes along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from orca import OrcaContext, XShards
from orca.data import parquet
from orca.data.shard import SparkXShards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten


def saved(shards: list[Any], path: Any) -> list[Any]:
    made = SparkXShards(OrcaContext.get_spark_context().parallelize(shards, 2))
    assert made.save_parquet(str(path)) is made
    return XShards.load_parquet(str(path)).collect()


def test_frames_are_loaded_as_they_were_saved(spark: Any, tmp_path: Any) -> None:
    frame = pd.DataFrame(
        {"i": [1, 2], "s": ["a", None], "c": pd.Categorical(["x", "y"]), "t": pd.date_range("2024", periods=2)},
        index=[5, 7],
    )
    found = saved([frame, frame[:0].drop(columns="c"), frame], tmp_path / "frames")
    for got, expected in zip(found, [frame, frame[:0].drop(columns="c"), frame], strict=True):
        pd.testing.assert_frame_equal(got, expected)
    files = sorted((tmp_path / "frames").glob("*.parquet"))
    assert len(files) == 3 and pq.read_table(files[0]).column("i").to_pylist() == [1, 2]


def test_arrays_and_trees_keep_shapes_and_types(spark: Any, tmp_path: Any) -> None:
    tree = {
        "x": (np.arange(12, dtype=np.float32).reshape(2, 3, 2), [np.array([True, False])]),
        "y": np.array(["a", "ü"], dtype=object),
        "d": np.array(["2024-01-01", "2024-01-02"], "datetime64[s]"),
        "none": np.zeros((2, 0), np.int8),
    }
    empty = {"x": (np.zeros((0, 3, 2), np.float32), [np.zeros(0, bool)]), "y": np.array([], object),
             "d": np.zeros(0, "datetime64[s]"), "none": np.zeros((0, 0), np.int8)}  # fmt: skip
    for got, expected in zip(saved([tree, empty], tmp_path / "trees"), [tree, empty], strict=True):
        (ours, form), (theirs, other) = flatten(got), flatten(expected)
        assert form == other
        for one, two in zip(ours, theirs, strict=True):
            assert one.dtype == two.dtype and one.shape == two.shape
            np.testing.assert_array_equal(one, two)
    assert saved([np.arange(3), np.arange(2)], tmp_path / "arrays")[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    "array",
    [
        np.array([[b"a", b"bc"], [b"", b"\xff"]]),
        np.array([b"0", b"1"]),
        np.array([1, 2], "timedelta64[ms]"),
        np.array(["2024-01-01", "NaT"], "datetime64[s]"),
    ],
)
def test_bytes_durations_and_missing_dates_come_back(array: np.ndarray) -> None:
    for part in (array, array[:0]):
        got = parquet.from_table(parquet.to_table(part))
        assert got.dtype == part.dtype
        np.testing.assert_array_equal(got, part)


def test_an_array_that_could_not_be_loaded_is_not_saved() -> None:
    with pytest.raises(DataError, match="save_parquet: an array holds None. Fill it, or use save_pickle"):
        parquet.to_table(np.array(["a", None], object))


def test_what_parquet_cannot_hold_is_refused(spark: Any, tmp_path: Any) -> None:
    with pytest.raises(
        Exception, match="save_parquet takes shards that are pandas DataFrames, arrays, .*; got builtins.str"
    ):
        saved(["text"], tmp_path / "text")
    with pytest.raises(Exception, match="a column cannot be stored"):
        saved([pd.DataFrame({"a": [object()]})], tmp_path / "objects")
    with pytest.raises(ArgumentError, match="there are no files of save_parquet at .*text"):
        XShards.load_parquet(str(tmp_path / "text"))


def test_folders_are_checked(spark: Any, tmp_path: Any) -> None:
    saved([np.arange(3)], tmp_path / "here")
    with pytest.raises(ArgumentError, match="save_parquet: there is something at .*here already"):
        saved([np.arange(3)], tmp_path / "here")
    with pytest.raises(ArgumentError, match="load_parquet: there are no files of save_parquet at .*nowhere"):
        XShards.load_parquet(str(tmp_path / "nowhere"))
