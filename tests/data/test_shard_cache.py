"""Shards that are kept: in files of this machine, or by Spark."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca import OrcaContext, XShards
from orca.data import frames, shard_cache
from orca.data.shard import SparkXShards
from orca.errors import DataError

ROWS = 40_000  # more bytes than are read rather than mapped


def frame_of(rows: int = ROWS) -> pd.DataFrame:
    numbers = np.arange(rows)
    return pd.DataFrame(
        {
            "n": numbers,
            "x": np.where(numbers % 7, numbers / 3, np.nan),
            "s": [None if number % 5 == 0 else f"text {number % 11}" for number in range(rows)],
            "c": pd.Categorical(np.take(["a", "b"], numbers % 2)),
            "t": pd.Timestamp("2024-01-01") + pd.to_timedelta(numbers, unit="s"),
            "i": pd.array([None if number % 3 == 0 else number for number in range(rows)], dtype="Int64"),
        },
        index=numbers + 5,
    )


def folders(spark: Any) -> list[Path]:
    return sorted(Path(spark.sparkContext._temp_dir).glob("shards-*"))


@pytest.mark.parametrize("rows", [3, ROWS])
def test_shards_come_back_as_they_were_and_may_be_changed(spark: Any, rows: int) -> None:
    frame = frame_of(rows)
    shards = XShards.partition(frame, 2)
    assert len(folders(spark)) >= 1
    first = shards.first()
    first.loc[:, "n"] = 0
    first["x"].to_numpy()
    pd.testing.assert_frame_equal(shards.concat_to_pdf(), frame)

    def changed(shard: pd.DataFrame) -> float:
        shard.loc[:, "x"] = 1.0
        return float(shard["x"].sum())

    shards.cache()
    assert sum(shards.transform_shard(changed).collect()) == rows
    pd.testing.assert_frame_equal(shards.concat_to_pdf(), frame)


@pytest.mark.parametrize(
    "shard",
    [
        {
            "x": np.arange(60_000.0).reshape(-1, 3),
            "y": [np.zeros(0), (np.asfortranarray(np.ones((9, 2))), "text", None)],
        },
        np.array(["a", None, 3], object),
        np.array(7),
        [1, "two", 3.0],
        "text",
        None,
    ],
    ids=["tree", "objects", "scalar", "list", "text", "none"],
)
def test_a_shard_of_any_kind_is_kept(tmp_path: Path, shard: Any) -> None:
    (record,) = shard_cache.Writing(str(tmp_path))([shard, shard])
    again = list(shard_cache.read([record]))
    assert len(again) == 2
    assert all(pickle.dumps(each) == pickle.dumps(shard) for each in again)
    assert record.info is not None and record.info.shards == 2 and not record.info.layouts


def test_shards_of_many_small_arrays_are_kept(tmp_path: Path) -> None:
    shards = [{str(i): np.full(75, float(i)) for i in range(100)} for _ in range(3)]  # with the gaps they are large
    (record,) = shard_cache.Writing(str(tmp_path))(shards)
    assert [pickle.dumps(shard) for shard in shard_cache.read([record])] == [pickle.dumps(shard) for shard in shards]


def test_many_large_shards_take_few_of_the_files_that_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_cache, "_MOST_MAPS", len(shard_cache._maps) + 2)
    (record,) = shard_cache.Writing(str(tmp_path))([np.full(20_000, i) for i in range(9)])
    before = len(os.listdir("/proc/self/fd"))
    shards = list(shard_cache.read([record]))
    assert len(os.listdir("/proc/self/fd")) - before <= 2
    assert [int(shard[-1]) for shard in shards] == list(range(9))
    shards[8][0] = -1  # those that are read may be changed as well


def test_shards_are_used_by_several_threads(spark: Any) -> None:
    for _ in range(3):
        shards = XShards.partition(np.arange(8_000), 8)

        def total(number: int, shards: Any = shards) -> int:
            return int(np.concatenate(shards.transform_shard(lambda shard: shard + number).collect()).sum())

        with ThreadPoolExecutor(4) as threads:
            totals = list(threads.map(total, range(4)))
        assert totals == [8_000 * 7_999 // 2 + 8_000 * number for number in range(4)]


def test_no_shards_are_named(spark: Any) -> None:
    with pytest.raises(DataError, match="there are no shards"):
        SparkXShards(spark.sparkContext.parallelize([], 2)).first()


def test_files_go_when_shards_are_let_go(spark: Any) -> None:
    deadline = time.monotonic() + 60
    while shard_cache.is_busy(spark.sparkContext) and time.monotonic() < deadline:  # daemons start in the background
        time.sleep(0.1)
    gc.collect()  # what other tests have left
    shard_cache._folders.new(spark.sparkContext).rmdir()
    before = set(folders(spark))
    shards = XShards.partition(np.arange(10), 2)
    (folder,) = set(folders(spark)) - before
    made = shards.transform_shard(lambda shard: shard + 1)
    (other,) = set(folders(spark)) - before - {folder}
    with pytest.raises(Exception, match="ZeroDivisionError"):
        made.transform_shard(lambda shard: 1 // 0)
    assert set(folders(spark)) - before == {folder, other}
    made.uncache()
    assert not other.exists() and not made.is_cached()
    assert np.concatenate(made.collect()).tolist() == list(range(1, 11))  # computed again
    shards.uncache()
    assert set(folders(spark)) == before


def test_shards_that_nothing_refers_to_are_released_one_after_the_other(spark: Any) -> None:
    def kept() -> int:
        return len(spark.sparkContext._jsc.getPersistentRDDs())

    assert until(lambda: not shard_cache.is_busy(spark.sparkContext))
    shards = XShards.partition(np.arange(10), 2)
    before, most = set(folders(spark)), []
    for _ in range(5):
        shards = shards.transform_shard(lambda shard: shard + 1)
        most.append((len(folders(spark)), kept()))
    assert max(files for files, _ in most) <= len(before) + 1 and max(rdds for _, rdds in most) <= most[0][1]
    frames = shards.transform_shard(lambda shard: pd.DataFrame({"n": shard}))
    for _ in range(4):
        frames = frames.sort_values("n").merge(frames, on="n")
        most.append((len(folders(spark)), kept()))
    assert max(files for files, _ in most) <= len(before) + 3  # frames, sorted, merged, and those they are made of
    assert frames.concat_to_pdf()["n"].tolist() == list(range(5, 15))


def drawn(shard: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"n": shard, "draw": np.random.default_rng().random(len(shard))})


@pytest.mark.parametrize("way", ["eager", "cached", "lazy verbs", "temporary"])
def test_parts_of_a_random_split_have_no_row_in_common(spark: Any, way: str) -> None:
    rows = XShards.partition(np.arange(1000), 2)
    shards = (rows.to_lazy() if way == "cached" else rows).transform_shard(drawn)
    if way == "cached":
        shards.cache()
    elif way == "lazy verbs":
        shards = shards.to_lazy().repartition(2).partition_by("n", 3)  # whose shuffles Python does not see
    elif way == "temporary":
        shards = shards.transform_shard(lambda frame: frame).to_lazy().select(["n", "draw"])
    gc.collect()
    XShards.partition(np.arange(10), 2)  # which releases what nothing refers to
    train = shards.transform_shard(lambda frame: frame[frame["draw"] < 0.8])
    test = shards.transform_shard(lambda frame: frame[frame["draw"] >= 0.8])
    parts = [set(part.concat_to_pdf()["n"]) for part in (train, test)]
    assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 1000


def test_a_dataframe_of_random_rows_stays_the_same_when_its_shards_are_gone(spark: Any) -> None:
    rows = XShards.partition(np.arange(100), 2).transform_shard(drawn).to_lazy().select(["n", "draw"]).to_spark_df()
    first = [row.draw for row in rows.orderBy("n").collect()]
    gc.collect()
    XShards.partition(np.arange(10), 2).transform_shard(lambda shard: shard)
    assert [row.draw for row in rows.orderBy("n").collect()] == first


def test_lazy_shards_outlive_the_files_they_are_made_of(spark: Any) -> None:
    shards = XShards.partition(np.arange(10), 2)
    lazy = shards.to_lazy().transform_shard(lambda shard: shard * 2)
    assert np.concatenate(lazy.collect()).tolist() == list(range(0, 20, 2))
    shards.uncache()
    assert np.concatenate(lazy.collect()).tolist() == list(range(0, 20, 2))
    assert not lazy.is_cached()
    assert np.concatenate(lazy.cache().collect()).tolist() == list(range(0, 20, 2))
    assert lazy.is_cached()
    lazy.uncache()


def test_files_of_shards_that_nobody_holds_are_removed_and_a_dataframe_holds_them(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_cache, "_ABANDONED", 1)
    before = set(folders(spark))
    rows = XShards.partition(pd.DataFrame({"n": np.arange(10)}), 2).to_spark_df()
    (held,) = set(folders(spark)) - before
    XShards.partition(np.arange(10), 2)  # nobody holds these
    (lost,) = set(folders(spark)) - before - {held}
    deadline = time.monotonic() + 60
    while lost.exists() and time.monotonic() < deadline:
        gc.collect()
        XShards.partition(np.arange(2), 1)
        time.sleep(0.2)
    assert not lost.exists()
    assert held.exists()
    assert rows.count() == 10


def test_files_that_vanish_are_named_and_made_anew_when_asked(spark: Any) -> None:
    shards = XShards.partition(np.arange(10), 2)
    assert isinstance(shards._holder, shard_cache.InFiles)
    for file in shards._holder.folder.iterdir():
        file.unlink()
    with pytest.raises(DataError, match="the file of computed shards .* is gone: .*Call uncache"):
        shards.collect()
    with pytest.raises(Exception, match="the file of computed shards .* is gone"):
        shards.transform_shard(lambda shard: shard + 1)
    shards.uncache()
    assert np.concatenate(shards.transform_shard(lambda shard: shard + 1).collect()).tolist() == list(range(1, 11))


def test_a_worker_that_is_killed_loses_nothing(spark: Any) -> None:
    shards = XShards.partition(pd.DataFrame({"k": np.arange(10) % 3, "n": np.arange(10)}), 2)
    with pytest.raises(Exception, match="(?s)Python worker exited unexpectedly|crashed"):
        shards.transform_shard(lambda shard: os.kill(os.getpid(), signal.SIGKILL))
    assert shards.is_cached()
    got = shards.group_by("k", {"n": "sum"}).concat_to_pdf().set_index("k")["sum(n)"]
    assert got.to_dict() == {0: 18, 1: 12, 2: 15}


def test_an_rdd_that_spark_keeps_is_left_with_it(spark: Any) -> None:
    frame = frame_of(100)
    rdd = spark.sparkContext.parallelize([frame[:60], frame[60:]], 2).cache()
    shards = SparkXShards(rdd)
    assert shards.is_cached() and shards._holder is not None and isinstance(shards._holder, shard_cache.InSpark)
    assert shards._get_class_name() == "pandas.core.frame.DataFrame" and len(shards.first()) == 60
    pd.testing.assert_frame_equal(shards.concat_to_pdf(), frame)
    names = XShards.partition(pd.DataFrame({"c": ["a", "b"], "name": ["A", "B"]}), 1)
    assert len(shards.merge(names, on="c")) == len(names.merge(shards, on="c")) == 100
    assert rdd.is_cached
    shards.uncache()
    assert not rdd.is_cached


def test_a_cached_pipeline_is_the_same_in_both_modes(spark: Any) -> None:
    frame = frame_of(1000)
    answers = []
    for eager in (True, False):
        OrcaContext._eager_mode = eager
        try:
            shards = XShards.partition(frame, 3).transform_shard(lambda shard: shard[shard["n"] > 10]).cache()
            groups = shards.group_by(["c", "s"], {"n": ["sum", "mean"], "i": "count", "t": "max"})
            answers.append(shards.merge(groups, on=["c", "s"]).concat_to_pdf().sort_values("n", ignore_index=True))
            shards.uncache()
        finally:
            OrcaContext._eager_mode = True
    pd.testing.assert_frame_equal(*answers)
    assert len(answers[0]) == 989


def test_large_objects_count_in_the_size_of_shards_that_spark_keeps(spark: Any) -> None:
    images = pd.DataFrame({"id": range(20), "image": pd.Series([bytes(1 << 20)] * 20, dtype=object)})
    rdd = spark.sparkContext.parallelize([images, images[["id"]]], 2)
    sizes = [shard_cache.InSpark(part.cache()).size() for part in (rdd, rdd.map(lambda frame: frame[["id"]]))]
    assert sizes[0] > frames.BROADCAST > sizes[1]


def test_jobs_are_noticed_where_the_scheduler_cannot_be_asked(spark: Any) -> None:
    context = spark.sparkContext
    other = SimpleNamespace(_jsc=SimpleNamespace(sc=context._jvm.java.lang.Object), statusTracker=context.statusTracker)

    def waits(kind: Any) -> None:
        assert until(lambda: not shard_cache.is_busy(kind))
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(context.parallelize([0.5], 1).map(time.sleep).collect)
            assert until(lambda: shard_cache.is_busy(kind))
            job.result()
        assert until(lambda: not shard_cache.is_busy(kind))

    waits(context)
    waits(other)


def until(happens: Any) -> bool:
    end = time.monotonic() + 20
    while not happens() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(happens())
