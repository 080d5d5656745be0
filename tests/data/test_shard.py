from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from orca import OrcaContext, XShards
from orca.data.shard import SharedValue, SparkXShards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten

A = np.arange(14, dtype=np.float32).reshape(7, 2)
B = np.arange(7)
few = settings(
    max_examples=6, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TREES = st.recursive(
    st.just("leaf"),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
    ),
    max_leaves=4,
)


def grown(tree: Any, rows: int) -> Any:
    """Return a tree with arrays of so many rows as its leaves."""
    if isinstance(tree, dict):
        return {key: grown(part, rows) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(grown(part, rows) for part in tree)
    return np.arange(rows * 2).reshape(rows, 2)


def shards_of(items: list[Any], partitions: int = 2) -> SparkXShards:
    return SparkXShards(OrcaContext.get_spark_context().parallelize(items, partitions))


def assert_same_tree(got: Any, expected: Any) -> None:
    (ours, form), (theirs, other) = flatten(got), flatten(expected)
    assert form == other
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, two)


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
        ("words", "XShards.partition takes numpy arrays and dicts, lists and tuples of them, or a pandas .*; got str"),
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
    assert len(XShards.partition(B, num_shards=2).transform_shard(lambda shard: shard.sum())) == 2
    assert len(XShards.partition(B, num_shards=2).transform_shard(lambda shard: np.array(shard.sum()))) == 2
    for data in ({"x": A, "y": B}, (A, {"b": B}), {"x": [A, B]}, pd.DataFrame({"a": B})):
        shards = XShards.partition(data, num_shards=2)
        assert len(shards) == len(shards.to_lazy().transform_shard(lambda shard: shard)) == 7
    others: list[tuple[Any, int]] = [
        ({"x": [1, 2, 3], "y": [0, 1, 0]}, 3),
        ({"x": pd.Series([1, 2]), "name": "a"}, 2),
        ({"mean": 0.5}, 1),
        ({"x": A, "y": B[:2]}, 1),
        ("text", 1),
        ([1, 2, 3], 3),
        ({}, 1),
    ]
    for shard, rows in others:
        assert len(shards_of([shard, shard])) == 2 * rows


def test_the_public_names_of_data_are_listed_and_loaded_when_they_are_used() -> None:
    import orca.data

    names = dir(orca.data)
    assert {"XShards", "SharedValue", "RayXShards", "pandas", "file", "transformer"} <= set(names)
    assert not [name for name in names if name.startswith("_")]
    assert all(getattr(orca.data, name) is not None for name in names)
    assert orca.data.XShards is XShards
    with pytest.raises(AttributeError, match="module 'orca.data' has no attribute 'verbs2'"):
        orca.data.verbs2  # noqa: B018


def test_shards_tell_what_they_are_without_a_job(spark: Any) -> None:
    tracker = spark.sparkContext.statusTracker()
    arrays = XShards.partition({"x": A, "y": B}, num_shards=2)
    frames = shards_of([pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2], "b": [3]}), pd.DataFrame()], 3)
    wide = XShards.partition(pd.DataFrame(np.zeros((2, 13))), 1)
    mixed = shards_of(["text", B])
    lazy = frames.to_lazy().select("a")
    spark.sparkContext.setJobGroup("repr", "what shards say of themselves")
    assert repr(arrays) == "SparkXShards(dict, keys=['x', 'y'], rows=7, shards=2)"
    assert repr(frames) == repr(frames.to_lazy()) == "SparkXShards(DataFrame, columns=['a', 'b'], rows=2, shards=3)"
    assert repr(wide).startswith("SparkXShards(DataFrame, columns=[0, 1, 2") and "9, ... 3 more], rows=2" in repr(wide)
    assert repr(mixed) == "SparkXShards(str or ndarray, shards=2)"
    assert repr(lazy) == "SparkXShards(DataFrame, partitions=3)"
    assert repr(SparkXShards.lazy(spark.sparkContext.parallelize([1], 1))) == "SparkXShards(partitions=1)"
    assert len(arrays) == 7
    assert not tracker.getJobIdsForGroup("repr")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)


