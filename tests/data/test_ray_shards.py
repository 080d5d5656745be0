"""XShards in Ray: from Spark and back, transformed there, given to actors, and fed to ranks."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca import OrcaContext, XShards
from orca.data.ray_shards import RayXShards
from orca.data.shard import SharedValue, SparkXShards, spark_df_to_ray_dataset
from orca.errors import ArgumentError

ray = pytest.importorskip("ray")

B = np.arange(10)


class Adder:
    """An actor that knows its node."""

    def get_node_ip(self) -> str:
        return str(ray.util.get_node_ip_address())

    def add(self, shards: list[Any]) -> list[Any]:
        return [shard + 100 for shard in shards]

    def total(self, *partitions: list[Any]) -> int:
        return int(sum(shard.sum() for shards in partitions for shard in shards))


@pytest.fixture
def actors(ray_context: Any) -> Any:
    made = [ray.remote(Adder).options(num_cpus=0).remote() for _ in range(2)]
    yield made
    for actor in made:
        ray.kill(actor)


@pytest.fixture
def staged(spark: Any, tmp_path: Any) -> Any:
    """Let rows pass through a folder that all share, or through the driver, as they do on clusters."""

    def set_to(place: str) -> None:
        if place:
            spark.conf.set("spark.orca.staging", str(tmp_path) if place == "folder" else place)

    yield set_to
    spark.conf.unset("spark.orca.staging")


@pytest.mark.parametrize("place", ["", "driver", "folder"])
def test_shards_go_to_ray_and_back_with_their_partitions(spark: Any, ray_context: Any, staged: Any, place: str) -> None:
    staged(place)
    items = [np.arange(3), {"x": np.arange(2)}, pd.DataFrame({"a": [1, 2]})]
    shards = SparkXShards(spark.sparkContext.parallelize([[], items[:1], items[1:], []], 4).flatMap(list))
    there = RayXShards.from_spark_xshards(shards)
    assert there.num_partitions() == len(there.get_refs()) == len(there.get_partition_refs()) == 4
    assert [len(partition) for partition in there.collect_partitions()] == [0, 1, 2, 0]
    assert len(there) == 3 + 2 + 2  # rows: of an array, of the arrays in a dict, of a frame
    back = there.to_spark_xshards()
    assert back.num_partitions() == 4
    for found in (there.collect(), back.collect()):
        assert found[0].tolist() == [0, 1, 2] and found[1]["x"].tolist() == [0, 1]
        pd.testing.assert_frame_equal(found[2], items[2])


def test_shards_are_transformed_in_ray(spark: Any, ray_context: Any) -> None:
    there = RayXShards.from_spark_xshards(XShards.partition(B, 3))
    shared = SharedValue({"by": 3})
    made = there.transform_shard(lambda shard, by, more: shard * by["by"] + more, shared, 1)
    assert np.concatenate(made.collect()).tolist() == (B * 3 + 1).tolist()
    with pytest.raises(Exception, match="division by zero|ZeroDivisionError"):
        there.transform_shard(lambda shard: 1 // 0).collect()
    with pytest.raises(ArgumentError, match="from_spark_xshards takes SparkXShards; got list"):
        RayXShards.from_spark_xshards([1])  # type: ignore[arg-type]


def test_shards_are_kept_saved_and_loaded_in_ray(ray_context: Any, tmp_path: Any) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "s": ["x", None, "z"]})
    shards = RayXShards.of([[frame[:1], frame[1:1]], [], [frame[1:]]])
    assert shards.cache() is shards.uncache() is shards.compute() is shards and shards.is_cached()
    with pytest.raises(Exception, match="division by zero|ZeroDivisionError"):
        shards.transform_shard(lambda shard: 1 // 0).compute()
    places = [str(tmp_path / name) for name in ("pickles", "parquet")]
    assert shards.save_pickle(places[0]) is shards and shards.save_parquet(places[1]) is shards
    loaded = [RayXShards.load_pickle(places[0]), RayXShards.load_parquet(places[1])]
    assert [len(partition) for partition in loaded[0].collect_partitions()] == [2, 0, 1]
    for made in loaded:
        assert [len(part) for part in made.collect()] == [1, 0, 2]
        pd.testing.assert_frame_equal(made.concat_to_pdf(), frame)
    for save in (shards.save_pickle, shards.save_parquet):
        with pytest.raises(ArgumentError, match=f"{save.__name__}: there is something at .* already"):
            save(str(tmp_path))
    with pytest.raises(ArgumentError, match="holds no shards that RayXShards.save_pickle.*What Spark has saved"):
        RayXShards.load_pickle(places[1])


def test_shards_of_ray_become_a_spark_dataframe_and_its_pickles_are_read(
    spark: Any, ray_context: Any, tmp_path: Any
) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "s": ["x", None, "z"]})
    shards = RayXShards.of([[frame[:1]], [], [frame[1:]]])
    assert sorted(map(tuple, shards.to_spark_df().collect())) == [(1, "x"), (2, None), (3, "z")]
    with pytest.raises(ArgumentError, match="to_spark_df needs shards that are pandas DataFrames; got numpy.ndarray"):
        RayXShards.of([[B]]).to_spark_df()
    shards.save_pickle(str(tmp_path / "pickles"))
    there = XShards.load_pickle(str(tmp_path / "pickles"))
    assert isinstance(there, SparkXShards) and there.num_partitions() == 3
    pd.testing.assert_frame_equal(there.concat_to_pdf(), frame)


def test_verbs_do_in_ray_what_pandas_does_with_all_rows(ray_context: Any) -> None:
    rows = pd.DataFrame(
        {"k": [1, 2, 1, 2, 3, 1], "s": ["a", None, "b", "a", None, "c"], "v": [1.0, np.nan, 3.0, 4.0, 5.0, 6.0]}
    )
    shards = RayXShards.of([[rows[:2], rows[:0]], [rows[2:5]], [], [rows[5:]]])
    assert len(shards) == 6 and len(shards.first()) == 2 and [len(part) for part in shards.take(3)] == [2, 0, 3]
    pd.testing.assert_frame_equal(shards.concat_to_pdf(), rows)
    pd.testing.assert_frame_equal(shards.head(3), rows.head(3))
    pd.testing.assert_frame_equal(shards.describe(["k", "v"]), rows[["k", "v"]].describe())
    assert shards.get_null_sum().to_dict() == {"k": 0, "s": 2, "v": 1}
    assert shards.max_values("v") == 6.0 and shards["s"].unique().tolist()[2:] == ["b", "c"]
    even = shards.repartition(3)
    assert [len(part) for part in even.collect()] == [2, 2, 2]
    pd.testing.assert_frame_equal(even.concat_to_pdf(), rows)
    together = shards.partition_by("s", 2).collect()
    assert sum(map(len, together)) == 6
    assert not set(together[0]["s"].dropna()) & set(together[1]["s"].dropna())
    ordered = shards.sort_values(["v"], ascending=False).concat_to_pdf()
    pd.testing.assert_frame_equal(ordered, rows.sort_values("v", ascending=False))
    assert len(RayXShards.of([[rows], [rows]]).deduplicates()) == 6
    for words in (["sum", "count", "mean", "std"], ["nunique", "median"]):
        groups = shards.group_by("k", {"v": words}).concat_to_pdf().set_index("k").sort_index()
        expected = rows.groupby("k")["v"].agg(words).set_axis([f"{word}(v)" for word in words], axis=1)
        pd.testing.assert_frame_equal(groups, expected, check_dtype=False)
    names = RayXShards.of([[pd.DataFrame({"k": [1, 4], "name": ["one", "four"]})]])
    for how in ("inner", "left", "right", "outer"):
        merged = shards.merge(names, how, "k").concat_to_pdf().sort_values(["k", "v"], ignore_index=True)
        expected = rows.merge(names.first(), how, "k").sort_values(["k", "v"], ignore_index=True)
        pd.testing.assert_frame_equal(merged, expected, check_dtype=False)
    one, two = shards.select(["v"]).zip(shards.select("k")).split()
    assert one.concat_to_pdf()["v"].equals(rows["v"]) and two.concat_to_pdf()["k"].equals(rows["k"])
    assert len(shards.drop_missing_value()) == 4 and len(shards.sample_to_pdf(0.5, random_state=1)) == 3
    x = shards.drop_missing_value().assembleFeatureLabelCols(["k", "v"], "v").stack_feature_labels()
    assert np.concatenate([part["x"] for part in x.collect()]).tolist() == [[1, 1], [1, 3], [2, 4], [1, 6]]
    assert sorted(RayXShards.of([["a"], ["b", "c"]]).repartition(2).collect()) == ["a", "b", "c"]
    with pytest.raises(ArgumentError, match="group_by: there is no column 'w'; the shards have .'k', 's', 'v'."):
        shards.group_by("w")
    with pytest.raises(ArgumentError, match="other should be a RayXShards; got list"):
        shards.zip([])  # type: ignore[arg-type]


def test_actors_get_even_shares_of_the_partitions(ray_context: Any, actors: Any) -> None:
    shards = RayXShards.of([[B + 10 * i] for i in range(5)])
    assigned = shards.assign_partitions_to_actors(actors)
    assert sorted(map(len, assigned)) == [2, 3] and sorted(i for mine in assigned for i in mine) == list(range(5))
    made = shards.transform_shards_with_actors(actors, lambda actor, partition: actor.add.remote(partition))
    assert [shard[0] for shard in made.collect()] == [100, 110, 120, 130, 140]

    def total(actor: Any, refs: list[Any]) -> Any:
        return actor.total.remote(*refs)

    expected = sum((B + 10 * i).sum() for i in range(5))
    assert sum(shards.reduce_partitions_for_actors(actors, total)) == expected
    refs = shards.reduce_partitions_for_actors(actors, total, return_refs=True)
    assert sum(ray.get(refs)) == expected
    other = RayXShards.of([[B]] * 2)
    both = shards.zip_reduce_shards_with_actors(other, actors, lambda actor, mine, theirs: total(actor, mine + theirs))
    assert sum(both) == expected + 2 * B.sum()
    zipped = shards.zip_shards_with_actors(made, actors, lambda actor, one, two: actor.total.remote(one, two))
    assert ray.get(zipped.get_refs())[:2] == [2 * 45 + 1000, 2 * 145 + 1000]
    with pytest.raises(
        ArgumentError, match="The two RayXShards should have the same number of partitions; got 5 and 2"
    ):
        shards.zip_shards_with_actors(other, actors, lambda actor, one, two: one)
    with pytest.raises(
        ArgumentError, match="there must be a partition for each actor; got 1 partition.s. for 2 actors"
    ):
        RayXShards.of([[B]]).reduce_partitions_for_actors(actors, total)


def test_references_and_datasets_become_shards(ray_context: Any) -> None:
    refs = {1: ray.put([2]), 0: ray.put([1])}
    assert RayXShards.from_partition_refs({"here": [0, 1]}, refs, None).collect() == [1, 2]
    frames = RayXShards.of([[pd.DataFrame({"a": [1]})], [pd.DataFrame({"a": [2]}), pd.DataFrame({"a": [3]})]])
    dataset = frames.to_ray_dataset()
    assert [row["a"] for row in dataset.take_all()] == [1, 2, 3]
    again = RayXShards.from_ray_dataset(dataset)
    assert [shard["a"].tolist() for shard in again.collect()] == [[1], [2, 3]]


def test_a_dataframe_becomes_a_dataset(spark: Any, ray_context: Any) -> None:
    df = spark.range(0, 25, 1, 3).selectExpr("id", "cast(id as string) as name", "array(id * 0.5D) as l")
    dataset = spark_df_to_ray_dataset(df)
    rows = dataset.take_all()
    assert [row["id"] for row in rows] == list(range(25))
    assert rows[3]["name"] == "3" and list(rows[3]["l"]) == [1.5]
    empty = spark_df_to_ray_dataset(df.where("id < 0"))
    assert empty.count() == 0 and empty.schema().names == ["id", "name", "l"]
    del dataset, rows, empty
    gc.collect()


@pytest.mark.full
def test_where_there_is_only_ray_shards_are_made_there(run_program: Any) -> None:
    run_program(
        """
        import numpy as np
        from orca import XShards, init_orca_context, stop_orca_context
        from orca.data.ray_shards import RayXShards

        init_orca_context(runtime="ray", cores=2)
        shards = XShards.partition({"x": np.arange(5), "y": [np.arange(5)]})
        assert isinstance(shards, RayXShards) and shards.num_partitions() == 2
        assert [part["x"].tolist() for part in shards.collect()] == [[0, 1, 2], [3, 4]]
        stop_orca_context()
        """
    )


@pytest.mark.full
def test_ray_shards_train_like_shards_of_spark(spark: Any, ray_context: Any) -> None:
    torch = pytest.importorskip("torch")
    from orca import Estimator

    x = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    empty = {"x": x[:0], "y": y[:0]}
    parts = [{"x": x[:11], "y": y[:11]}, empty, {"x": x[11:13], "y": y[11:13]}, {"x": x[13:], "y": y[13:]}]

    def trained(data: Any, backend: str) -> Any:
        est = Estimator.from_torch(
            model=lambda config: torch.nn.Linear(3, 1),
            optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.05),
            loss=torch.nn.MSELoss(),
            backend=backend,
            workers_per_node=2,
            seed=1,
        )
        # A batch of all rows: each epoch is one step, whichever rank has which rows.
        stats = est.fit(data, epochs=2, batch_size=23)
        assert [line["num_samples"] for line in stats] == [23, 23]
        return est, [line["train_loss"] for line in stats]

    shards = SparkXShards(spark.sparkContext.parallelize(parts, 4))
    there = RayXShards.from_spark_xshards(shards).transform_shard(lambda shard: dict(shard))
    est, losses = trained(there, "ray")
    _, plain = trained((x, y), "local")
    assert losses == pytest.approx(plain, rel=1e-4)
    assert trained(there, "local")[1] == pytest.approx(plain, rel=1e-4)
    answered = est.predict(there)
    assert isinstance(answered, RayXShards)
    assert [len(part["prediction"]) for part in answered.collect()] == [11, 0, 2, 10]
    with torch.no_grad():
        expected = est.get_model()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.concatenate([part["prediction"] for part in answered.collect()]), expected, rtol=1e-4)
    assert est.evaluate(there)["num_samples"] == 23
    assert OrcaContext.get_ray_context() is not None
