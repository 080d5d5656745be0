from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pytest

from orca.core.engine import Settings
from orca.core.feed import feed_of
from orca.core.source import DataSpec, Extent
from orca.engines.local import LocalEngine
from orca.errors import DataError
from orca.registry import source_of

tf = pytest.importorskip("tensorflow")
from orca.sources.tfdata import DatasetStream, TfDatasetSource  # noqa: E402
from raised import raises  # noqa: E402

N = 11
ROWS = np.arange(N, dtype=np.float32)


def numbers(batch_size: int, **options: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(ROWS).batch(batch_size, **options)


def passes(dataset: Any, ranks: int, count: int = 1) -> list[list[list[Any]]]:
    """Return [pass][step][rank] of each rank's batches."""
    streams = [DatasetStream(dataset()) for _ in range(ranks)]
    return [
        [list(step) for step in zip(*(s.batches(rank, ranks) for rank, s in enumerate(streams)), strict=True)]
        for _ in range(count)
    ]


def true_rows(batch: Any) -> list[float]:
    return np.asarray(batch.x)[: batch.rows].tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [2, 4, 100])
def test_every_element_is_seen_once_in_every_pass(batch_size: int, ranks: int) -> None:
    for steps in passes(lambda: numbers(batch_size), ranks, 2):
        assert list(chain(*(true_rows(batch) for step in steps for batch in step))) == ROWS.tolist()
        sizes = [min(batch_size, N - at) for at in range(0, N, batch_size)]
        assert [[batch.step_rows for batch in step] for step in steps] == [[size] * ranks for size in sizes]
        for step in steps:
            rows = [batch.rows for batch in step]
            assert max(rows) - min(rows) <= 1 and rows == sorted(rows, reverse=True)
            assert {batch.leader for batch in step} == {0}


def test_a_rank_without_rows_gets_the_first_row_as_template() -> None:
    def dataset() -> Any:
        return tf.data.Dataset.from_tensor_slices(({"a": ROWS[:5], "b": [[7, 8]] * 5}, ROWS[:5] * 10)).batch(4)

    full, last = passes(dataset, 3)[0]
    assert [batch.rows for batch in full] == [2, 1, 1]
    assert [(batch.rows, batch.step_rows) for batch in last] == [(1, 1), (0, 1), (0, 1)]
    for batch in last:
        assert batch.x["a"].numpy().tolist() == [4] and batch.x["b"].numpy().tolist() == [[7, 8]]
        assert batch.y.numpy().tolist() == [40]


@pytest.mark.parametrize(
    ("made", "x", "y", "weights"),
    [
        (lambda v: v, [8], None, None),
        (lambda v: (v, v + 1), [8], [9], None),
        (lambda v: (v, v + 1, v + 2), [8], [9], [10]),
        (lambda v: ((v, v + 1), v + 2), ([8], [9]), [10], None),
        (lambda v: ((v, v + 1),), ([8], [9]), None, None),
        (lambda v: ({"a": v, "b": (v, v)}, {"c": v}), {"a": [8], "b": ([8], [8])}, {"c": [8]}, None),
        (lambda v: (v, None), [8], None, None),
        (lambda v: tf.strings.as_string(v, precision=0), [b"8"], None, None),
    ],
)
def test_elements_are_x_y_and_weights(made: Callable[..., Any], x: Any, y: Any, weights: Any) -> None:
    batch = passes(lambda: numbers(3).map(made), 3)[0][2][2]  # of rows 6, 7, 8

    def plain(tree: Any) -> Any:
        return tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), tree)

    assert (plain(batch.x), batch.y and plain(batch.y), batch.weights is None or plain(batch.weights)) == (
        x,
        y,
        weights or True,
    )
    assert isinstance(batch.x, type(x)) or tf.is_tensor(batch.x)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ragged_and_sparse_rows_are_cut_too(ranks: int) -> None:
    values = [[1], [2, 3], [], [4, 5, 6], [7]]

    def ragged() -> Any:
        return tf.data.Dataset.from_tensor_slices((tf.ragged.constant(values), np.arange(5))).batch(3)

    def sparse() -> Any:
        return ragged().map(lambda x, y: (x.to_sparse(), y))

    for steps in (passes(ragged, ranks)[0], passes(sparse, ranks)[0]):
        got = []
        for batch in chain(*steps):
            x = tf.RaggedTensor.from_sparse(batch.x) if isinstance(batch.x, tf.SparseTensor) else batch.x
            assert x.shape[0] == len(batch.y) == max(batch.rows, 1)
            got += x.to_list()[: batch.rows]
        assert got == values


def test_shapes_stay_known() -> None:
    batch = passes(lambda: tf.data.Dataset.from_tensor_slices(np.ones((5, 2, 3))).batch(4, drop_remainder=True), 3)
    assert [part.x.shape.as_list() for part in batch[0][0]] == [[2, 2, 3], [1, 2, 3], [1, 2, 3]]


