from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca.data.shard import SparkXShards
from orca.data.transformer import MinMaxScaler, Moments, StandardScaler, StringIndex, StringIndexer
from orca.errors import ArgumentError, DataError

pd = pytest.importorskip("pandas")


def shards_of(spark: Any, *frames: Any) -> SparkXShards:
    """Return shards of very different sizes, several of them in one partition."""
    return SparkXShards(spark.sparkContext.parallelize(frames, 2))


def whole(shards: SparkXShards) -> Any:
    return pd.concat(shards.collect(), ignore_index=True)


CITIES = [["b", "a", "b"], [], ["c", None, "b", "a"]]


def cities(spark: Any) -> SparkXShards:
    return shards_of(spark, *(pd.DataFrame({"city": pd.Series(rows, dtype=object), "n": 1}) for rows in CITIES))


def test_values_of_all_shards_are_numbered_from_one(spark: Any) -> None:
    indexer = StringIndexer(inputCol="city")
    given = cities(spark)
    indexed = whole(indexer.fit_transform(given))
    assert indexed.city.tolist() == [2, 1, 2, 3, 0, 2, 1] and indexed.city.dtype == np.int64
    assert indexed.n.tolist() == [1] * 7
    assert whole(given).city.tolist()[:3] == ["b", "a", "b"]
    more = shards_of(
        spark, pd.DataFrame({"city": ["c", "z"]}), pd.DataFrame({"city": pd.Series(["a"], dtype="category")})
    )
    assert whole(indexer.transform(more)).city.tolist() == [3, 0, 1]
    assert [index.to_dict() for index in indexer.string_indices] == [{"a": 1, "b": 2, "c": 3}]


def test_numbers_may_go_by_how_often_values_are_there(spark: Any) -> None:
    indexer = StringIndexer(inputCol=["city"], order_by_freq=True, freq_limit=2)
    assert whole(indexer.fit_transform(cities(spark))).city.tolist() == [1, 2, 1, 0, 0, 1, 2]
    frames = pd.DataFrame({"city": ["x"], "n": [7]}), pd.DataFrame({"city": ["y"], "n": [5]})
    both = whole(StringIndexer().setInputCol(["city", "n"]).fit_transform(shards_of(spark, *frames)))
    assert both.to_dict("list") == {"city": [1, 2], "n": [2, 1]}


def test_texts_and_numbers_of_one_column_are_numbered(spark: Any) -> None:
    mixed = pd.DataFrame({"city": pd.Series([7, "x", None, 5], dtype=object)})
    indexer = StringIndexer(inputCol="city")
    assert whole(indexer.fit_transform(shards_of(spark, mixed, mixed))).city.tolist() == [2, 3, 0, 1] * 2


def test_an_index_is_made_of_a_dict_or_a_frame() -> None:
    index = StringIndex(pd.DataFrame({"city": ["a", "b"], "id": [1, 2]}), "city")
    assert index.to_dict() == StringIndex.from_dict({"a": 1, "b": 2}, "city").to_dict() == {"a": 1, "b": 2}
    assert index.col_name == "city"
    with pytest.raises(ArgumentError, match="indices must be a dict of numbers by value; got list"):
        StringIndex.from_dict(["a"], "city")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="col_name must be the name of the column"):
        StringIndex.from_dict({"a": 1}, "")
    with pytest.raises(DataError, match=r"a StringIndex needs the columns 'town' and 'id'; got \['city', 'id'\]"):
        StringIndex(pd.DataFrame({"city": ["a"], "id": [1]}), "town")


def uneven(seed: int = 0) -> list[Any]:
    """Return frames of 1 to 50 rows, one of them empty, far from zero and of very different values, with holes."""
    generator = np.random.default_rng(seed)
    frames = []
    for rows, centre in ((50, 1e6), (1, -3.0), (0, 0.0), (7, 1e6 + 5)):
        x = generator.normal(centre, 3.0, rows)
        frames.append(pd.DataFrame({"x": x, "k": np.arange(rows), "same": 4.0, "v": list(np.stack([x, -x], 1))}))
    frames[3].loc[2, "x"] = np.nan
    return frames


def test_min_max_is_that_of_all_rows(spark: Any) -> None:
    frames = uneven()
    scaled = whole(MinMaxScaler(inputCol="x", outputCol="y").fit_transform(shards_of(spark, *frames)))
    x = pd.concat(frames, ignore_index=True).x
    np.testing.assert_allclose(scaled.y, (x - x.min()) / (x.max() - x.min()), rtol=1e-12)
    assert scaled.y.min() == 0 and scaled.y.isna().sum() == 1 and scaled.x.equals(x)
    signed = whole(MinMaxScaler(-1.0, 1.0, inputCol="x").fit_transform(shards_of(spark, *frames)))
    assert signed.x.min() == -1 and signed.x.max() == 1
    constant = whole(MinMaxScaler(0, 5, inputCol="same").fit_transform(shards_of(spark, *frames)))
    assert set(constant.same) == {2.5}


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("deviation", [False, True])
def test_standard_scaling_is_that_of_all_rows(spark: Any, mean: bool, deviation: bool) -> None:
    frames = uneven()
    x = pd.concat(frames, ignore_index=True).x
    scaled = whole(StandardScaler(mean, deviation, "x", "y").fit_transform(shards_of(spark, *frames)))
    expected = (x - (x.mean() if mean else 0)) / (x.std() if deviation else 1)
    np.testing.assert_allclose(scaled.y, expected, rtol=1e-10, atol=1e-12)


