from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from orca.core.engine import Settings
from orca.core.feed import Feed
from orca.core.source import Columns, DataSpec, Extent
from orca.core.state import OutputSpec, State
from orca.engines.local import LocalEngine
from orca.errors import DataError
from orca.job import PredictJob
from orca.registry import source_of
from orca.rows.tree import flatten, map_tree
from orca.sources.arrays import ArraySource, PandasSource
from raised import raises

N = 7
A = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
B = np.arange(N)
SIZE = 3


@dataclass(frozen=True)
class ReadAll:
    """Return a rank's batches of one epoch of each part."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> dict[str, list[Any]]:
        feeds = {part: Feed(part_rows, world, SIZE, shuffle=False, seed=0) for part, part_rows in rows.items()}
        return {part: [(b.x, b.y) for b in feed.epoch(1) if b.rows] for part, feed in feeds.items()}


def read(source: Any, ranks: int = 2, valid: Any = None) -> list[dict[str, list[Any]]]:
    return LocalEngine(ranks).run(ReadAll(), source.shards(ranks, valid), Settings(10))


def labels(ranks: list[dict[str, list[Any]]], part: str = "train") -> list[Any]:
    return sorted(label for rank in ranks for _, y in rank[part] for label in np.asarray(y).reshape(-1).tolist())


def spec(
    *features: str, labels: Any = (), outputs: Any = (), labelled: bool = True, size: int | None = None
) -> DataSpec:
    return DataSpec(Columns(features, tuple(labels), tuple(outputs)), labelled, size)


def doubled(x: Any) -> Any:
    return map_tree(lambda array: array * 2, x)


# Arrays


@pytest.mark.parametrize(
    ("x", "kind"),
    [(A, np.ndarray), ((A, B), tuple), ([A, B], list), ({"a": A, "in": {"b": B}}, dict), (({"a": A}, [B]), tuple)],
)
def test_trees_of_arrays_reach_the_ranks_as_they_are(x: Any, kind: type) -> None:
    for data in ((x, B), [x, B], {"x": x, "y": B}):
        source = source_of(data, spec())
        assert isinstance(source, ArraySource)
        results = read(source, ranks=3)
        assert labels(results) == B.tolist()
        for rank in results:
            for got, y in rank["train"]:
                assert isinstance(got, kind)
                check_equal(got, map_tree(lambda array, y=y: array[y], x))  # labels are row numbers here


def check_equal(one: Any, other: Any) -> None:
    assert flatten(one)[1] == flatten(other)[1]
    for left, right in zip(flatten(one)[0], flatten(other)[0], strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def test_validation_rows_are_kept_apart() -> None:
    train, valid = source_of((A, B), spec()), source_of((A[:3], B[:3] + 100), spec())
    results = read(train, 2, valid)
    assert labels(results) == B.tolist()
    assert labels(results, "valid") == [100, 101, 102]


def test_fewer_rows_than_ranks_are_enough() -> None:
    assert labels(read(source_of((A[:1], B[:1]), spec()), ranks=3)) == [0]


def test_a_dict_may_hold_named_columns() -> None:
    data = {"one": A, "two": B, "label": B * 10}
    results = read(source_of(data, spec("two", "one", labels=["label"])), ranks=1)
    (two, one), y = results[0]["train"][0]
    assert two.tolist() == [0, 1, 2] and one.shape == (3, 2) and y.tolist() == [0, 10, 20]
    with pytest.raises(
        DataError, match=r"there is no column 'lable'; the data has \['one', 'two', 'label'\]. Did you mean 'label'"
    ):
        source_of(data, spec("one", labels=["lable"]))


def test_several_labels_stay_several() -> None:
    data = {"one": A, "two": B, "three": B * 10}
    results = read(source_of(data, spec("one", labels=["two", "three"])), ranks=1)
    assert [part.tolist() for part in results[0]["train"][0][1]] == [[0, 1, 2], [0, 10, 20]]


def test_unequal_lengths_are_refused() -> None:
    message = (
        r"all arrays of data must have the same number of rows; got shapes \[\(7, 2\), \(6,\)\]. Check features and"
    )
    for data in ((A, B[:6]), {"x": A, "y": B[:6]}):
        with pytest.raises(DataError, match=message):
            source_of(data, spec())


@pytest.mark.parametrize("data", [(A, A, B), [A], (A,)])
def test_features_and_labels_must_be_told_apart(data: Any) -> None:
    with pytest.raises(
        DataError, match=r"data with labels must be \(x, y\) or .*got a (tuple|list) of (3|1).*\(\(x1, x2\), y\)"
    ):
        source_of(data, spec())


@pytest.mark.parametrize("data", [5, "file.csv", (A, object()), {}, np.float32(3), (np.array(3), A), []])
def test_other_things_are_refused_with_what_is_taken(data: Any) -> None:
    with raises("unknown-data"):
        source_of(data, spec())


def test_the_batch_size_is_32_unless_given() -> None:
    assert source_of((A, B), spec()).batch_size == 32
    assert source_of((A, B), spec(size=5)).batch_size == 5


@pytest.mark.parametrize("ranks", [1, 3, 10])
def test_predictions_are_arrays_in_the_order_of_the_rows(ranks: int) -> None:
    engine = LocalEngine(ranks)
    unlabelled = spec(labelled=False)
    np.testing.assert_array_equal(source_of(A, unlabelled).answer(doubled, engine), A * 2)
    first, second = source_of((A, B), unlabelled).answer(doubled, engine)
    np.testing.assert_array_equal(first, A * 2)
    np.testing.assert_array_equal(second, B * 2)
    np.testing.assert_array_equal(source_of({"x": A, "y": B}, unlabelled).answer(doubled, engine), A * 2)
    assert source_of(A[:0], unlabelled).answer(doubled, engine).shape == (0, 2)
    assert set(source_of({"a": A, "b": B}, unlabelled).answer(doubled, engine)) == {"a", "b"}


# pandas


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "number": B,
            "list": [[float(i), 1.0] for i in B],
            "array": [np.full((2, 2), i, np.float32) for i in B],
            "label": B * 10,
            "text": [f"t{i}" for i in B],
        },
        index=B[::-1] + 50,
    )


def test_cells_are_numbers_lists_or_arrays() -> None:
    source = source_of(frame(), spec("number", "list", "array", labels=["label"]))
    assert isinstance(source, PandasSource)
    results = read(source)
    assert labels(results) == (B * 10).tolist()
    for rank in results:
        for (number, lists, arrays), y in rank["train"]:
            assert (number * 10).tolist() == y.tolist()
            assert lists.tolist() == [[i, 1.0] for i in number]
            assert arrays.shape == (len(y), 2, 2) and arrays.dtype == np.float32
            assert arrays[:, 1, 1].tolist() == number.tolist()


def test_one_feature_column_is_one_argument() -> None:
    results = read(source_of(frame(), spec("list", labels=["label", "number"])), ranks=1)
    x, y = results[0]["train"][0]
    assert x.shape == (3, 2)
    assert [part.tolist() for part in y] == [[0, 10, 20], [0, 1, 2]]


def test_missing_columns_are_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match="there is no column 'nubmer'; .* Did you mean 'number'"):
        source_of(frame(), spec("nubmer", labels=["label"]))
    with raises("missing-column", match="'zzz'"):
        source_of(frame(), spec("number", labels=["zzz"]))
    with raises("missing-feature-cols", match="'number'"):
        source_of(frame(), spec(labels=["label"]))


def test_cells_of_different_shapes_are_refused() -> None:
    ragged = pd.DataFrame({"a": [[1.0], [1.0, 2.0]], "y": [0, 1]})
    with raises("ragged-rows", match="'a'"):
        source_of(ragged, spec("a", labels=["y"]))


def test_missing_cells_are_refused() -> None:
    holes = pd.DataFrame({"a": [[1.0], None], "y": [0, 1]})
    with raises("missing-values", match="'a'"):
        source_of(holes, spec("a", labels=["y"]))


def test_a_frame_is_answered_with_one_more_column() -> None:
    given = frame()
    source = source_of(given, spec("list", labelled=False))
    answer = source.answer(lambda x: x.sum(axis=1, keepdims=True), LocalEngine(3))
    assert answer["prediction"].tolist() == [i + 1.0 for i in B]
    assert answer.index.tolist() == given.index.tolist()
    pd.testing.assert_frame_equal(answer.drop(columns="prediction"), given)
    assert "prediction" not in given


def test_answers_of_several_numbers_are_arrays_in_cells() -> None:
    answer = source_of(frame(), spec("array", labelled=False)).answer(doubled, LocalEngine(2))
    assert [cell.tolist() for cell in answer["prediction"]] == [[[2 * i, 2 * i]] * 2 for i in B]


def test_output_columns_are_named_as_asked() -> None:
    def heads(x: Any) -> Any:
        return {"a": x, "b": x.sum(axis=1)}

    engine = LocalEngine(2)
    answer = source_of(frame(), spec("list", outputs=["both", "total"], labelled=False)).answer(heads, engine)
    assert answer["total"].tolist() == [i + 1.0 for i in B]
    assert [cell.tolist() for cell in answer["both"]] == frame()["list"].tolist()
    plain = source_of(frame(), spec("list", labelled=False)).answer(heads, engine)
    assert plain["prediction_1"].tolist() == [i + 1.0 for i in B]
    with raises("output-cols-count", match="'one'"):
        source_of(frame(), spec("list", outputs=["one"], labelled=False)).answer(heads, engine)


# Weights


@dataclass(frozen=True)
class ReadWeights:
    """Return a rank's (y, weights) of one epoch."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> list[Any]:
        feed = Feed(rows["train"], world, SIZE, shuffle=False, seed=0, weighted=True)
        return [(b.y.tolist(), b.weights.tolist()) for b in feed.epoch(1) if b.rows]


