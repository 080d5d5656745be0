"""DataFrames as shards of arrays, and predictions as columns, against the rows themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from orca.data.shard import SparkXShards
from orca.errors import ArgumentError, DataError
from orca_classic.shard_frames import (
    add_predict_to_pd_xshards,
    convert_predict_rdd_to_dataframe,
    convert_predict_rdd_to_xshard,
    convert_predict_xshards_to_dataframe,
    dataframe_to_xshards,
    maybe_dataframe_to_xshards,
    update_predict_xshards,
)

ROWS = [(float(i), [float(i), 1.0], i % 3) for i in range(10)]


@pytest.fixture
def frame(spark: Any) -> Any:
    return spark.createDataFrame(ROWS, "a double, v array<double>, label int").repartition(2).sortWithinPartitions("a")


def test_columns_become_arrays(frame: Any) -> None:
    shards, valid = dataframe_to_xshards(frame, None, ["a", "v"], ["label"], num_workers=3)
    assert valid is None and shards.num_partitions() == 3
    for shard in shards.collect():
        a, v = shard["x"]
        assert a.shape == shard["y"].shape and v.shape == (len(a), 2)
        assert (v[:, 0] == a).all() and (shard["y"] == a % 3).all()
    assert sorted(np.concatenate([shard["x"][0] for shard in shards.collect()])) == list(range(10))


def test_shards_have_no_more_rows_than_asked_for(frame: Any) -> None:
    shards, valid = dataframe_to_xshards(frame, frame, ["a"], ["label"], shard_size=3)
    assert all(len(shard["x"]) <= 3 for shard in shards.collect() + valid.collect())
    assert sum(len(shard["x"]) for shard in valid.collect()) == 10
    (rows, none) = maybe_dataframe_to_xshards(frame, None, ["a"], None, mode="predict")
    assert none is None and all(set(shard) == {"x"} for shard in rows.collect())
    assert maybe_dataframe_to_xshards([1], None, ["a"], None) == ([1], None)


def test_what_does_not_fit_is_refused(frame: Any, spark: Any) -> None:
    with pytest.raises(ArgumentError, match="mode must be one of fit, evaluate, predict; got 'train'"):
        dataframe_to_xshards(frame, None, ["a"], ["label"], mode="train")
    with pytest.raises(ArgumentError, match="needs feature_cols=, and label_cols="):
        dataframe_to_xshards(frame, None, ["a"], None)
    with pytest.raises(ArgumentError, match="has no columns b; it has a, v, label"):
        dataframe_to_xshards(frame, None, ["b"], ["label"])
    texts = spark.createDataFrame([("x",)], ["t"])
    with pytest.raises(ArgumentError, match="the columns t hold texts"):
        dataframe_to_xshards(texts, None, ["t"], None, mode="predict")
    shards, _ = dataframe_to_xshards(texts, None, ["t"], None, mode="predict", accept_str_col=True)
    assert [list(shard["x"]) for shard in shards.collect() if len(shard["x"])] == [["x"]]
    with pytest.raises(DataError, match="needs a prediction for each row; got none"):
        convert_predict_rdd_to_dataframe(frame, frame.limit(0).rdd)


def test_predictions_become_columns(frame: Any) -> None:
    vectors = convert_predict_rdd_to_dataframe(frame, frame.rdd.map(lambda row: np.array([row.a, 2.0])))
    assert vectors.schema["label"].dataType.typeName() == "integer"
    assert all(row.prediction.toArray().tolist() == [row.a, 2.0] for row in vectors.collect())
    named = convert_predict_rdd_to_dataframe(frame, frame.rdd.map(lambda row: [row.a, np.eye(2)]), ["p", "q"])
    assert all(row.p == row.a and row.q == [[1.0, 0.0], [0.0, 1.0]] for row in named.collect())
    shards, _ = dataframe_to_xshards(frame, None, ["a"], None, mode="predict")
    predicted = shards.transform_shard(lambda shard: {"prediction": shard["x"] * 2})
    frame_of_both = convert_predict_xshards_to_dataframe(frame, predicted)
    assert all(row.prediction == row.a * 2 for row in frame_of_both.collect())


def test_predictions_join_their_shards(frame: Any) -> None:
    shards, _ = dataframe_to_xshards(frame, None, ["a"], None, mode="predict", shard_size=3)
    flat = shards.rdd.flatMap(lambda shard: list(shard["x"] + 1))
    joined = convert_predict_rdd_to_xshard(shards, flat)
    assert all((shard["prediction"] == shard["x"] + 1).all() for shard in joined.collect())
    pairs = shards.rdd.flatMap(lambda shard: [[x, np.ones(2)] for x in shard["x"]])
    two = convert_predict_rdd_to_xshard(shards, pairs).collect()
    assert all(len(shard["prediction"]) == 2 and shard["prediction"][1].shape[1] == 2 for shard in two)
    merged = update_predict_xshards(shards, joined.transform_shard(lambda shard: {"p": shard["prediction"]}))
    assert all(set(shard) == {"x", "p"} for shard in merged.collect())
    frames = SparkXShards(shards.rdd.map(_as_frame))
    table = add_predict_to_pd_xshards(frames, joined).collect()
    assert all((rows.prediction == rows.a + 1).all() for rows in table)


def _as_frame(shard: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame({"a": shard["x"]})