def test_scaling_agrees_with_spark_ml(spark: Any) -> None:
    from pyspark.ml.feature import MinMaxScaler as SparkMinMax
    from pyspark.ml.feature import StandardScaler as SparkStandard
    from pyspark.ml.linalg import Vectors

    rows = [[1.0, 5.0, 2.0], [3.0, 5.0, -2.0], [8.0, 5.0, 0.5]]
    frame = spark.createDataFrame([(Vectors.dense(row),) for row in rows], ["v"])
    ours = shards_of(spark, pd.DataFrame({"v": rows[:1]}), pd.DataFrame({"v": [np.array(row) for row in rows[1:]]}))
    pairs = [
        (SparkMinMax(min=-1, max=2, inputCol="v", outputCol="o"), MinMaxScaler(-1, 2, "v", "o")),
        (SparkStandard(withMean=True, inputCol="v", outputCol="o"), StandardScaler(True, True, "v", "o")),
    ]
    for theirs, mine in pairs:
        expected = [row.o.toArray() for row in theirs.fit(frame).transform(frame).collect()]
        np.testing.assert_allclose(np.stack(whole(mine.fit_transform(ours)).o), expected, rtol=1e-12)


def test_arrays_vectors_and_several_columns_are_scaled_place_by_place(spark: Any) -> None:
    from pyspark.ml.linalg import Vectors

    frames = uneven()
    v = np.stack(pd.concat(frames, ignore_index=True).v)
    expected = (v - v.min(0)) / (v.max(0) - v.min(0))
    scaler = MinMaxScaler().setInputOutputCol("v", "w")
    np.testing.assert_allclose(np.stack(whole(scaler.fit_transform(shards_of(spark, *frames))).w), expected, rtol=1e-12)
    vectors = shards_of(spark, pd.DataFrame({"v": [Vectors.dense(v[0]), Vectors.sparse(2, {0: v[1][0], 1: v[1][1]})]}))
    np.testing.assert_allclose(np.stack(whole(scaler.transform(vectors)).w), expected[:2], rtol=1e-12)
    both = whole(MinMaxScaler(inputCol=["k", "same"], outputCol="w").fit_transform(shards_of(spark, *frames)))
    assert both.w[0].tolist() == [0.0, 0.5] and both.w[49].tolist() == [1.0, 0.5]


def test_moments_of_halves_are_those_of_the_whole() -> None:
    rows = np.random.default_rng(1).normal(1e8, 1.0, (1001, 2))
    rows[5, 1] = np.nan
    one = Moments.of(rows)
    for cut in (1, 6, 400, 1000):
        both = Moments.merged(Moments.of(rows[:cut]), Moments.of(rows[cut:]))
        assert both is not None
        np.testing.assert_allclose(both.mean, one.mean, rtol=1e-14)
        np.testing.assert_allclose(both.squares, one.squares, rtol=1e-9)
        assert both.count.tolist() == [1001, 1000] and (both.low == one.low).all() and (both.high == one.high).all()


def test_what_cannot_be_fitted_is_refused(spark: Any) -> None:
    one = pd.DataFrame({"t": ["x"], "v": [[1.0, 2.0]], "m": [[[1.0]]]})
    shards = shards_of(spark, one, pd.DataFrame({"t": ["y"], "v": [[1.0]], "m": [[[2.0]]]}))
    for make, message in (
        (StringIndexer, "there is no column 'z'; the shards have"),
        (lambda inputCol: MinMaxScaler(inputCol=inputCol), "there is no column 'z'; the shards have"),
    ):
        with pytest.raises(DataError, match=message):
            make("z").fit_transform(shards)
    with pytest.raises(DataError, match="column 't' must hold numbers or arrays of numbers"):
        StandardScaler(inputCol="t").fit_transform(shards)
    with pytest.raises(DataError, match="arrays must have one length in all rows; got [12] and [12]"):
        StandardScaler(inputCol="v").fit_transform(shards)
    with pytest.raises(DataError, match="column 'm' must hold arrays of one dimension; got 2"):
        StandardScaler(inputCol="m").fit_transform(shards)
    with pytest.raises(DataError, match="MinMaxScaler cannot be fitted: the shards have no rows"):
        MinMaxScaler(inputCol="x").fit_transform(shards_of(spark, pd.DataFrame({"x": []})))
    with pytest.raises(DataError, match="transformers take XShards of pandas DataFrames; got shards of dict"):
        MinMaxScaler(inputCol="x").fit_transform(SparkXShards(spark.sparkContext.parallelize([{"x": 1}])))


@pytest.mark.parametrize("transformer", [StringIndexer("x"), MinMaxScaler(inputCol="x"), StandardScaler(inputCol="x")])
def test_what_was_not_fitted_transforms_nothing(transformer: Any) -> None:
    with pytest.raises(ArgumentError, match=f"this {type(transformer).__name__} was not fitted. Call fit_transform"):
        transformer.transform(None)


def test_columns_must_be_named(spark: Any) -> None:
    for transformer in (StringIndexer(), MinMaxScaler()):
        with pytest.raises(ArgumentError, match="inputCol must name a column, or several in a list; got None"):
            transformer.fit_transform(cities(spark))
    with pytest.raises(ArgumentError, match=r"the columns \['a', 'b'\] become one: name it with outputCol"):
        MinMaxScaler(inputCol=["a", "b"]).fit_transform(cities(spark))
    with pytest.raises(ArgumentError, match="min must be less than max; got min=2, max=1"):
        MinMaxScaler(2, 1)
