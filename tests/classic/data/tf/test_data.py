from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca import Estimator, XShards
from orca.data.shard import SparkXShards
from orca.errors import ArgumentError, DataError
from orca_classic.data.tf.data import Dataset

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")
pd = pytest.importorskip("pandas")

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = X.sum(1, keepdims=True)


def make_model(config: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    return model


@pytest.mark.slow
def test_a_fit_on_mapped_shards_is_a_fit_on_mapped_arrays(spark: Any) -> None:
    shards = XShards.partition({"x": X, "y": Y}, num_shards=3)
    data = Dataset.from_tensor_slices(shards).map(lambda row: (row["x"] / 40, row["y"])).map(lambda x, y: (x, y / 80))
    est = Estimator.from_keras(model_creator=make_model, workers_per_node=1)
    est.fit(data, epochs=3, batch_size=20, shuffle=False)
    plain = make_model({})
    plain.fit(X / 40, Y / 80, epochs=3, batch_size=20, shuffle=False, verbose=0)
    for mine, theirs in zip(est.get_model().get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    predicted = est.predict(data).collect()  # an entry a row
    assert len(predicted) == len(X)
    np.testing.assert_allclose(np.stack(predicted).reshape(-1, 1), plain.predict(X / 40, verbose=0), rtol=1e-4)


def test_rows_of_every_form_of_shard_are_mapped(spark: Any) -> None:
    frames = SparkXShards(spark.sparkContext.parallelize([pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})], 1))
    (part,) = (
        Dataset.from_tensor_slices(frames).map(lambda row: (row["a"] * 2, row["b"], row["a"])).get_xshards().collect()
    )
    assert {name: values.tolist() for name, values in part.items()} == {"x": [2, 4], "y": [3, 4], "weights": [1, 2]}
    pairs = Dataset.from_tensor_slices(XShards.partition((X, {"k": Y}), num_shards=2))
    parts = pairs.get_xshards().collect()
    np.testing.assert_array_equal(np.concatenate([part["y"]["k"] for part in parts]), Y)
    empty = SparkXShards(spark.sparkContext.parallelize([{"x": X[:0]}], 1))
    (part,) = Dataset.from_tensor_slices(empty).map(lambda row: row["x"][:1]).get_xshards().collect()
    assert part["x"].shape == (0, 1)


def test_what_is_no_dataset_is_refused(spark: Any) -> None:
    with pytest.raises(ArgumentError, match="from_tensor_slices takes XShards; got ndarray"):
        Dataset.from_tensor_slices(X)  # type: ignore[arg-type]
    four = Dataset.from_tensor_slices(XShards.partition({"x": X}, 1)).map(lambda row: (row["x"],) * 4)
    with pytest.raises(Exception, match=r"a row must become x, \(x, y\) or \(x, y, weights\); got 4 things"):
        four.get_xshards().collect()
    from orca_classic.data.tf.data import _named

    with pytest.raises(DataError, match="got 4 things"):
        _named((1, 2, 3, 4))


def test_rows_of_a_table_are_mapped(spark: Any) -> None:
    df = spark.range(5).selectExpr("cast(id as float) as a", "array(id, 2 * id) as b").coalesce(1)

    class Table:
        def __init__(self, df: Any) -> None:
            self.df = df

    for table in (df, Table(df)):
        data = Dataset.from_feature_table(table).map(lambda row: (row["b"], row["a"]))
        (part,) = data.get_xshards().collect()
        assert part["x"].tolist() == [[i, 2 * i] for i in range(5)] and part["y"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ArgumentError, match="from_feature_table takes a Spark DataFrame, .*; got ndarray. For XShards"):
        Dataset.from_feature_table(X)
