from __future__ import annotations

import os
import pickle
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from orca import Estimator, XShards
from orca.core.engine import Settings
from orca.core.feed import Feed
from orca.core.source import Columns, DataSpec, Extent
from orca.core.state import OutputSpec, State
from orca.data.ray_shards import RayXShards
from orca.data.shard import SparkXShards
from orca.engines.local import LocalEngine
from orca.errors import DataError
from orca.job import PredictJob
from orca.registry import source_of
from orca.sources.shards import RayShardsSource, ShardPredictTask, ShardsSource, _cells, read_shard
from raised import raises

N = 9
A = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
B = np.arange(N, dtype=np.float32)


@dataclass(frozen=True)
class ReadAll:
    """Return a rank's batches of each part."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> dict[str, list[Any]]:
        feeds = {name: Feed(part, world, 4, shuffle=False, seed=0) for name, part in rows.items()}
        return {name: [(b.x, b.y) for b in feed.epoch(1) if b.rows] for name, feed in feeds.items()}


def spec(features: Any = (), labels: Any = (), outputs: Any = (), labelled: bool = True) -> DataSpec:
    return DataSpec(Columns(tuple(features), tuple(labels), tuple(outputs)), labelled, 4)


def read(shards: Any, how: DataSpec, ranks: int = 2, valid: Any = None) -> list[Any]:
    """Feed shards to ranks of another engine than Spark's: through Arrow files."""
    source = source_of(shards, how)
    assert isinstance(source, ShardsSource)
    other = None if valid is None else source_of(valid, how)
    results = LocalEngine(ranks).run(ReadAll(), source.shards(ranks, other), Settings(30))
    assert [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("orca-rows")] == []
    return results


def labels(ranks: list[Any], part: str = "train") -> list[float]:
    return sorted(y for rank in ranks for _, ys in rank[part] for y in np.asarray(ys).tolist())


def as_frame(shard: Any) -> pd.DataFrame:
    return pd.DataFrame({"pair": list(shard["x"]), "one": shard["y"], "label": shard["y"] * 10})


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_row_of_every_shard_reaches_a_rank(spark: Any, ranks: int) -> None:
    results = read(XShards.partition({"x": A, "y": B}, num_shards=3), spec(), ranks)
    assert labels(results) == B.tolist()
    assert len(results) == ranks
    for rank in results:
        for x, y in rank["train"]:
            np.testing.assert_array_equal(x, A[y.astype(int)])


def test_a_list_of_inputs_becomes_several_arguments_and_validation_stays_apart(spark: Any) -> None:
    train = XShards.partition({"x": [A, B], "y": B}, num_shards=3)
    valid = XShards.partition({"x": [A[:2], B[:2]], "y": B[:2] + 100}, num_shards=2)
    results = read(train, spec(), valid=valid)
    assert labels(results) == B.tolist()
    assert labels(results, "valid") == [100, 101]
    for rank in results:
        for (pair, one), y in rank["train"]:
            assert pair.shape == (len(y), 2)
            assert one.tolist() == y.tolist()


def test_shards_may_be_frames(spark: Any) -> None:
    frames = XShards.partition({"x": A, "y": B}, num_shards=2).transform_shard(as_frame)
    results = read(frames, spec(["pair", "one"], ["label"]))
    assert labels(results) == (B * 10).tolist()
    (pair, one), y = results[0]["train"][0]
    assert pair.shape == (len(y), 2)
    assert (one * 10).tolist() == y.tolist()


def test_shards_of_ray_are_not_taken_for_those_of_spark() -> None:
    shards = RayXShards([])  # a look at them must not start Ray
    assert RayShardsSource.wraps(shards) and not ShardsSource.wraps(shards)


def test_shards_of_another_kind_are_refused() -> None:
    columns = Columns(("one",), ("label",))
    with raises("bad-shard"):
        read_shard({"a": A}, columns)
    with raises("bad-shard"):
        read_shard(A, columns)
    frame = as_frame({"x": A, "y": B})
    with pytest.raises(DataError, match="there is no column 'lable'; .*Did you mean 'label'"):
        read_shard(frame, Columns(("one",), ("lable",)))
    with raises("missing-feature-cols"):
        read_shard(frame, Columns())


def test_shards_without_labels_cannot_train(spark: Any) -> None:
    with raises("missing-labels"):
        read(XShards.partition({"x": A}, num_shards=2), spec())


