"""Verbs of pandas on shards, held against pandas on all rows in one frame."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from orca import OrcaContext, XShards
from orca.data import frames, groups
from orca.data.shard import SparkXShards
from orca.errors import ArgumentError, DataError

# A Spark job takes tens of milliseconds: few examples, and always the same ones.
few = settings(
    max_examples=6, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def lazily() -> Any:
    """Leave out the caching, of which test_shard.py has the tests: each example takes fewer jobs."""
    OrcaContext._eager_mode = False
    yield
    OrcaContext._eager_mode = True


ROW = st.tuples(
    st.sampled_from([0, 1, 2, -(2**60)]),
    st.sampled_from([0.0, -0.0, 1.0, 2.5, float("nan")]),
    st.sampled_from(["a", "b", "", None]),
    st.booleans(),
)


def frame_of(rows: list[Any]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["i", "f", "s", "b"])
    return frame.astype({"i": "int64", "f": "float64", "b": bool})


PIECES = st.lists(st.lists(ROW, max_size=6).map(frame_of), min_size=1, max_size=4)


def shards_of(pieces: list[Any], partitions: int = 2) -> SparkXShards:
    return SparkXShards(OrcaContext.get_spark_context().parallelize(pieces, partitions))


def whole(pieces: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(pieces, ignore_index=True)


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows in an order of their own, to compare those that come in any."""
    texts = frame.reset_index(drop=True).map(repr)
    return frame.reset_index(drop=True).loc[texts.sort_values(list(texts.columns)).index].reset_index(drop=True)


