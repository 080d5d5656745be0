"""Shards with different columns and types, held against pandas.concat of all of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca import XShards
from orca.data.layout import ShardInfo, conform, joined, total, union
from orca.data.ray_shards import RayXShards
from orca.data.shard import SparkXShards
from orca.errors import ArgumentError, DataError

TIMES = pd.to_datetime(["2024-01-01", "2023-05-01"])


def ordered(*names: str | None) -> pd.Categorical:
    return pd.Categorical(names, categories=["small", "large", "huge"], ordered=True)


SHARDS = {
    "one more": [pd.DataFrame({"k": [1, 2], "v": [3.0, 4.0]}), pd.DataFrame({"k": [2, 1], "w": [1, 2]})],
    "truths": [pd.DataFrame({"k": [1, 2], "v": [True, False]}), pd.DataFrame({"k": [2]})],
    "times": [pd.DataFrame({"k": [1, 2], "v": TIMES}), pd.DataFrame({"k": [2]})],
    "zones": [pd.DataFrame({"v": TIMES.tz_localize("UTC")}), pd.DataFrame({"v": TIMES.tz_localize("Asia/Tokyo")})],
    "units": [pd.DataFrame({"v": TIMES.as_unit("s")}), pd.DataFrame({"v": TIMES.as_unit("ns"), "k": [1, 2]})],
    "nullable": [
        pd.DataFrame({"i": pd.array([1, None], "Int64"), "s": pd.array(["a", None], "string")}),
        pd.DataFrame({"i": [1, 2], "b": pd.array([True, None], "boolean")}),
    ],
    "categories": [pd.DataFrame({"v": ordered("huge", None)}), pd.DataFrame({"v": ["large"], "k": [1]})],
    "category": [pd.DataFrame({"k": [1, 2], "v": ordered("huge", None)}), pd.DataFrame({"k": [3]})],
    "objects": [pd.DataFrame({"v": [1, "a"]}), pd.DataFrame({"v": [2.5, 1.0], "k": ["a", None]})],
    "large": [pd.DataFrame({"v": [2**60 + 1]}), pd.DataFrame({"v": [0.5, np.nan]})],
    "order": [pd.DataFrame({"k": [1], "v": [2.0]}), pd.DataFrame({"v": [3.0], "k": [4]})],
    "columns that are no texts": [pd.DataFrame({0: [1], (1, 2): ["a"]}), pd.DataFrame({0: [2], 5: [1.0]})],
    "two levels": [
        pd.DataFrame([[1, 2.0]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])),
        pd.DataFrame([[3]], columns=pd.MultiIndex.from_tuples([("a", "y")])),
    ],
}


@pytest.mark.parametrize("shards", SHARDS.values(), ids=SHARDS)
def test_every_shard_is_a_part_of_the_frame_that_pandas_makes_of_all(shards: list[pd.DataFrame]) -> None:
    whole = pd.concat(shards)
    blank = union(total([ShardInfo.of(shard) for shard in shards]).layouts)
    assert len(blank) == 0
    assert dict(blank.dtypes) == dict(whole.dtypes) and list(blank.columns) == list(whole.columns)
    pd.testing.assert_frame_equal(pd.concat([conform(shard, blank) for shard in shards]), whole)
    pd.testing.assert_frame_equal(joined(shards), whole)


def test_shards_without_rows_have_columns_and_decide_on_no_type() -> None:
    full = pd.DataFrame({"k": [1, 2], "v": [True, False]})
    empty = pd.DataFrame({"k": [], "v": [], "w": pd.Series([], dtype="datetime64[ns]")}, dtype=object)
    shards = [pd.DataFrame(), empty.astype({"w": "datetime64[ns]"}), full]
    for parts in (shards, shards[::-1]):
        blank = union(total([ShardInfo.of(shard) for shard in parts]).layouts)
        assert {name: str(dtype) for name, dtype in blank.dtypes.items()} == {
            "k": "int64", "v": "bool", "w": "datetime64[ns]"
        }  # fmt: skip
        assert all(list(conform(shard, blank).dtypes) == list(blank.dtypes) for shard in parts)
        assert list(joined(parts).columns) == ["k", "v", "w"]
    assert joined(shards[:2]).dtypes["w"] == "datetime64[ns]"


def test_columns_of_one_name_are_joined_by_place_or_refused() -> None:
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert joined([twice, twice]).to_numpy().tolist() == [[1, 2], [1, 2]]
    with pytest.raises(DataError, match=r"the shards have different columns, and .* of the same name: \['a', 'a'\]"):
        joined([twice, pd.DataFrame({"a": [1]})])


# Verbs


def on_spark(shards: list[Any]) -> Any:
    from orca import OrcaContext

    return SparkXShards(OrcaContext.get_spark_context().parallelize(shards, len(shards)))


def on_ray(shards: list[Any]) -> Any:
    return RayXShards.of([[shard] for shard in shards])


@pytest.fixture(params=["spark", "ray_context"])
def made(request: pytest.FixtureRequest) -> Any:
    """Return the function that makes shards, on Spark and on Ray."""
    request.getfixturevalue(request.param)
    return {"spark": on_spark, "ray_context": on_ray}[request.param]


def assert_same_rows(got: Any, expected: pd.DataFrame) -> None:
    frames = [
        frame.iloc[frame.map(repr).sort_values(list(frame.columns)).index]
        for frame in (got.concat_to_pdf().reset_index(drop=True), expected.reset_index(drop=True))
    ]
    pd.testing.assert_frame_equal(frames[0].reset_index(drop=True), frames[1].reset_index(drop=True))


def test_verbs_see_the_columns_of_all_shards(made: Any) -> None:
    parts = [pd.DataFrame({"k": [1, 2], "v": [3.0, 4.0]}), pd.DataFrame({"k": [2, 1], "w": [5, 6]})]
    whole, shards = pd.concat(parts), made(parts)
    pd.testing.assert_series_equal(shards.get_null_sum(), whole.isna().sum())
    assert len(shards.drop_missing_value()) == 0
    assert shards.max_values("w") == 6 and made(parts[::-1]).max_values("v") == 4
    pd.testing.assert_frame_equal(shards.describe(), whole.describe())
    pd.testing.assert_frame_equal(shards.head(3), whole.head(3))
    pd.testing.assert_frame_equal(shards.sort_values("w").concat_to_pdf(), whole.sort_values("w", kind="stable"))
    assert_same_rows(shards.select(["w", "v"]), whole[["w", "v"]])
    assert_same_rows(shards.deduplicates(), whole)
    assert_same_rows(shards.merge(made([parts[0]]), on="k"), whole.merge(parts[0], on="k"))
    sums = whole.groupby("k", as_index=False).sum().set_axis(["k", "sum(v)", "sum(w)"], axis=1)
    assert_same_rows(shards.group_by("k", "sum"), sums)
    assert shards.get_schema()["dtypes"].equals(whole.dtypes)
    np.testing.assert_array_equal(shards["w"].unique(), whole["w"].unique())
    blank = pd.DataFrame({"k": [1]}).iloc[:0].assign(u=1)
    assert list(made([parts[0], blank]).repartition(2).concat_to_pdf().columns) == ["k", "v", "u"]


def test_lazy_shards_with_other_columns_are_refused_until_they_are_cached(spark: Any) -> None:
    parts = [pd.DataFrame({"k": [1], "v": [2]}), pd.DataFrame({"k": [2], "w": [3]})]
    lazy = SparkXShards.lazy(spark.sparkContext.parallelize(parts, 2))
    for verb in (lazy.get_null_sum, lazy.describe, lazy.sort_values, lazy.drop_missing_value().compute):
        with pytest.raises(DataError, match=r"lazy shards must have the same columns; got .*\. Call cache\(\)"):
            verb()
    assert lazy.cache().get_null_sum().to_dict() == {"k": 0, "v": 1, "w": 1}
    lazy.uncache()
    turned = SparkXShards.lazy(spark.sparkContext.parallelize([pd.DataFrame(), parts[0], parts[0][["v", "k"]]], 3))
    assert turned.drop_missing_value().concat_to_pdf().columns.tolist() == ["k", "v"]


def test_shards_of_a_dataframe_have_the_columns_of_all(spark: Any) -> None:
    parts = [pd.DataFrame({"k": [1], "v": [2]}), pd.DataFrame({"k": [2], "w": ["a"]})]
    rows = on_spark(parts).to_spark_df().orderBy("k").collect()
    assert [tuple(row) for row in rows] == [(1, 2.0, None), (2, None, "a")]


def test_a_column_is_ordered_by_its_type(made: Any) -> None:
    shards = made([pd.DataFrame({"v": ordered("small", "large")}), pd.DataFrame({"v": ordered("huge", None)})])
    assert shards.max_values("v") == "huge"
    assert shards.sort_values("v").concat_to_pdf()["v"].tolist()[:3] == ["small", "large", "huge"]
    groups = shards.group_by([], {"v": ["min", "max"]}).concat_to_pdf()
    assert groups.iloc[0].tolist() == ["small", "huge"]
    mixed = made([pd.DataFrame({"v": [1, 2]}), pd.DataFrame({"v": ["a", "b"]})])
    for verb in (partial(mixed.max_values, "v"), partial(mixed.sort_values, "v")):
        with pytest.raises(DataError, match="have no order"):
            verb()


def test_a_name_of_two_columns_is_refused_where_it_is_used(made: Any) -> None:
    parts = [pd.DataFrame([[1, 2.0, 3.0]], columns=["k", "v", "v"]) for _ in range(2)]
    whole, shards = pd.concat(parts), made(parts)
    pd.testing.assert_series_equal(shards.get_null_sum(), whole.isna().sum())
    pd.testing.assert_frame_equal(shards.sort_values("k").concat_to_pdf(), whole)
    pd.testing.assert_frame_equal(shards.drop_missing_value().concat_to_pdf(), whole)
    for verb in (
        shards.describe,
        shards.deduplicates,
        shards.sort_values,
        partial(shards.group_by, "k"),
        partial(shards.group_by, "k", {"v": "sum"}),
        partial(shards.max_values, "v"),
        partial(shards.select, ["v"]),
        partial(shards.partition_by, "v"),
        partial(shards.merge, shards, on="v"),
        partial(shards.assembleFeatureLabelCols, "v", "k"),
        lambda: shards["v"],
    ):
        with pytest.raises(DataError, match="the shards have 2 columns 'v'. Rename them first"):
            verb()


EMPTY = pd.DataFrame({"k": pd.Series([], dtype="int64"), "v": pd.Series([], dtype="Float32")})


def test_an_empty_frame_keeps_columns_and_types_through_every_verb(made: Any) -> None:
    shards = made([EMPTY, EMPTY])
    for result in (
        shards,
        shards.sort_values("v"),
        shards.drop_missing_value(),
        shards.deduplicates(),
        shards.partition_by("k"),
        shards.repartition(3),
        shards.sample(0.5),
        shards.select(["k", "v"]),
        shards.merge(shards, on=["k", "v"]),
    ):
        pd.testing.assert_frame_equal(result.concat_to_pdf(), EMPTY, check_index_type=False)
        pd.testing.assert_frame_equal(result.head(), EMPTY, check_index_type=False)
    assert len(shards) == 0 and shards.max_values("v") is None and shards["v"].unique().tolist() == []
    assert shards.get_null_sum().to_dict() == {"k": 0, "v": 0}
    pd.testing.assert_frame_equal(shards.describe(), EMPTY.describe(), check_dtype=False)
    assert shards.group_by("k", "sum").concat_to_pdf().columns.tolist() == ["k", "sum(v)"]


def test_a_dataframe_or_a_frame_without_rows_is_a_shard_without_rows(spark: Any) -> None:
    from orca.data.shard import spark_df_to_pd_sparkxshards

    shards = spark_df_to_pd_sparkxshards(spark.range(5).selectExpr("id", "id * 0.5 as v").limit(0))
    assert shards.head().columns.tolist() == ["id", "v"] and len(shards.sort_values("id").concat_to_pdf()) == 0
    assert shards.to_spark_df().columns == ["id", "v"]
    pd.testing.assert_frame_equal(XShards.partition(EMPTY).concat_to_pdf(), EMPTY, check_index_type=False)
    assert XShards.partition({"x": np.zeros((0, 3))}, 2).num_partitions() == 2
    assert XShards.partition(pd.DataFrame({"a": [1]})).num_partitions() == 1  # fewer rows than cores
    with pytest.raises(ArgumentError, match="head: n must be a whole number of at least 0; got -1"):
        shards.head(-1)
