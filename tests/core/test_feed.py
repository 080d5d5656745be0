from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from orca.core.engine import Settings
from orca.core.feed import Feed, StreamFeed, feed_of, spool_parts, unweigh, weigh
from orca.core.source import Batch, Rows, Shards
from orca.core.world import World
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, DataError, WorkerFailed
from orca.testing import shards_of


class NumberRows:
    """The numbers from `first` on; shared unless said otherwise, as a map-style dataset."""

    def __init__(self, count: int, first: int = 0, shared: bool = True, batch_size: int | None = None) -> None:
        self.count, self.first, self.shared, self.batch_size = count, first, shared, batch_size
        self.quiet = self.drop_last = False
        self.seen: list[list[int]] = []

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        return generator.permutation(self.count) if shuffle else np.arange(self.count)

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        for index in indices:
            self.seen.append((index + self.first).tolist())
            yield index + self.first, None

    def close(self) -> None:
        pass


def on_ranks(job: Callable[[World, dict[str, Rows], Any], Any], *rows: Rows) -> list[Any]:
    """Run a job on as many ranks as there are rows, each with its own."""
    shards = Shards(lambda items, _: {"train": next(items)}, lambda: [lambda row=row: iter([row]) for row in rows])
    return LocalEngine(len(rows)).run(job, shards, Settings(stall_timeout=20))


def steps_of(*rows: Rows, batch_size: int | None, epoch: int = 1, shuffle: bool = True, seed: int = 3) -> list[Any]:
    """Return, step by step, the values that each rank gave."""

    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        feed = Feed(parts["train"], world, batch_size, shuffle=shuffle, seed=seed)
        batches = list(feed.epoch(epoch))
        assert len(batches) == feed.steps
        assert all(len(batch.x) == (batch.rows or 1) for batch in batches)
        return [(batch.x[: batch.rows].tolist(), batch.step_rows) for batch in batches]

    by_step = list(zip(*on_ranks(job, *rows), strict=True))
    for notes in by_step:
        assert {step_rows for _, step_rows in notes} == {sum(len(values) for values, _ in notes)}
    return [[values for values, _ in notes] for notes in by_step]


def held(*counts: int) -> list[NumberRows]:
    """Return each rank's own rows: rank r holds 1000 r, 1000 r + 1, ..."""
    return [NumberRows(count, 1000 * rank, shared=False) for rank, count in enumerate(counts)]


def flat(steps: Any) -> list[int]:
    return [value for step in steps for values in step for value in values]