def weighed(source: Any) -> dict[Any, float]:
    """Return the weight of every label."""
    results = LocalEngine(2).run(ReadWeights(), source.shards(2), Settings(10))
    return {y: w for rank in results for ys, ws in rank for y, w in zip(ys, ws, strict=True)}


def test_weights_are_the_third_thing_or_a_named_one() -> None:
    weights, wanted = B / 4, {int(b): b / 4 for b in B}
    plain, named = DataSpec(weighted=True), DataSpec(Columns(("a",), ("b",), weight="w"))
    assert named.weighted
    frame = pd.DataFrame({"a": list(A), "b": B, "w": weights})
    kinds = [((A, B, weights), plain), ([A, B, weights], plain), ({"x": A, "y": B, "weights": weights}, plain)]
    kinds += [((A, B, weights[:, None]), plain), ({"a": A, "b": B, "w": weights}, named), (frame, named)]
    for data, how in kinds:
        assert weighed(source_of(data, how)) == wanted
    answer = source_of(frame, DataSpec(Columns(("a",)), labelled=False)).answer(lambda x: x[:, 0], LocalEngine(2))
    assert answer["prediction"].tolist() == A[:, 0].tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            (A, B),
            r"data with labels and weights must be \(x, y, weights\) .*got a tuple of 2.*\(\(x1, x2\), y, weights\)",
        ),
        (A, r"data with weights must be \(x, y, weights\) .*got ndarray"),
        ({"x": A, "y": B}, r"no weights under the name 'weights'; the data has \['x', 'y'\]. Name their column"),
        ((A, B, B[1:]), "labels and weights must have the same number of rows"),
        ((A[1:], B, B), "must have the same number of rows"),
        ((A, B, B - 3), "weights must be finite and not negative; got -3.0"),
    ],
)
def test_wrong_weights_are_named_at_the_door(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source_of(data, DataSpec(weighted=True))


def test_a_missing_weight_column_is_named_with_the_nearest() -> None:
    frame = pd.DataFrame({"a": B, "b": B, "weight": B})
    with pytest.raises(DataError, match="there is no column 'wieght'; .*Did you mean 'weight'"):
        source_of(frame, DataSpec(Columns(("a",), ("b",), weight="wieght")))
    with raises("missing-sample-weights", match="'weights'"):
        source_of(frame, DataSpec(Columns(("a",), ("b",)), weighted=True))


def test_where_labels_alone_are_named_the_features_are_the_dict_of_the_rest() -> None:
    source = source_of({"a": A, "b": B, "c": B + 1}, spec(labels=["c"]))
    assert list(source.x) == ["a", "b"] and source.y.tolist() == (B + 1).tolist()


# What else is an array


def same(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype and one.shape == other.shape and (one == other).all()


def test_tensors_lists_and_series_are_arrays() -> None:
    x, y = A.astype(np.float64), np.arange(7)
    for data in (
        (torch.from_numpy(x), torch.from_numpy(y)),
        (x.tolist(), y.tolist()),
        [x.tolist(), y.tolist()],
        {"x": torch.from_numpy(x).requires_grad_(), "y": pd.Series(y, dtype="Int64")},
        (pd.DataFrame(x), pd.Series(y)),
        (x.astype(">f8"), y.astype(">i8")),
        (x.astype(np.longdouble), y),
        (np.ma.masked_array(x), y),
    ):
        source = source_of(data, spec())
        same(source.x, x)
        same(source.y, y)
    same(source_of(torch.ones(3, 2, dtype=torch.bfloat16), spec(labelled=False)).x, np.ones((3, 2), np.float32))
    same(source_of([[1.0, 2.0], [3.0, 4.0]], spec(labelled=False)).x, np.array([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ma.masked_array(A, A > 3), r"an array of the data has missing values. .*a masked array's by filled\(\)"),
        (pd.Series([1, None] * 3 + [1], dtype="Int64"), "an array of the data has missing values"),
        (pd.Series([1, None] * 3 + [1], dtype="Float64"), "an array of the data has missing values"),
        (torch.eye(7).to_sparse(), r"is a sparse tensor \(sparse_coo\), whose rows .* Call to_dense\(\)"),
        ([[1.0, 2.0], [3.0]] * 3 + [[1.0]], "the rows of an array of the data differ in shape"),
    ],
)
def test_arrays_with_holes_are_refused(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        source_of((x, B), spec())


def test_columns_with_holes_or_of_one_name_are_refused() -> None:
    for kind in ("Int64", "Float64", "boolean", "double[pyarrow]", "str"):
        frame = pd.DataFrame({"a": pd.Series([1, None], dtype=kind), "y": [0, 1]})
        with raises("missing-values", match="'a'"):
            source_of(frame, spec("a", labels=["y"]))
    twice = pd.DataFrame([[1, 2, 0]], columns=["a", "a", "y"])
    with raises("duplicate-column", match="'a'"):
        source_of(twice, spec("a", labels=["y"]))


def test_text_and_dates_are_refused_at_the_door_of_a_model_of_numbers() -> None:
    frame = pd.DataFrame({"t": ["a", "b"], "d": pd.to_datetime(["2020-01-01", "2020-01-02"]), "y": [0, 1]})
    for name, kind in (("t", "text"), ("d", "dates")):
        numbers = replace(spec(name, labels=["y"]), numbers=True)
        with pytest.raises(DataError, match=f"column '{name}' holds {kind}, and this model takes numbers alone. Turn"):
            source_of(frame, numbers)
        source_of(frame, spec(name, labels=["y"]))
    with pytest.raises(DataError, match="an array of the data holds text, and this model takes numbers alone"):
        source_of((np.array(["a", "b"]), np.zeros(2)), replace(spec(), numbers=True))


def test_an_empty_frame_with_arrays_in_its_cells_is_answered() -> None:
    state = State(output=OutputSpec((("float32", (1,)),)))
    frame = pd.DataFrame({"row": pd.Series([], dtype=object)})
    task = PredictJob.of(None, state, 4)  # type: ignore[arg-type]
    answer = source_of(frame, spec("row", labelled=False)).answer(task, LocalEngine(2))
    assert list(answer.columns) == ["row", "prediction"] and len(answer) == 0


def test_the_extent_of_arrays_and_pandas_is_what_they_hold() -> None:
    assert source_of((A, B), DataSpec()).extent() == Extent(N, A.nbytes + B.nbytes)
    assert source_of(A, DataSpec(labelled=False)).extent() == Extent(N, A.nbytes)
    frame = pd.DataFrame({"a": B, "b": B, "unused": B})
    assert source_of(frame, spec("a", labels=["b"])).extent() == Extent(N, 2 * B.nbytes)