@few
@given(tree=TREES, rows=st.integers(1, 9), data=st.data())
def test_partition_and_collect_give_the_same_tree(spark: Any, tree: Any, rows: int, data: Any) -> None:
    whole = grown(tree, rows)
    parts = XShards.partition(whole, data.draw(st.integers(1, rows))).collect()
    leaves = [flatten(part)[0] for part in parts]
    assert {str(flatten(part)[1]) for part in parts} == {str(flatten(whole)[1])}
    for leaf, pieces in zip(flatten(whole)[0], zip(*leaves, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(pieces), leaf)


def test_a_frame_is_cut_along_its_rows(spark: Any) -> None:
    frame = pd.DataFrame({"a": B, "b": B * 2.0}, index=B + 10)
    shards = XShards.partition(frame, 3)
    assert shards._get_class_name() == "pandas.core.frame.DataFrame"
    pd.testing.assert_frame_equal(shards.concat_to_pdf(), frame)
    assert shards["a"]._get_class_name() == "pandas.core.series.Series"


@pytest.mark.parametrize(
    ("shard", "name"),
    [
        ({}, "builtins.dict"),
        ([1], "builtins.list"),
        (A, "numpy.ndarray"),
        (pd.Series([1]), "pandas.core.series.Series"),
    ],
)
def test_shards_know_the_name_of_their_class(spark: Any, shard: Any, name: str) -> None:
    assert shards_of([shard])._get_class_name() == name
    assert SparkXShards(spark.sparkContext.emptyRDD(), class_name=name)._get_class_name() == name


def test_a_shared_value_reaches_every_shard_as_itself(spark: Any) -> None:
    shared = SharedValue({"by": 3})
    assert shared.value == {"by": 3}
    shards = XShards.partition(B, 3).transform_shard(lambda shard, by, more: shard * by["by"] + more, shared, 1)
    assert np.concatenate(shards.collect()).tolist() == (B * 3 + 1).tolist()
    shared.unpersist()
    assert np.concatenate(shards.transform_shard(lambda shard, by: by["by"] + shard, shared).collect())[0] == 4


def test_the_origin_of_eager_shards_stays(spark: Any) -> None:
    origin = XShards.partition(B, 2)
    made = origin.transform_shard(lambda shard: shard + 1)
    assert made.is_cached() and origin.is_cached()
    origin.uncache()
    again = origin.transform_shard(lambda shard: shard + 2)
    assert again.is_cached() and not origin.is_cached()
    assert np.concatenate(again.collect()).tolist() == (B + 2).tolist()
    rdd = spark.sparkContext.parallelize([1, 2], 2).cache()
    SparkXShards(rdd).transform_shard(lambda shard: shard)
    assert rdd.is_cached  # as its owner wants it


def test_what_is_made_from_lazy_shards_is_lazy(spark: Any) -> None:
    eager = XShards.partition(B, 2)
    lazy = eager.to_lazy().transform_shard(lambda shard: 1 // 0)
    assert not lazy.is_cached()
    with pytest.raises(Exception, match="division by zero|ZeroDivisionError"):
        lazy.collect()
    assert not SparkXShards.lazy(eager.rdd.map(lambda shard: 1 // 0)).is_cached()


@few
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), parts=st.integers(1, 4), kind=st.sampled_from("adlt"))
def test_repartitioned_shards_keep_every_row_in_order(spark: Any, sizes: list[int], parts: int, kind: str) -> None:
    edges = np.cumsum([0, *sizes])
    arrays = [np.arange(start, stop) for start, stop in itertools.pairwise(edges)]
    make = {"a": lambda a: a, "d": lambda a: {"x": a, "y": [a * 2]}, "l": lambda a: a.tolist(), "t": lambda a: (a, a)}[
        kind
    ]
    found = shards_of([make(array) for array in arrays]).repartition(parts).collect()
    assert len(found) == parts
    expected = [make(array) for array in np.array_split(np.arange(edges[-1]), parts)]
    for got, wanted in zip(found, expected, strict=True):
        assert_same_tree(got, wanted) if kind != "l" else None
        assert kind != "l" or got == wanted


def test_shards_without_rows_are_moved_as_they_are(spark: Any) -> None:
    assert sorted(shards_of(["a", "b", "c"], 3).repartition(2).collect()) == ["a", "b", "c"]
    assert sorted(shards_of([1, 2, 3], 1).repartition(5).collect()) == [1, 2, 3]
    series = [{"x": pd.Series([1, 2])}, {"x": pd.Series([3])}]
    moved = shards_of(series, 2).repartition(1).collect()
    assert [(type(shard["x"]), len(shard["x"])) for shard in moved] == [(pd.Series, 2), (pd.Series, 1)]
    with pytest.raises(ArgumentError, match="num_partitions must be a positive whole number; got 'two'"):
        shards_of([1]).repartition("two")  # type: ignore[arg-type]


def test_pairs_are_zipped_and_split_again(spark: Any) -> None:
    one, two = XShards.partition(B, 3), XShards.partition(A, 3)
    pairs = one.zip(two)
    assert pairs._get_class_name() == "builtins.tuple"
    first, second = pairs.split()
    for got, expected in ((first, B), (second, A)):
        np.testing.assert_array_equal(np.concatenate(got.collect()), expected)
    triples = shards_of([[1, 2, 3], [4, 5, 6]]).split()
    assert [part.collect() for part in triples] == [[1, 4], [2, 5], [3, 6]]
    assert one.split() == [one]
    with pytest.raises(
        DataError, match=r"split needs shards with the same number of items; got shards of .1, 2. items"
    ):
        shards_of([[1], [1, 2]]).split()


def test_shards_that_do_not_pair_are_not_zipped(spark: Any) -> None:
    one = XShards.partition(B, 2)
    with pytest.raises(ArgumentError, match="other should be a SparkXShards; got list"):
        one.zip([1, 2])  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentError, match="The two SparkXShards should have the same number of partitions; got 2 and 3"
    ):
        one.zip(XShards.partition(B, 3))
    with pytest.raises(
        ArgumentError,
        match="The two SparkXShards should have the same number of elements in each partition; got .1, 1. a",
    ):
        one.zip(shards_of([1, 2, 3], 2))


def test_different_values_of_a_column_are_told(spark: Any) -> None:
    frames = shards_of([pd.DataFrame({"a": [3, 1]}), pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [3]})])
    different = frames["a"].unique()
    assert isinstance(different, np.ndarray) and different.tolist() == [3, 1, 2]
    large = pd.DataFrame({"a": pd.array([2**53 + 1, None], "Int64")})
    assert shards_of([large[:1], large])["a"].unique().tolist() == [2**53 + 1, pd.NA]
    with pytest.raises(
        ArgumentError, match="unique needs shards that are pandas Series, .*; got pandas.core.frame.DataF"
    ):
        frames.unique()


def test_pickled_shards_are_read_again(spark: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "pickles")
    shards = XShards.partition({"x": A, "y": B}, 3)
    assert shards.save_pickle(path) is shards
    loaded = XShards.load_pickle(path)
    assert isinstance(loaded, SparkXShards)
    found = sorted(loaded.collect(), key=lambda part: part["y"][0])
    np.testing.assert_array_equal(np.concatenate([part["x"] for part in found]), A)
    with pytest.raises(ArgumentError, match="save_pickle: there is something at .*pickles already"):
        shards.save_pickle(path)
    with pytest.raises(ArgumentError, match="load_pickle: Path does not exist: .*nowhere"):
        XShards.load_pickle(str(tmp_path / "nowhere"))