@pytest.mark.parametrize("counts", [(10,), (6, 6), (9, 2), (0, 7), (5, 0, 1)], ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_held_row_is_seen_exactly_once(counts: tuple[int, ...], shuffle: bool) -> None:
    rows = held(*counts)
    steps = steps_of(*rows, batch_size=4, shuffle=shuffle)
    assert sorted(flat(steps)) == [row.first + i for row in rows for i in range(row.count)]
    assert all(sum(map(len, step)) == 4 for step in steps[:-1])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_shared_row_is_seen_exactly_once(ranks: int) -> None:
    steps = steps_of(*[NumberRows(11)] * ranks, batch_size=4)
    assert sorted(flat(steps)) == list(range(11))
    assert [sum(map(len, step)) for step in steps] == [4, 4, 3]


def test_short_shard_takes_part_in_every_step() -> None:
    steps = steps_of(*held(16, 4), batch_size=5)
    assert [[len(values) for values in step] for step in steps] == [[4, 1]] * 4


def test_a_rank_without_rows_steps_along_with_a_template_row() -> None:
    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        feed = Feed(parts["train"], world, 2, shuffle=True, seed=0)
        return [(batch.x.tolist(), batch.y, batch.rows, batch.step_rows) for batch in feed.epoch(1)]

    idle = on_ranks(job, *held(0, 3))[0]
    assert idle == [([1000], None, 0, 2), ([1000], None, 0, 1)]


def test_a_rank_that_has_rows_but_none_for_a_step_gets_a_template_too() -> None:
    steps = steps_of(*held(9, 1), batch_size=1)
    assert [len(step[1]) for step in steps].count(1) == 1


def test_nobody_has_rows() -> None:
    assert steps_of(*held(0, 0), batch_size=3) == []


def test_labels_come_with_templates_too() -> None:
    x, y = np.arange(6.0).reshape(3, 2), {"a": np.arange(3), "b": [np.ones((3, 2))]}
    empty = (x[:0], {"a": y["a"][:0], "b": [y["b"][0][:0]]})

    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        (batch,) = Feed(parts["train"], world, 8, shuffle=False, seed=0).epoch(1)
        return batch

    full, idle = LocalEngine(2).run(job, shards_of([(x, y), empty]), Settings())
    assert full.rows == 3 and full.x.tolist() == x.tolist() and full.y["b"][0].shape == (3, 2)
    assert idle.rows == 0 and idle.x.shape == (1, 2) and list(idle.y) == ["a", "b"] and idle.y["b"][0].shape == (1, 2)


@pytest.mark.parametrize("rows", [held(20, 9), [NumberRows(29)] * 2], ids=["held", "shared"])
def test_order_is_drawn_anew_from_seed_and_epoch(rows: list[NumberRows]) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return flat(steps_of(*rows, batch_size=6, seed=seed, epoch=epoch))

    assert order(3, 1) == order(3, 1)
    assert order(3, 1) != order(3, 2)
    assert order(3, 1) != order(4, 1)


def test_ranks_of_equal_length_are_not_shuffled_alike() -> None:
    steps = steps_of(*held(50, 50), batch_size=100)
    assert steps[0][0] != [value - 1000 for value in steps[0][1]]


def test_unshuffled_rows_come_as_they_are() -> None:
    assert flat(steps_of(NumberRows(7, shared=False), batch_size=3, shuffle=False)) == list(range(7))


def test_an_epochs_order_does_not_depend_on_when_it_is_read() -> None:
    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        feed = Feed(parts["train"], world, 4, shuffle=True, seed=1)
        third = [batch.x.tolist() for batch in feed.epoch(3)]
        next(iter(feed.epoch(1)))  # begun and left
        list(feed.epoch(2))
        return third, [batch.x.tolist() for batch in feed.epoch(3)]

    for early, late in on_ranks(job, *held(9, 4)):
        assert early == late


@pytest.mark.parametrize("rows", [held(9, 4), held(0, 13), [NumberRows(13)] * 2, [NumberRows(13)] * 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_can_go_on_in_its_middle_and_reads_no_row_before_it(rows: list[NumberRows], shuffle: bool) -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        feed = Feed(parts["train"], world, 4, shuffle=shuffle, seed=1)
        whole = [batch_of(batch) for batch in feed.epoch(2)]
        for first in range(feed.steps + 2):
            parts["train"].seen = []
            assert [batch_of(batch) for batch in feed.epoch(2, first)] == whole[first:]
            seen = [value for values in parts["train"].seen for value in values]
            assert seen == [value for batch in whole[first:] for value in batch[0][: batch[1]]]
        return len(whole)

    assert set(on_ranks(job, *rows)) == {4}


def batch_of(batch: Batch) -> Any:
    return batch.x.tolist(), batch.rows, batch.step_rows, batch.leader


def test_shared_rows_give_the_same_global_batches_to_any_number_of_ranks() -> None:
    one, two, three = (steps_of(*[NumberRows(23)] * ranks, batch_size=5) for ranks in (1, 2, 3))
    joined = [[[value for values in step for value in values] for step in steps] for steps in (one, two, three)]
    assert joined[0] == joined[1] == joined[2]
    assert all(max(map(len, step)) - min(map(len, step)) <= 1 for step in three)


def test_without_batch_size_the_ranks_own_are_added_up() -> None:
    steps = steps_of(*[NumberRows(20, batch_size=3)] * 2, batch_size=None)
    assert [sum(map(len, step)) for step in steps] == [6, 6, 6, 2]


@pytest.mark.parametrize("size", [None, -4])
def test_a_batch_size_that_nobody_gives_is_refused(size: int | None) -> None:
    with pytest.raises(ArgumentError, match=rf"batch_size must be a positive number of rows.*got {size}"):
        steps_of(*held(3, 3), batch_size=size)


def test_shared_rows_of_unequal_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"every worker must see the same dataset.* \(5, 6\).*split for"):
        steps_of(NumberRows(5), NumberRows(6), batch_size=2)


def test_drop_last_leaves_the_short_step_out() -> None:
    row = NumberRows(11)
    row.drop_last = True
    assert [sum(map(len, step)) for step in steps_of(row, row, batch_size=4)] == [4, 4]


def test_data_without_rows_is_refused_for_training() -> None:
    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        feed_of(parts["train"], world, 4, shuffle=False, seed=0).check_rows()

    row = NumberRows(3)
    row.drop_last = True
    for rows in (held(0, 0), [row, row]):
        with pytest.raises(WorkerFailed, match="there are no rows to train on: the data is empty, or drop_last left"):
            on_ranks(job, *rows)
    assert on_ranks(job, *held(0, 1)) == [None, None]


# Streams.


class NumberStream:
    """Steps of numbers, of which each rank takes those that leave it as the remainder."""

    def __init__(self, steps: list[int], known: bool = True, endless: bool = False) -> None:
        self.sizes, self.endless, self.passes = steps, endless, 0
        self.steps = len(steps) if known else None

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        self.passes += 1
        for size in self.sizes:
            mine = np.arange(100 * self.passes + rank, 100 * self.passes + size, ranks)
            yield Batch(mine, None, len(mine), size)

    def skip(self, passes: int) -> None:
        self.passes += passes

    def close(self) -> None:
        pass


def test_a_stream_flows_anew_in_every_epoch() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        feed = feed_of(parts["train"], world, 7, shuffle=True, seed=0)
        feed.check_rows()
        assert isinstance(feed, StreamFeed)
        assert (feed.steps, feed.endless, feed.world) == (2, False, world)
        return [[(batch.x.tolist(), batch.step_rows) for batch in feed.epoch(epoch)] for epoch in (1, 2)]

    one, two = on_ranks(job, NumberStream([3, 2]), NumberStream([3, 2]))  # type: ignore[arg-type]
    assert one == [[([100, 102], 3), ([100], 2)], [([200, 202], 3), ([200], 2)]]
    assert two == [[([101], 3), ([101], 2)], [([201], 3), ([201], 2)]]


def test_a_stream_leaves_out_the_passes_of_the_run_that_is_resumed() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        feed = feed_of(parts["train"], world, None, shuffle=True, seed=0)
        assert isinstance(feed, StreamFeed)
        feed.first_epoch = 4  # trained before this fit, whose third epoch is resumed
        return [[batch.x.tolist() for batch in feed.epoch(*place)] for place in ((7, 1), (8, 0))]

    (epochs,) = on_ranks(job, NumberStream([1, 1]))  # type: ignore[arg-type]
    assert epochs == [[[300]], [[400], [400]]]


def test_a_stream_is_read_on_to_the_step_it_is_wanted_from() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        tails = []
        for first in range(4):
            parts["train"].passes = 0  # a new stream
            feed = feed_of(parts["train"], world, None, shuffle=True, seed=0)
            tails.append([batch_of(batch) for batch in feed.epoch(1, first)])
        return tails

    for tails in on_ranks(job, NumberStream([3, 2, 4]), NumberStream([3, 2, 4])):  # type: ignore[arg-type]
        assert [len(tail) for tail in tails] == [3, 2, 1, 0]
        assert all(tail == tails[0][first:] for first, tail in enumerate(tails))


class DrawnSteps:
    """Draw steps of its own, of 1 to 4 numbers, and note which are read."""

    steps = 5

    def __init__(self) -> None:
        self.seen: list[int] = []

    def draw(self, generator: np.random.Generator, rank: int, ranks: int, first_step: int) -> Iterator[Batch]:
        sizes = generator.integers(1, 5, size=self.steps)
        for step in range(first_step, self.steps):
            self.seen.append(step)
            mine = np.arange(sizes[step])[rank::ranks]
            yield Batch(mine, None, len(mine), int(sizes[step]))

    def close(self) -> None:
        pass


def test_data_that_draws_its_own_steps_draws_them_from_seed_and_epoch_alike_on_all_ranks() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        def sizes(seed: int, epoch: int, first: int = 0) -> list[int]:
            feed = feed_of(parts["train"], world, None, shuffle=True, seed=seed)
            assert feed.steps == 5 and not feed.endless
            return [batch.step_rows for batch in feed.epoch(epoch, first)]

        results = [sizes(1, 1), sizes(1, 1), sizes(1, 2), sizes(2, 1)]
        parts["train"].seen = []
        assert sizes(1, 2, 3) == results[2][3:] and parts["train"].seen == [3, 4]
        return results

    one, two = on_ranks(job, DrawnSteps(), DrawnSteps())  # type: ignore[arg-type]
    assert one == two and one[0] == one[1]
    assert one[0] != one[2] != one[3] != one[0]


# Weights.


def test_weights_travel_beside_labels_and_a_template_row_weighs_nothing() -> None:
    x, y, weights = np.arange(5.0)[:, None], np.arange(5), np.arange(5) / 2
    parts = [(x, weigh(y, weights)), (x[:0], weigh(y[:0], weights[:0]))]

    def job(world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        feed = feed_of(rows["train"], world, 3, shuffle=True, seed=0, weighted=True)
        return list(feed.epoch(1))

    full, idle = LocalEngine(2).run(job, shards_of(parts), Settings())
    assert sorted(value for batch in full for value in batch.y.tolist()) == y.tolist()
    for batch in full:
        assert batch.weights.tolist() == (batch.y / 2).tolist() and batch.weights.dtype == np.float64
    assert [(batch.rows, batch.weights.tolist(), batch.y.shape) for batch in idle] == [(0, [0.0], (1,))] * 2


def test_rows_without_labels_may_weigh_too() -> None:
    def job(world: World, rows: dict[str, Rows], heartbeat: Any) -> Any:
        (batch,) = feed_of(rows["train"], world, 3, shuffle=False, seed=0, weighted=True).epoch(1)
        return batch.y, batch.weights.tolist(), batch.weights.dtype

    (results,) = LocalEngine(1).run(job, shards_of([(np.ones((2, 1)), weigh(None, [1, 3]))]), Settings())
    assert results == (None, [1.0, 3.0], np.float32)
    assert unweigh(weigh(None, [1, 3]))[0] is None


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -0.5, 2.0], r"finite and not negative; got -0.5, one of 1 such value\(s\) among 3 rows"),
        ([np.nan, 1.0, np.nan], r"finite and not negative; got nan, one of 2 such value\(s\) among 3 rows"),
        ([1.0, np.inf, 1.0], "got inf.*Correct these rows, or give them the weight 0"),
        (np.ones((3, 2)), r"must be one number a row; got float64 of shape \(3, 2\). Pass an array of shape \(n,\)"),
        (["a", "b", "c"], "must be one number a row; got <U1"),
        ([1.0, 2.0], r"all arrays of labels and weights must have the same number of rows; got shapes"),
    ],
)
def test_wrong_weights_are_named(weights: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        weigh(np.arange(3), weights)


def test_a_stream_that_must_bring_weights_and_does_not_is_named() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        list(feed_of(parts["train"], world, None, shuffle=True, seed=0, weighted=True).epoch(1))

    with pytest.raises(WorkerFailed, match=r"a batch of the data has none. Let it give \(x, y, weights\)"):
        on_ranks(job, NumberStream([2]))  # type: ignore[arg-type]


def test_a_stream_tells_that_it_has_no_end() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        feed = feed_of(parts["train"], world, None, shuffle=True, seed=0)
        return feed.steps, feed.endless

    assert on_ranks(job, NumberStream([1], known=False, endless=True)) == [(None, True)]  # type: ignore[arg-type]
    assert on_ranks(job, NumberStream([1], known=False)) == [(None, False)]  # type: ignore[arg-type]
    assert not Feed.endless


def test_an_empty_stream_is_refused_by_all_ranks() -> None:
    def known(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        feed_of(parts["train"], world, None, shuffle=True, seed=0).check_rows()

    def unknown(world: World, parts: dict[str, Any], heartbeat: Any) -> str:
        feed = feed_of(parts["train"], world, None, shuffle=True, seed=0)
        feed.check_rows()
        with pytest.raises(DataError) as info:
            list(feed.epoch(1))
        return str(info.value)

    message = "there are no rows to train on: the data is empty, or drop_last left nothing of it."
    with pytest.raises(WorkerFailed, match=message):
        on_ranks(known, NumberStream([]), NumberStream([]))  # type: ignore[arg-type]
    streams = [NumberStream([], known=False) for _ in range(2)]
    assert on_ranks(unknown, *streams) == [message] * 2  # type: ignore[arg-type]


def test_streams_of_unequal_length_are_refused() -> None:
    def job(world: World, parts: dict[str, Any], heartbeat: Any) -> Any:
        feed_of(parts["train"], world, None, shuffle=True, seed=0)

    for other, notes in (
        (NumberStream([1, 1]), 2),
        (NumberStream([1], False), None),
        (NumberStream([1], False, True), ""),
    ):
        with pytest.raises(DataError, match=rf"every worker must see the same .*\(1, .*{notes}.*split for"):
            on_ranks(job, NumberStream([1]), other)  # type: ignore[arg-type]


# The spool as rows.


def test_spooled_parts_keep_their_structure(tmp_path: Path) -> None:
    x, y = {"a": np.arange(4), "b": (np.ones((4, 2), np.float32),)}, np.arange(4) * 10
    stream = [
        ("train", x, y),
        ("valid", np.zeros((2, 3)), None),
        ("train", {"a": np.array([9]), "b": (np.zeros((1, 2), np.float32),)}, np.array([90])),
    ]
    parts = spool_parts(stream, tmp_path, ("train", "valid", "never"))
    try:
        assert {part: rows.count for part, rows in parts.items()} == {"train": 5, "valid": 2, "never": 0}
        ((read_x, read_y),) = parts["train"].read([np.array([4, 0])])
        assert read_x["a"].tolist() == [9, 0] and read_x["b"][0].shape == (2, 2) and read_y.tolist() == [90, 0]
        ((_, no_y),) = parts["valid"].read([np.array([1])])
        assert no_y is None
        assert list(tmp_path.iterdir()) == []
    finally:
        for rows in parts.values():
            rows.close()


def test_texts_reach_the_batches_as_objects(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    from orca.core.columns import column_array

    frame = pd.DataFrame({"word": ["a", "bc", "ä"], "tags": [["x", "y"], ["z", ""], ["q", "r"]]})
    x = tuple(column_array(frame[name], name) for name in frame)

    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        return [batch.x for batch in feed_of(parts["train"], world, 2, shuffle=False, seed=0).epoch(1)]

    (words, tags), (last, _) = LocalEngine(1).run(job, shards_of([(x, None)]), Settings())[0]
    assert words.dtype == tags.dtype == object
    assert words.tolist() == ["a", "bc"] and tags.tolist() == [["x", "y"], ["z", ""]] and last.tolist() == ["ä"]


def test_a_block_of_another_structure_is_refused(tmp_path: Path) -> None:
    stream = [("train", np.zeros((2, 3)), np.zeros(2)), ("train", (np.zeros((2, 3)),), np.zeros(2))]
    before = psutil.Process().num_fds()
    with pytest.raises(DataError, match=r"all blocks of the train data must have the same structure") as info:
        spool_parts(stream, tmp_path, ("train",))
    # Closed, not only forgotten: the traceback still holds the writer.
    assert info.tb is not None and psutil.Process().num_fds() == before
    assert list(tmp_path.iterdir()) == []


def test_ranks_whose_rows_have_other_keys_are_refused() -> None:
    def job(world: World, parts: dict[str, Rows], heartbeat: Any) -> Any:
        return feed_of(parts["train"], world, 2, shuffle=False, seed=0).steps

    def blocks(*keys: str) -> list[Any]:
        return [(np.zeros(2), {key: np.zeros(2), "c": np.zeros(2)}) for key in keys]

    assert LocalEngine(2).run(job, shards_of(blocks("a", "a")), Settings()) == [2, 2]
    form = r"\('...', {'%s': '...', 'c': '...'}\)"
    with pytest.raises(WorkerFailed, match=f"same structure; got {form % 'a'} and then {form % 'b'}, features before"):
        LocalEngine(2).run(job, shards_of(blocks("a", "b")), Settings())


def test_a_block_of_another_shape_is_refused(tmp_path: Path) -> None:
    stream = [("train", np.zeros((2, 3)), np.zeros(2)), ("train", np.zeros((2, 4)), np.zeros(2))]
    with pytest.raises(DataError, match=r"\(3,\).*\(4,\)|\(4,\).*\(3,\)"):
        spool_parts(stream, tmp_path, ("train",))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_when_the_stream_fails(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, Any, Any]]:
        yield "train", np.zeros((2, 3)), None
        raise OSError("the network went away")

    with pytest.raises(OSError, match="the network went away"):
        spool_parts(stream(), tmp_path, ("train",))
    assert list(tmp_path.iterdir()) == []


def test_long_texts_are_not_taken_all_at_once(tmp_path: Path) -> None:
    texts = np.array(["x" * 50_000] * 100, object)
    rows = spool_parts([("train", texts, np.arange(100))], tmp_path, ["train"])["train"]
    takes: list[int] = []
    take = rows.spool.take  # type: ignore[union-attr]
    rows.spool.take = lambda index: takes.append(len(index)) or take(index)  # type: ignore[union-attr,method-assign]
    for _ in rows.read(np.arange(100).reshape(50, 2)):
        pass
    assert max(takes) < 10
    rows.close()


def test_each_step_is_counted_once_for_the_rows_that_are_taken_with_it(tmp_path: Path) -> None:
    class Step(list[int]):
        looks = 0

        def __len__(self) -> int:
            Step.looks += 1
            return super().__len__()

    rows = spool_parts([("train", np.arange(1000), None)], tmp_path, ["train"])["train"]
    steps = [Step([row]) for row in range(1000)]
    assert [x.tolist() for x, _ in rows.read(steps)] == steps  # type: ignore[arg-type]
    assert Step.looks < 10 * len(steps)
    rows.close()


def test_rows_of_several_small_steps_are_taken_at_once_and_stay_apart(tmp_path: Path) -> None:
    x, y = np.arange(30.0).reshape(10, 3), np.arange(10)
    rows = spool_parts([("train", x[:6], y[:6]), ("train", x[6:], y[6:])], tmp_path, ["train"])["train"]
    takes: list[int] = []
    take = rows.spool.take  # type: ignore[union-attr]
    rows.spool.take = lambda index: takes.append(len(index)) or take(index)  # type: ignore[union-attr,method-assign]
    steps = [np.array(step) for step in ([3, 1], [0], [9, 8, 2], [7])]
    for size, expected in ((1, [2, 1, 3, 1]), (3, [3, 3, 1]), (100, [7])):
        rows.group_rows = size
        takes.clear()
        read = list(rows.read(iter(steps)))
        assert takes == expected
        for step, (features, labels) in zip(steps, read, strict=True):
            assert (features == x[step]).all() and (labels == y[step]).all()
    rows.close()