@dataclass(frozen=True)
class ReadWeights:
    """Return the (label, weight) of the rows that a rank sees."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> list[Any]:
        feed = Feed(rows["train"], world, 4, shuffle=False, seed=0, weighted=True)
        return [pair for b in feed.epoch(1) if b.rows for pair in zip(b.y.tolist(), b.weights.tolist(), strict=True)]


def test_weights_are_an_entry_of_a_shard_or_a_column(spark: Any) -> None:
    plain = XShards.partition({"x": {"a": A, "b": B}, "y": B, "weights": B / 4}, num_shards=3)
    frames = plain.transform_shard(lambda s: pd.DataFrame({"one": s["y"], "label": s["y"], "w": s["weights"]}))
    named = DataSpec(Columns(("one",), ("label",), weight="w"))
    for shards, how in ((plain, DataSpec(weighted=True)), (frames, named)):
        results = LocalEngine(2).run(ReadWeights(), source_of(shards, how).shards(2), Settings(30))
        assert sorted(pair for rank in results for pair in rank) == [(b, b / 4) for b in B.tolist()]
    missing = source_of(plain, DataSpec(Columns(weight="w")))
    with raises("missing-sample-weights", match="'w'"):
        LocalEngine(1).run(ReadWeights(), missing.shards(1), Settings(30))


def test_unequal_lengths_in_a_shard_are_named(spark: Any) -> None:
    uneven = XShards.partition({"x": A, "y": B}, num_shards=2).transform_shard(lambda s: {"x": s["x"], "y": s["y"][1:]})
    with raises("row-counts-differ"):
        read(uneven, spec())


def test_predictions_are_added_to_a_shard_in_its_own_kind() -> None:
    def heads(x: Any) -> Any:
        return {"sum": x.sum(axis=1, keepdims=True), "twice": x * 2}

    shard = {"x": A, "y": B, "more": "kept"}
    answered = ShardPredictTask(heads, Columns())(shard)
    assert answered["more"] == "kept"
    assert answered["prediction"]["sum"].tolist() == A.sum(axis=1, keepdims=True).tolist()  # as arrays are answered
    np.testing.assert_array_equal(answered["prediction"]["twice"], A * 2)
    assert "prediction" not in shard
    frame = as_frame(shard)
    named = ShardPredictTask(heads, Columns(("pair",), (), ("s", "t")))(frame)
    assert named["s"].tolist() == A.sum(axis=1).tolist()
    assert [cell.tolist() for cell in named["t"]] == (A * 2).tolist()
    assert list(frame.columns) == ["pair", "one", "label"]


def test_nothing_in_a_shard_is_overwritten_by_a_prediction() -> None:
    shard = {"x": A, "prediction": B}
    with raises("output-column-taken", match="'prediction'"):
        ShardPredictTask(lambda x: x, Columns())(shard)
    with raises("output-column-taken", match="'x'"):
        ShardPredictTask(lambda x: x, Columns(outputs=("x",)))(shard)
    assert set(ShardPredictTask(lambda x: x, Columns(outputs=("again",)))(shard)) == {"x", "prediction", "again"}


def test_an_empty_shard_with_arrays_in_its_cells_is_answered() -> None:
    task = PredictJob.of(None, State(output=OutputSpec((("float32", (1,)),))), 4)  # type: ignore[arg-type]
    empty = ShardPredictTask(task, Columns(("pair",)))(as_frame({"x": A[:0], "y": B[:0]}))
    assert list(empty.columns) == ["pair", "one", "label", "prediction"] and len(empty) == 0


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, pair: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([pair, one[:, None]], dim=1))


def test_shards_train_and_are_answered_in_their_order(spark: Any) -> None:
    estimator = Estimator.from_torch(
        model=lambda config: TwoInputs(),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=1e-4),
        loss=nn.MSELoss(),
        backend="spark",
        workers_per_node=2,
        seed=2,
    )
    shards = XShards.partition({"x": [A, B], "y": B}, num_shards=3)
    stats = estimator.fit(shards, epochs=2, batch_size=4, validation_data=shards)
    assert [line["num_samples"] for line in stats] == [N, N]
    assert stats[0]["val_num_samples"] == N
    frames = shards.transform_shard(lambda shard: as_frame({"x": shard["x"][0], "y": shard["y"]}))
    net = estimator.get_model()
    expected = net(torch.from_numpy(A), torch.from_numpy(B))[:, 0].tolist()
    answered = estimator.predict(shards)
    assert [set(shard) for shard in answered.collect()] == [{"x", "y", "prediction"}] * 3
    np.testing.assert_array_equal(np.concatenate([shard["y"] for shard in answered.collect()]), B)
    got = np.concatenate([shard["prediction"] for shard in answered.collect()])[:, 0]
    assert got.tolist() == pytest.approx(expected, rel=1e-5)
    in_frames = estimator.predict(frames, feature_cols=["pair", "one"], output_cols="guess").collect()
    assert pd.concat(in_frames)["guess"].tolist() == pytest.approx(expected, rel=1e-5)
    stats = estimator.evaluate(frames, feature_cols=["pair", "one"], label_cols=["one"])
    assert stats["num_samples"] == N


def test_the_extent_of_shards_is_unknown(spark: Any) -> None:
    assert source_of(XShards.partition({"x": A, "y": B}, 2), spec()).extent() == Extent()


def linear(backend: str) -> Any:
    return Estimator.from_torch(
        model=lambda config: nn.Linear(2, 1),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=1e-3),
        loss=nn.MSELoss(),
        backend=backend,
        workers_per_node=2,
        seed=3,
    )


def as_dict(frame: pd.DataFrame, label: str) -> dict[str, np.ndarray]:
    return {"x": np.array(frame["pair"].tolist(), np.float32).reshape(-1, 2), "y": frame[label].to_numpy()}


def uneven_frames(spark: Any) -> SparkXShards:
    """Return shards of 5, 0, 1 and the other rows, in partitions of which one is empty."""
    frame = as_frame({"x": A, "y": B})
    cuts = [frame[:5], frame[:0], frame[5:6], frame[6:]]
    return SparkXShards(spark.sparkContext.parallelize([cuts[:2], [], cuts[2:]], 3).flatMap(list))


@pytest.mark.parametrize("backend", ["local", "spark"])
def test_uneven_and_empty_shards_train_as_frames_and_arrays_do(spark: Any, backend: str) -> None:
    frames = uneven_frames(spark)
    dicts = frames.transform_shard(as_dict, "label")
    rows = [(pair.tolist(), float(one * 10)) for pair, one in zip(A, B, strict=True)]
    df = spark.createDataFrame(rows, "pair array<float>, label float")
    named = {"feature_cols": ["pair"], "label_cols": ["label"]}
    # A batch of all rows: each epoch is one step, whichever rank has which rows.
    losses, scores = [], []
    for data, columns in ((frames, named), (dicts, {}), (df, named), ((A, B * 10), {})):
        est = linear(backend)
        stats = est.fit(data, epochs=2, batch_size=N, **columns)
        assert [line["num_samples"] for line in stats] == [N, N]
        losses.append([line["train_loss"] for line in stats])
        scores.append(est.evaluate(data, batch_size=4, **columns)["val_loss"])
    for other, score in zip(losses[1:], scores[1:], strict=True):
        assert other == pytest.approx(losses[0], rel=1e-5)
        assert score == pytest.approx(scores[0], rel=1e-5)
    answered = est.predict(frames, feature_cols=["pair"]).collect()
    assert [len(shard) for shard in answered] == [5, 0, 1, N - 6]
    assert all(list(shard.columns) == ["pair", "one", "label", "prediction"] for shard in answered)
    with torch.no_grad():
        expected = est.get_model()(torch.from_numpy(A))[:, 0].tolist()
    assert pd.concat(answered)["prediction"].tolist() == pytest.approx(expected, rel=1e-5)


def test_large_shards_are_dealt_in_pieces_with_what_is_used(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orca.sources.shards._PIECE", 64)
    shard = {"x": [A, {"b": B}], "y": B, "more": "unused"}
    pieces = [pickle.loads(cell) for (cell,) in _cells(shard, Columns())]
    assert len(pieces) > 2 and set(pieces[0]) == {"x", "y"}
    np.testing.assert_array_equal(np.concatenate([piece["x"][0] for piece in pieces]), A)
    np.testing.assert_array_equal(np.concatenate([piece["x"][1]["b"] for piece in pieces]), B)
    frames = [pickle.loads(cell) for (cell,) in _cells(as_frame({"x": A, "y": B}), Columns(("one",), ("label",)))]
    assert len(frames) > 2 and list(frames[0].columns) == ["one", "label"]
    assert pd.concat(frames)["one"].tolist() == B.tolist()
    lists = {"x": A.tolist(), "y": B.tolist()}
    assert [pickle.loads(cell) for (cell,) in _cells(lists, Columns())] == [lists]
    assert list(_cells(as_frame({"x": A[:0], "y": B[:0]}), Columns())) == []
    assert list(_cells({"x": (A[:0], B[:0])}, Columns())) == []


@pytest.mark.full
@pytest.mark.slow
def test_shards_train_a_keras_model_as_arrays_do(spark: Any) -> None:
    keras = pytest.importorskip("keras")

    def creator(config: Any) -> Any:
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(1e-3), loss="mse")
        return model

    frames = uneven_frames(spark)
    dicts = frames.transform_shard(as_dict, "one")
    df = spark.createDataFrame(
        [(pair.tolist(), float(one)) for pair, one in zip(A, B, strict=True)], "pair array<float>, one float"
    )
    named = {"feature_cols": ["pair"], "label_cols": ["one"]}
    losses, scores = [], []
    for data, columns in ((dicts, {}), (frames, named), (df, named), ({"x": A, "y": B}, {})):
        est = Estimator.from_keras(model_creator=creator, backend="spark", workers_per_node=2)
        losses.append(est.fit(data, epochs=2, batch_size=N, **columns)["loss"])
        scores.append(next(iter(est.evaluate(data, batch_size=4, **columns).values())))
    for loss, score in zip(losses[1:], scores[1:], strict=True):
        assert loss == pytest.approx(losses[0], rel=1e-5) and score == pytest.approx(scores[0], rel=1e-5)
    expected = est.get_model().predict(A, verbose=0)[:, 0].tolist()
    answered = est.predict(dicts).collect()
    assert [len(shard["prediction"]) for shard in answered] == [5, 0, 1, N - 6]
    beside = est.predict(frames, feature_cols=["pair"]).collect()
    assert [list(shard.columns) for shard in beside] == [["pair", "one", "label", "prediction"]] * 4
    got = [float(np.ravel(cell)[0]) for cell in pd.concat(beside)["prediction"]]
    assert got == pytest.approx(expected, rel=1e-5)