def assert_same_rows(got: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert list(got.columns) == list(expected.columns)
    if len(got) or len(expected):
        pd.testing.assert_frame_equal(in_order(got), in_order(expected), check_dtype=False)


def assert_same_order(got: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(got.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False)


@few
@given(pieces=PIECES, parts=st.integers(1, 4))
def test_repartitioned_frames_keep_every_row_in_order(spark: Any, pieces: list[pd.DataFrame], parts: int) -> None:
    shards = shards_of(pieces).repartition(parts)
    sizes = [len(shard) for shard in shards.collect()]
    assert len(sizes) == shards.num_partitions() == parts and max(sizes) - min(sizes) <= 1
    assert_same_order(shards.concat_to_pdf(), whole(pieces))


@few
@given(pieces=PIECES, column=st.sampled_from("ifsb"))
def test_rows_with_equal_values_meet_in_one_shard(spark: Any, pieces: list[pd.DataFrame], column: str) -> None:
    found = shards_of(pieces).partition_by(column, 3).collect()
    assert len(found) == 3
    assert_same_rows(pd.concat(found), whole(pieces))
    values = [{repr(None if pd.isna(v) else v + 0.0 if column == "f" else v) for v in shard[column]} for shard in found]
    assert sum(map(len, values)) == len(set().union(*values))


@few
@given(pieces=PIECES)
def test_deduplicated_rows_are_those_of_pandas(spark: Any, pieces: list[pd.DataFrame]) -> None:
    got = shards_of(pieces).deduplicates().concat_to_pdf()
    expected = whole(pieces).drop_duplicates()
    assert_same_rows(got + 0.0 if got.empty else got, expected)


@few
@given(pieces=PIECES, by=st.sampled_from([["i"], ["f"], ["s", "i"], ["f", "s"], None]), down=st.booleans())
def test_sorted_shards_are_the_sorted_frame(spark: Any, pieces: list[Any], by: Any, down: bool) -> None:
    got = shards_of(pieces).sort_values(by, ascending=not down).concat_to_pdf()
    expected = whole(pieces).sort_values(by or list("ifsb"), ascending=not down, kind="stable")
    assert_same_order(got, expected)


@few
@given(
    left=PIECES,
    right=PIECES,
    how=st.sampled_from(["inner", "left", "right", "outer"]),
    on=st.sampled_from(["i", "s", ["f", "s"], None]),
)
def test_merged_rows_are_those_of_pandas(spark: Any, left: list[Any], right: list[Any], how: str, on: Any) -> None:
    right = [frame.rename(columns={"b": "c"}) for frame in right]
    got = shards_of(left).merge(shards_of(right, 3), how, on).concat_to_pdf()
    assert_same_rows(got, whole(left).merge(whole(right), how=how, on=on))


def test_a_shard_without_any_key_is_merged(spark: Any) -> None:
    left = [pd.DataFrame({"i": [1, 2]}), pd.DataFrame({"i": pd.Series([None], dtype=object)})]
    right = pd.DataFrame({"i": [2.0, np.nan], "name": ["two", "none"]})
    for how, small in (("left", True), ("inner", True), ("inner", False), ("outer", False)):
        other = shards_of([right]).cache() if small else shards_of([right])
        got = shards_of(left, 5).merge(other, how, "i").concat_to_pdf()
        assert_same_rows(got, pd.concat(left).merge(right, how=how, on="i"))
        other.uncache()


@pytest.mark.parametrize("keys", [[2**53, 2**53 + 1], [2.0**53, 1.0], pd.Categorical([2**53, 1])], ids=str)
def test_large_integers_meet_a_small_side_as_beside_the_floats_of_other_shards(spark: Any, keys: Any) -> None:
    left = [pd.DataFrame({"i": [2**53 + 1, 1]}), pd.DataFrame({"i": [0.5]})]
    right = pd.DataFrame({"i": keys, "name": ["a", "b"]})
    small = shards_of([right]).cache().compute()
    for how in ("inner", "left"):
        got = shards_of(left).merge(small, how, "i").concat_to_pdf()
        assert_same_rows(got, whole(left).merge(right, how=how, on="i"))
    small.uncache()


@few
@given(
    pieces=PIECES,
    by=st.sampled_from(["i", "s", ["f", "s"], ["b"]]),
    words=st.sampled_from([["count", "nunique", "min", "first", "size"], ["count", "sum", "mean", "min", "max"]]),
)
def test_groups_are_those_of_pandas(spark: Any, pieces: list[pd.DataFrame], by: Any, words: list[str]) -> None:
    names = [name for name in "ifb" if name not in by]
    functions = {name: [*words, *(["var", "std"] if "mean" in words and name != "b" else [])] for name in names}
    got = shards_of(pieces).group_by(by, functions).concat_to_pdf()
    groups = whole(pieces).groupby(by, dropna=False, sort=False)
    expected = groups.size().index.to_frame(index=False)
    for name in names:
        for word in functions[name]:
            expected[f"{word}({name})"] = getattr(groups[name], word)().to_numpy()
    assert_same_rows(got, expected)


@few
@given(pieces=PIECES)
def test_columns_are_described_as_pandas_does(spark: Any, pieces: list[pd.DataFrame]) -> None:
    shards = shards_of(pieces)
    pd.testing.assert_frame_equal(shards.describe(), whole(pieces).describe())
    assert shards.get_null_sum().to_dict() == whole(pieces).isna().sum().to_dict()
    assert_same_order(shards.drop_missing_value().concat_to_pdf(), whole(pieces).dropna())
    assert_same_order(shards.head(4), whole(pieces).head(4))


@pytest.mark.parametrize("turned", [False, True])
def test_columns_of_several_types_are_described_as_pandas_does(spark: Any, turned: bool) -> None:
    times = pd.to_datetime(["2020-01-01", None])
    pieces = [
        pd.DataFrame({"b": [True, False], "t": times, "n": [1, 2], "s": [1.5, np.nan]}),
        pd.DataFrame({"b": [3, 4], "t": times, "n": [3.5, np.nan], "s": ["a", None]}),
    ]
    pieces = pieces[::-1] if turned else pieces
    for names in (["b", "t", "n", "s"], ["b"], ["s"]):
        pd.testing.assert_frame_equal(shards_of(pieces).describe(names), whole(pieces)[names].describe())


SALES = [
    pd.DataFrame({"city": ["a", "b", "a"], "price": [1.0, 2.0, np.nan], "n": [1, 2, 3]}),
    pd.DataFrame({"city": ["b", None], "price": [4.0, 5.0], "n": [4, 5]}, index=[7, 8]),
    pd.DataFrame(
        {"city": pd.Series([], dtype="str"), "price": pd.Series([], dtype=float), "n": pd.Series([], dtype=int)}
    ),
]


def test_every_word_of_group_by_gives_what_it_says(spark: Any) -> None:
    rows = [pd.DataFrame({"k": [1] * 4, "v": [1.0, 2.0, 2.0, 7.0]}), pd.DataFrame({"k": [1, 2], "v": [np.nan, 3.0]})]
    got = shards_of(rows).group_by("k", list(groups.AGGREGATES)).concat_to_pdf().set_index("k")
    v = pd.Series([1.0, 2.0, 2.0, 7.0])
    expected = {
        "count": 4, "sum": 12.0, "mean": 3.0, "avg": 3.0, "min": 1.0, "max": 7.0, "median": 2.0, "first": 1.0,
        "last": 7.0, "nunique": 3, "size": 5, "prod": 28.0, "approx_count_distinct": 3, "countDistinct": 3,
        "count_distinct": 3, "sumDistinct": 10.0, "sum_distinct": 10.0, "collect_list": [1.0, 2.0, 2.0, 7.0],
        "collect_set": [1.0, 2.0, 7.0], "std": v.std(), "stddev": v.std(), "stddev_samp": v.std(), "var": v.var(),
        "variance": v.var(), "var_samp": v.var(), "stddev_pop": v.std(ddof=0), "var_pop": v.var(ddof=0),
        "skewness": ((v - 3) ** 3).mean() / v.std(ddof=0) ** 3,
        "kurtosis": ((v - 3) ** 4).mean() / v.var(ddof=0) ** 2 - 3,
    }  # fmt: skip
    assert {name: got.loc[1, f"{name}(v)"] for name in groups.AGGREGATES} == pytest.approx(expected)
    assert got.loc[2, "std(v)"] is np.nan or np.isnan(got.loc[2, "std(v)"])


def test_groups_without_keys_are_one_and_joined_ones_stand_beside_each_row(spark: Any) -> None:
    shards = shards_of(SALES)
    assert shards.group_by(agg={"n": ["sum", "max"]}).concat_to_pdf().to_dict("list") == {"sum(n)": [15], "max(n)": [5]}
    joined = shards.group_by("city", agg={"n": "sum"}, join=True).concat_to_pdf()
    assert sorted(zip(joined["n"], joined["sum(n)"], strict=True)) == [(1, 4), (2, 6), (3, 4), (4, 6), (5, 5)]
    counts = shards.group_by("city").concat_to_pdf()
    assert list(counts.columns) == ["city", "count(price)", "count(n)"]


def test_keys_of_different_types_meet(spark: Any) -> None:
    days = pd.to_datetime(["2024-01-01", "2024-01-02"])
    left = pd.DataFrame({"k": [1, 2], "d": days.astype("datetime64[s]"), "c": pd.Categorical(["x", "y"]), "l": [1, 2]})
    right = pd.DataFrame({"k": [2.0, 1.0], "d": days[::-1].astype("datetime64[ns]"), "c": ["y", "x"], "r": [20, 10]})
    for on in ("k", "d", "c", ["k", "d", "c"]):
        got = shards_of([left]).merge(shards_of([right[:1], right[1:]]), on=on).concat_to_pdf()
        assert sorted(zip(got["l"], got["r"], strict=True)) == [(1, 10), (2, 20)]
    mixed = pd.DataFrame({"k": pd.Series([1, 1.0, True, "1", (1, 2), None, np.nan], dtype=object)})
    assert len(shards_of([mixed[i : i + 1] for i in range(7)]).deduplicates()) == len(mixed.drop_duplicates())
    zones = (
        pd.DataFrame({"k": days.tz_localize("UTC")}),
        pd.DataFrame({"k": days.tz_localize("UTC").tz_convert("Asia/Tokyo")}),
    )
    assert len(shards_of([zones[0]]).merge(shards_of([zones[1]]))) == 2


@pytest.mark.parametrize(
    ("typed", "objects"),
    [
        ([1, 2, 0], [1, 2.0, -0.0]),
        ([1, 2], [Decimal("1.0"), Decimal("2")]),
        ([True, False], [np.True_, False]),
        (pd.to_datetime(["2024-01-01 10:00", None]), [datetime(2024, 1, 1, 10), None]),
        (pd.to_datetime(["2024-01-01 10:00"]).tz_localize("Asia/Tokyo"), [pd.Timestamp("2024-01-01 01:00Z")]),
        (pd.to_timedelta(["1s"]), [timedelta(seconds=1)]),
        (pd.Categorical([1, None, 2]), [1, np.nan, 2]),
    ],
)
def test_cells_of_an_object_column_go_where_those_of_a_typed_one_go(typed: Any, objects: list[Any]) -> None:
    one, other = pd.DataFrame({"k": typed}), pd.DataFrame({"k": pd.Series(objects, dtype=object)})
    choice = frames.hashed(["k"], 1 << 40)
    assert choice(one).tolist() == choice(other).tolist()


def test_groups_of_typed_and_of_object_shards_are_those_of_pandas(spark: Any) -> None:
    objects = pd.Series([1, None, 2, 3], dtype=object)
    pieces = [pd.DataFrame({"k": [1, 2, 3, 1], "v": 1}), pd.DataFrame({"k": objects, "v": 1})]
    got = shards_of(pieces, 2).group_by("k").concat_to_pdf()
    assert {None if pd.isna(k) else k: n for k, n in got.values.tolist()} == {1: 3, 2: 2, 3: 2, None: 1}
    assert len(got) == 4
    labelled = whole(pieces).set_axis(list("stuvwxyz"))
    joined = shards_of([labelled[:5], labelled[5:]], 2).group_by("k", join=True).concat_to_pdf()
    assert joined.loc[list("stuvwxyz"), "count(v)"].tolist() == [3, 2, 2, 3, 3, 1, 2, 2]


def test_shards_without_rows_keep_their_columns(spark: Any) -> None:
    empty = shards_of([SALES[2], SALES[2]])
    assert list(empty.sort_values("n").concat_to_pdf().columns) == ["city", "price", "n"]
    assert list(empty.merge(shards_of(SALES), on="city").concat_to_pdf()) == [
        "city",
        "price_x",
        "n_x",
        "price_y",
        "n_y",
    ]
    assert list(empty.group_by("city", "sum").concat_to_pdf()) == ["city", "sum(price)", "sum(n)"]
    assert empty.max_values("n") is None
    assert len(empty.deduplicates()) == 0


def test_the_largest_value_of_a_column_skips_nulls(spark: Any) -> None:
    shards = shards_of(SALES)
    assert shards.max_values("price") == 5.0
    assert shards.max_values("n") == 5
    assert shards_of([pd.DataFrame({"d": pd.to_datetime(["2024-01-01", None])})]).max_values("d") == pd.Timestamp(
        "2024-01-01"
    )


def test_a_sample_is_drawn_from_each_shard_and_stays_the_same(spark: Any) -> None:
    pieces = [pd.DataFrame({"n": np.arange(i * 100, i * 100 + 100)}) for i in range(3)]
    sample = shards_of(pieces).sample(0.1)
    assert [len(shard) for shard in sample.collect()] == [10, 10, 10]
    assert sample.concat_to_pdf().equals(sample.concat_to_pdf())
    seeded = [shards_of(pieces).sample_to_pdf(0.2, random_state=3)["n"].tolist() for _ in range(2)]
    assert seeded[0] == seeded[1] and len(set(seeded[0])) == 60
    assert len(shards_of(pieces).sample_to_pdf(1.5, replace=True)) == 450
    assert [list(shard) for shard in shards_of(SALES[:2]).select("n").collect()] == [["n"], ["n"]]
    assert shards_of(SALES[:2]).concat_to_pdf(axis=1).shape == (5, 6)


def test_columns_become_features_and_labels(spark: Any) -> None:
    shards = shards_of([SALES[0][:2], SALES[1]]).assembleFeatureLabelCols(["price", "n"], "n")
    first = shards.first()
    assert [part.tolist() for part in first["x"]] == [[1.0, 2.0], [1, 2]] and first["y"].tolist() == [1, 2]
    stacked = shards.stack_feature_labels().collect()
    assert [part["x"].tolist() for part in stacked] == [[[1.0, 1.0], [2.0, 2.0]], [[4.0, 4.0], [5.0, 5.0]]]
    assert stacked[1]["y"].tolist() == [[4], [5]]


def test_the_schema_is_that_of_the_frames(spark: Any) -> None:
    schema = shards_of(SALES).get_schema()
    assert list(schema["columns"]) == ["city", "price", "n"]
    assert list(map(str, schema["dtypes"]))[1:] == ["float64", "int64"]


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("select", ("prize",), "select: there is no column 'prize'; the shards have .'city', 'price', 'n'."),
        ("sort_values", ("prize",), "sort_values: there is no column 'prize'"),
        ("sort_values", (["n", "price"], [True]), "ascending has 1 value.s. for 2 column.s."),
        ("group_by", ("prize",), "group_by: there is no column 'prize'"),
        ("group_by", ("city", {"prize": "sum"}), "group_by: there is no column 'prize'"),
        ("group_by", ("city", "summe"), "group_by: agg must be of count, sum, .*; got 'summe'"),
        ("group_by", ("city", 3), "agg must be a function's name, a list or a dict of them; got 3"),
        ("group_by", ([], "sum", True), "join=True needs the columns that groups are made of"),
        ("max_values", ("prize",), "max_values: there is no column 'prize'"),
        ("describe", ("prize",), "describe: there is no column 'prize'"),
        ("partition_by", ("prize",), "partition_by: there is no column 'prize'; the shards have"),
        ("partition_by", (["city"],), "partition_by takes the name of one column; got .'city'."),
        ("partition_by", ("city", 0), "num_partitions must be a positive whole number; got 0"),
        ("assembleFeatureLabelCols", ("prize", "n"), "there is no column 'prize'"),
        ("merge", ("words",), "right should be a SparkXShards of pandas DataFrames; got str"),
    ],
)
def test_wrong_columns_and_words_are_refused(spark: Any, verb: str, arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        getattr(shards_of(SALES), verb)(*arguments)


def test_sides_that_cannot_be_merged_are_refused(spark: Any) -> None:
    shards, other = shards_of(SALES), shards_of([pd.DataFrame({"z": [1]})])
    with pytest.raises(ArgumentError, match="the two sides have no column in common; they have .'city'.* and .'z'."):
        shards.merge(other)
    with pytest.raises(ArgumentError, match="merge: there is no column 'n'; the shards have .'z'."):
        shards.merge(other, on="n")
    with pytest.raises(ArgumentError, match="how must be one of inner, left, right, outer; got 'cross'"):
        shards.merge(other, how="cross")


def test_an_aggregate_that_a_column_does_not_have_is_named(spark: Any) -> None:
    with pytest.raises(Exception, match="there is no mean of column 'city'"):
        shards_of(SALES).group_by("n", "mean").collect()


@pytest.mark.parametrize(
    "verb", ["deduplicates", "sort_values", "describe", "to_spark_df", "concat_to_pdf", "get_schema"]
)
def test_verbs_of_pandas_need_frames(spark: Any, verb: str) -> None:
    with pytest.raises(ArgumentError, match=f"{verb} needs shards that are pandas DataFrames; got numpy.ndarray"):
        getattr(XShards.partition(np.arange(4), 2), verb)()
    with pytest.raises(DataError, match="there are no shards"):
        getattr(SparkXShards(spark.sparkContext.emptyRDD()), verb)()
