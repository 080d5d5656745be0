"""XShards of frames as Spark DataFrames, and back."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca import OrcaContext, XShards
from orca.data.shard import SparkXShards, spark_df_to_pd_sparkxshards
from orca.errors import DataError


def shards_of(pieces: list[Any]) -> SparkXShards:
    return SparkXShards(OrcaContext.get_spark_context().parallelize(pieces, len(pieces)))


def test_frames_become_a_dataframe_and_frames_again(spark: Any) -> None:
    frame = pd.DataFrame(
        {
            "i": np.arange(5),
            "f": [1.5, np.nan, 2.0, -1.0, 0.0],
            "s": ["a", None, "c", "", "ü"],
            "b": [True, False] * 2 + [True],
            "t": pd.date_range("2024-03-30 01:30", periods=5, freq="h"),
            "l": [np.array([1.0, 2.0]), np.array([]), np.array([3.0]), np.array([4.0]), np.array([5.0])],
            "small": np.arange(5, dtype=np.uint8),
            "half": np.arange(5, dtype=np.float16),
            "c": pd.Categorical(["x", "y", "x", None, "x"]),
            "dotted.name": 1,
        }
    )
    df = XShards.partition(frame, 2).to_spark_df()
    kinds = dict(df.dtypes)
    assert [kinds[name] for name in ("i", "f", "s", "b", "t", "l", "small", "half", "c")] == [
        "bigint", "double", "string", "boolean", "timestamp", "array<double>", "smallint", "float", "string",
    ]  # fmt: skip
    assert df.rdd.getNumPartitions() == 2
    assert [row.s for row in df.collect()] == ["a", None, "c", "", "ü"]
    assert df.where("f is null").count() == 1
    again = spark_df_to_pd_sparkxshards(df)
    assert again.num_partitions() == 2 and again._get_class_name() == "pandas.core.frame.DataFrame"
    got = again.concat_to_pdf().reset_index(drop=True)
    plain = ["i", "f", "b", "t", "dotted.name"]
    pd.testing.assert_frame_equal(got[plain], frame[plain], check_dtype=False)
    for name in ("s", "c"):
        assert [None if pd.isna(v) else v for v in got[name]] == [None if pd.isna(v) else v for v in frame[name]]
    assert [cell.tolist() for cell in got["l"]] == [cell.tolist() for cell in frame["l"]]


def test_types_that_differ_between_shards_are_widened(spark: Any) -> None:
    pieces = [
        pd.DataFrame({"a": [1, 2], "b": [None, None], "c": np.array([1, 2], np.int16)}),
        pd.DataFrame({"a": [1.5, np.nan], "b": ["x", None], "c": np.array([3, 4], np.int64)}),
        pd.DataFrame(
            {"c": pd.Series([], dtype="int64"), "b": pd.Series([], dtype=object), "a": pd.Series([], dtype=float)}
        ),
    ]
    df = shards_of(pieces).to_spark_df()
    assert df.dtypes == [("a", "double"), ("b", "string"), ("c", "bigint")]
    assert [tuple(row) for row in df.collect()] == [(1, None, 1), (2, None, 2), (1.5, "x", 3), (None, None, 4)]


def test_a_shard_without_values_takes_the_types_of_the_others(spark: Any) -> None:
    times = pd.to_datetime(["2024-07-01 12:00"])
    full = pd.DataFrame(
        {"i": [1], "l": [[1, 2]], "d": [datetime.date(2024, 1, 1)], "t": times.tz_localize("UTC"), "n": [None]}
    )
    none = pd.DataFrame({"i": [None], "l": [[]], "d": [None], "t": times.tz_localize("Asia/Tokyo"), "n": [None]})
    df = shards_of([full[:0], none, full]).to_spark_df()
    assert df.dtypes == [("i", "bigint"), ("l", "array<bigint>"), ("d", "date"), ("t", "timestamp"), ("n", "string")]
    hours = "(unix_seconds(t) - unix_seconds(timestamp'2024-07-01 00:00:00Z')) div 3600"
    rows = [tuple(row) for row in df.selectExpr("i", "l", "d", hours, "n").collect()]
    assert rows == [(None, [], None, 3, None), (1, [1, 2], datetime.date(2024, 1, 1), 12, None)]


def test_columns_that_do_not_go_together_are_refused(spark: Any) -> None:
    one = pd.DataFrame({"a": [1]})
    with pytest.raises(DataError, match="lazy shards must have the same columns; got .'a'. and .'b'."):
        shards_of([one, one.rename(columns={"a": "b"})]).to_lazy().uncache().to_spark_df()
    with pytest.raises(DataError, match="types in different shards that do not go together"):
        shards_of([one, pd.DataFrame({"a": ["x"]})]).to_spark_df()
    with pytest.raises(DataError, match="Arrow has no type for a column"):
        shards_of([pd.DataFrame({"a": [object()]})]).to_spark_df()


def test_partitions_become_shards_of_a_size_if_asked(spark: Any) -> None:
    df = spark.range(0, 25, 1, 2).selectExpr("id", "cast(id as string) as name")
    assert [len(shard) for shard in spark_df_to_pd_sparkxshards(df).collect()] == [12, 13]
    OrcaContext._shard_size = 5
    try:
        shards = spark_df_to_pd_sparkxshards(df)
    finally:
        OrcaContext._shard_size = None
    assert [len(shard) for shard in shards.collect()] == [5, 5, 2, 5, 5, 3]
    assert shards.concat_to_pdf()["id"].tolist() == list(range(25))
    assert shards.concat_to_pdf()["name"].tolist() == [str(i) for i in range(25)]


def test_partitions_without_rows_become_shards_without_rows(spark: Any) -> None:
    df = spark.range(3).repartition(2, "id").where("id = 1").selectExpr("id", "'a' as s", "1.5 as d")
    sizes = [(len(shard), list(shard.columns)) for shard in spark_df_to_pd_sparkxshards(df).collect()]
    assert sorted(sizes) == [(0, ["id", "s", "d"]), (1, ["id", "s", "d"])]


def test_types_of_spark_are_those_of_topandas(spark: Any) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [
        (
            1,
            datetime.datetime(2024, 1, 1, 12),
            datetime.date(2024, 1, 2),
            Decimal("1.50"),
            [1, 2],
            {"a": 1},
            Vectors.dense([1.0, 2.0]),
        ),
        (None, None, None, None, None, None, Vectors.sparse(2, [1], [3.0])),
    ]
    names = ["i", "t", "d", "n", "l", "m", "v"]
    df = spark.createDataFrame(rows, names).coalesce(1)
    got, told = spark_df_to_pd_sparkxshards(df).first(), df.drop("v", "m").toPandas()
    assert got["t"].tolist() == told["t"].tolist()
    assert got["d"].tolist() == told["d"].tolist()
    assert got["n"].tolist() == told["n"].tolist()
    assert list(got["l"][0]) == [1, 2] and got["l"][1] is None
    assert np.isnan(got["i"][1]) and got["i"].dtype == np.float64
    assert [list(cell) for cell in got["v"]] == [[1.0, 2.0], [0.0, 3.0]]


def test_cells_of_a_map_are_dicts(spark: Any) -> None:
    rows = [({"a": 1.0, "b": 2.0},), (None,), ({},)]
    df = spark.createDataFrame(rows, "m map<string,double>").coalesce(1)
    assert spark_df_to_pd_sparkxshards(df).collect()[0]["m"].tolist() == [row[0] for row in rows]