def test_a_stream_tells_its_steps() -> None:
    def length(dataset: Any) -> tuple[int | None, bool]:
        stream = DatasetStream(dataset)
        return stream.steps, stream.endless

    assert length(numbers(4)) == (3, False)
    assert length(numbers(4, drop_remainder=True)) == (2, False)
    assert length(numbers(4).filter(lambda v: True)) == (None, False)
    assert length(numbers(4).repeat()) == (None, True)


def test_batches_without_rows_are_passed_over() -> None:
    sizes = tf.data.Dataset.from_tensor_slices([2, 0, 1])
    steps = passes(lambda: sizes.map(lambda size: tf.range(size)), 2)[0]
    assert [[batch.rows for batch in step] for step in steps] == [[1, 1], [1, 0]]


def test_order_does_not_depend_on_threads() -> None:
    def unsteady() -> Any:
        options = tf.data.Options()
        options.deterministic = False
        slow = tf.data.Dataset.range(40).map(
            lambda v: tf.py_function(lambda v: _slow(int(v)), [v], tf.int64), num_parallel_calls=8
        )
        return slow.map(lambda v: tf.ensure_shape(v, [])).batch(4).with_options(options)

    steps = passes(unsteady, 2)[0]
    assert list(chain(*(true_rows(batch) for step in steps for batch in step))) == list(range(40))


def _slow(value: int) -> int:
    import time

    time.sleep(0.02 if value % 8 == 0 else 0.0)
    return value


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (lambda: tf.data.Dataset.range(3), r"must give batches, with rows in their first dimension.*dataset.batch\("),
        (lambda: numbers(2).map(lambda v: (v, 1.0)), "must give batches, with rows in their first dimension"),
        (lambda: numbers(2).map(lambda v: (v, v, v, v)), r"x, \(x, y\) or \(x, y, weights\); got 4 things.*tuple of"),
        (lambda: numbers(2).window(2), "a dataset must give tensors; got DatasetSpec"),
    ],
)
def test_elements_that_are_no_batches_are_refused(dataset: Callable[[], Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DatasetStream(dataset())


def test_tensors_of_different_lengths_are_refused() -> None:
    stream = DatasetStream(numbers(4).map(lambda v: (v, v[1:])))
    with raises("row-counts-differ"):
        list(stream.batches(1, 2))


# On ranks.


@dataclass(frozen=True)
class ReadTwice:
    """Return the rows of two passes of a rank."""

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> list[list[list[float]]]:
        feed = feed_of(rows["train"], world, None, shuffle=True, seed=0)
        return [[true_rows(batch) for batch in feed.epoch(epoch)] for epoch in (1, 2)]


def shuffled(config: dict[str, Any], batch_size: int) -> Any:
    import tensorflow as tf  # not before, on a rank

    dataset = tf.data.Dataset.from_tensor_slices(np.arange(23.0)).shuffle(23)
    return dataset.interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2).shuffle(5).batch(batch_size)


def orders(engine: Any, seed: int) -> list[list[float]]:
    """Return the rows of each pass, in the order of the steps and in each of the ranks."""
    source = source_of(shuffled, DataSpec(batch_size=4, whole=True, seed=seed))
    results = engine.run(ReadTwice(), source.shards(engine.workers), Settings(60))
    joined = [[list(chain(*step)) for step in zip(*ranks, strict=True)] for ranks in zip(*results, strict=True)]
    assert [[len(step) for step in steps] for steps in joined] == [[4, 4, 4, 4, 4, 3]] * 2
    return [list(chain(*steps)) for steps in joined]


def test_a_shuffle_without_a_seed_is_the_same_on_all_ranks_and_another_in_the_next_pass() -> None:
    first, second = orders(LocalEngine(2), 7)
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second and list(range(23)) not in (first, second)
    assert orders(LocalEngine(3), 7) == [first, second]
    assert orders(LocalEngine(1), 8) != [first, second]


def test_creators_of_shuffled_data_answer_for_every_row_once() -> None:
    source = source_of(shuffled, DataSpec(labelled=False, batch_size=4))
    assert sorted(source.answer(lambda x: x, LocalEngine(3)).tolist()) == list(range(23))


# A dataset itself.


def test_a_dataset_itself_is_answered_but_not_sent_to_workers() -> None:
    source = source_of(numbers(4).map(lambda v: (v, v)), DataSpec(labelled=False))
    assert isinstance(source, TfDatasetSource)
    assert source.answer(lambda x: x * 2, LocalEngine(2)).tolist() == (ROWS * 2).tolist()
    with raises("dataset-not-sendable"):
        source.shards(2)
    with raises("no-rows"):
        source_of(numbers(4).take(0), DataSpec(labelled=False)).answer(lambda x: x, LocalEngine(2))


def test_the_extent_of_a_pipeline_is_unknown() -> None:
    assert source_of(numbers(4), DataSpec()).extent() == Extent()
