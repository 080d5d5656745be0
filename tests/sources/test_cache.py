from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark import StorageLevel
from pyspark.sql import functions as F
from torch import nn

from orca import Estimator
from orca.core.source import Columns, DataSpec
from orca.errors import ArgumentError
from orca.registry import source_of
from orca.sources import cache
from orca.sources.cache import cached

RANKS = 2


@pytest.fixture(autouse=True)
def nothing_kept(spark: Any) -> Iterator[None]:
    yield
    cache._views.clear()
    spark.catalog.clearCache()


def estimator() -> Any:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    return Estimator.from_torch(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        workers_per_node=RANKS,
        backend="spark",
    )


@pytest.fixture
def calls(spark: Any) -> Any:
    """Return an accumulator of the rows that a function of the user's was called for."""
    return spark.sparkContext.accumulator(0)


def computed(frame: Any, calls: Any) -> Any:
    """Return a frame with a column that a function computes, row by row."""

    def halved(value: int) -> float:
        calls.add(1)
        return value / 2

    return frame.withColumn("y", F.udf(halved, "float")("id")).withColumn("x", F.array(F.col("y"), F.lit(1.0)))


COLUMNS = {"feature_cols": ["x"], "label_cols": ["y"]}


def test_later_calls_compute_no_row_again(spark: Any, calls: Any) -> None:
    frame = computed(spark.range(0, 50, 1, 3), calls)
    est = estimator()
    plain = est.evaluate(frame, batch_size=10, **COLUMNS)
    assert calls.value == 50
    est.fit(frame, epochs=2, batch_size=10, cache=True, **COLUMNS)
    assert calls.value == 100
    est.load_state_dict(estimator().get_state_dict())
    kept = est.evaluate(frame, batch_size=10, cache=True, **COLUMNS)
    answered = est.predict(frame, batch_size=10, feature_cols=["x"], cache=True)
    rows = answered.collect()
    assert calls.value == 100
    assert kept == pytest.approx(plain)
    assert [row.id for row in rows] == list(range(50))
    assert answered.columns == ["id", "y", "x", "prediction"]
    est.evaluate(frame, batch_size=10, **COLUMNS)  # no cache asked for: what is kept is no one else's
    assert calls.value == 150


def test_validation_rows_are_kept_too(spark: Any, calls: Any) -> None:
    train, valid = computed(spark.range(40), calls), computed(spark.range(100, 113), calls)
    est = estimator()
    stats = est.fit(train, epochs=1, batch_size=10, validation_data=valid, cache=True, **COLUMNS)
    assert (stats[0]["num_samples"], stats[0]["val_num_samples"], calls.value) == (40, 13, 53)
    assert est.evaluate(valid, batch_size=10, cache=True, **COLUMNS)["num_samples"] == 13
    assert calls.value == 53


def write(path: Path, start: int, stop: int) -> None:
    path.unlink(missing_ok=True)
    pq.write_table(pa.table({"id": np.arange(start, stop)}), path)


def test_changed_files_are_computed_anew(spark: Any, tmp_path: Path) -> None:
    def kept() -> list[int]:
        frame = spark.read.parquet(str(tmp_path)).orderBy("id")
        return [row.id for row in cached(frame).collect()]

    write(tmp_path / "a.parquet", 0, 3)
    assert kept() == [0, 1, 2]
    write(tmp_path / "a.parquet", 5, 8)
    assert kept() == [5, 6, 7]
    write(tmp_path / "b.parquet", 8, 9)
    assert kept() == [5, 6, 7, 8]
    assert len(cache._views) == 1  # what it was before is let go


def test_changed_files_of_a_subquery_are_noticed(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 0, 3)
    spark.read.parquet(str(tmp_path)).createOrReplaceTempView("limits")
    frame = spark.range(9).where("id > (select max(id) from limits)")
    assert cached(frame).count() == 6
    os.utime(tmp_path / "a.parquet", ns=(0, 0))
    before = cache._views[0][1]
    cached(frame)
    assert not before.sameSemantics(cache._views[0][1])


def test_as_many_are_kept_as_is_said(spark: Any) -> None:
    frames = [spark.range(i + 1) for i in range(cache.MOST + 1)]
    for frame in [*frames[:-1], frames[0], frames[-1]]:
        cached(frame)
    assert [frame.count() for frame, _ in cache._views] == [3, 4, 1, 5]
    levels = [cached_frame.storageLevel for _, cached_frame in cache._views]
    assert levels == [StorageLevel.MEMORY_AND_DISK] * cache.MOST
    spark.catalog.clearCache()  # the program lets go of all
    cached(frames[0])
    assert cache._views[-1][1].storageLevel == StorageLevel.MEMORY_AND_DISK


def test_a_dataframe_that_the_user_keeps_stays_theirs(spark: Any, calls: Any) -> None:
    frame = computed(spark.range(20), calls).persist(StorageLevel.DISK_ONLY)
    est = estimator()
    est.fit(frame, epochs=1, batch_size=10, cache=True, **COLUMNS)
    est.evaluate(frame, batch_size=10, **COLUMNS)
    assert calls.value == 20
    assert not cache._views
    assert frame.storageLevel == StorageLevel.DISK_ONLY


def test_of_files_that_ranks_read_themselves_nothing_is_kept(spark: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1.0, 2.0]] * 4, "y": [0.5] * 4}), tmp_path / "a.parquet")
    frame = spark.read.parquet(str(tmp_path))
    spec = DataSpec(Columns(("x",), ("y",)), cache=True)
    assert isinstance(source_of(frame, spec).shards(RANKS).native, list)
    assert not cache._views


def test_streams_and_other_kinds_of_data_are_refused(spark: Any) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value as x")
    with pytest.raises(ArgumentError, match="cache=True keeps DataFrames .* got a streaming DataFrame. Leave cache"):
        cached(stream)
    with pytest.raises(ArgumentError, match="cache=True keeps the rows of a Spark DataFrame; got tuple"):
        estimator().fit((np.ones((4, 2)), np.ones(4)), cache=True)
