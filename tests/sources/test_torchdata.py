from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from frameworks.torch.alone import AloneEngine
from orca import Estimator
from orca.core.engine import Settings
from orca.core.feed import feed_of
from orca.core.source import Columns, DataSpec, Extent
from orca.engines.local import LocalEngine
from orca.errors import ArgumentError, DataError, WorkerFailed
from orca.estimators.torch import TorchEstimator
from orca.monitor.heartbeat import Heartbeat
from orca.registry import source_of
from orca.rows.tree import flatten
from orca.sources.torchdata import LoaderRows, LoaderSource, Reading, loader_rows, split_batch
from raised import raises

N = 10
ROWS = torch.arange(N, dtype=torch.float32)
DATA = TensorDataset(ROWS[:, None] + torch.tensor([0.0, 0.5]), ROWS)
SETTINGS = Settings(10)


@dataclass(frozen=True)
class ReadAll:
    """Return a rank's labels (and the rows of the whole step) step by step, epoch after epoch, of each part."""

    batch_size: int | None
    shuffle: bool = True
    epochs: int = 1
    first_step: int = 0

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> dict[str, list[Any]]:
        feeds = {
            name: feed_of(part, world, self.batch_size, shuffle=self.shuffle, seed=3) for name, part in rows.items()
        }
        return {
            name: [[self._told(batch) for batch in feed.epoch(epoch, self.first_step)] for epoch in range(self.epochs)]
            for name, feed in feeds.items()
        }

    def _told(self, batch: Any) -> tuple[list[float], int]:
        if not batch.rows:
            return [], batch.step_rows
        x, y = np.asarray(batch.x), np.asarray(batch.y)
        assert len(y) == batch.rows
        np.testing.assert_array_equal(x[:, 1], y + 0.5)  # a row's features came with its label
        return y.tolist(), batch.step_rows


def steps_of(source: Any, ranks: int, shuffle: bool = True, epochs: int = 1, valid: Any = None) -> list[Any]:
    """Return the labels of every step over all ranks, epoch by epoch; each must have the rows it says."""
    job = ReadAll(source.batch_size, shuffle, epochs)
    results = LocalEngine(ranks).run(job, source.shards(ranks, valid), SETTINGS)
    return [
        [_joined(step) for step in zip(*epoch, strict=True)]
        for epoch in zip(*(rank["train"] for rank in results), strict=True)
    ]


@dataclass(frozen=True)
class Seat:
    """A rank among others that hold the same rows. Ranks here take turns: threads share torch's random numbers."""

    rank: int
    size: int

    def all_gather(self, item: Any) -> list[Any]:
        return [item] * self.size


def drawn_steps(sampler: Any, ranks: int, batch_size: int = 4) -> list[list[list[float]]]:
    """Return the labels of every step over all ranks of two epochs; each must have the rows it says."""
    return loaded_steps(DataLoader(DATA, batch_size=batch_size, sampler=sampler), ranks)


def loaded_steps(loader: Any, ranks: int, first_step: int = 0) -> list[list[list[float]]]:
    """Return the labels of every step of a loader over all ranks of two epochs; each must have the rows it says."""
    source = source_of(loader, spec())
    shards = source.shards(ranks)
    notes = []
    for rank, piece in enumerate(shards.portable()):
        rows = shards.open(cloudpickle.loads(cloudpickle.dumps(piece))(), Path(tempfile.gettempdir()))
        torch.manual_seed(rank)  # ranks are at different places of their random numbers
        random.seed(rank)
        np.random.seed(rank)
        notes.append(ReadAll(source.batch_size, True, 2, first_step)(Seat(rank, ranks), rows, None)["train"])
        rows["train"].close()
    return [[_joined(step) for step in zip(*epoch, strict=True)] for epoch in zip(*notes, strict=True)]


def _joined(step: Any) -> list[float]:
    labels = [label for rank, _ in step for label in rank]
    assert {rows for _, rows in step} == {len(labels)}
    return labels


def spec(size: int | None = None, labelled: bool = True, **config: Any) -> DataSpec:
    return DataSpec(labelled=labelled, batch_size=size, config=config)


# Datasets and loaders


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_dataset_is_split_over_the_ranks_and_shuffled_every_epoch(ranks: int) -> None:
    source = source_of(DATA, spec(4))
    assert isinstance(source, LoaderSource)
    first, second = steps_of(source, ranks, epochs=2)
    assert [len(step) for step in first] == [4, 4, 2]
    assert sorted([*chain(*first)]) == sorted([*chain(*second)]) == ROWS.tolist()
    assert [*chain(*first)] != [*chain(*second)] != ROWS.tolist()
    assert steps_of(source, ranks, shuffle=False) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]]


def test_any_number_of_ranks_sees_the_same_steps() -> None:
    loader = DataLoader(DATA, batch_size=3, shuffle=True)
    one, two, three = (
        [[sorted(step) for step in epoch] for epoch in steps_of(source_of(loader, spec()), ranks, epochs=2)]
        for ranks in (1, 2, 3)
    )
    assert one == two == three


def test_a_loader_brings_its_batch_size_and_its_order() -> None:
    source = source_of(DataLoader(DATA, batch_size=4), spec())
    assert source.batch_size == 4
    assert steps_of(source, 2) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]]  # not shuffled, as it is itself
    assert source_of(DataLoader(DATA, batch_size=4), spec(5)).batch_size == 5


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_loader_that_drops_its_last_batch_does_so_over_all_ranks(ranks: int) -> None:
    source = source_of(DataLoader(DATA, batch_size=4, drop_last=True), spec())
    assert steps_of(source, ranks) == [[[0, 1, 2, 3], [4, 5, 6, 7]]]


@pytest.mark.parametrize("drawn", [4, 10, 25])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sampler_is_drawn_the_same_on_every_rank(ranks: int, drawn: int) -> None:
    sampler = WeightedRandomSampler([1.0] * 5 + [0.0] * 5, drawn)
    first, second = drawn_steps(sampler, ranks)
    assert [len(step) for step in first] == [4] * (drawn // 4) + [drawn % 4] * (drawn % 4 > 0)
    assert set([*chain(*first)] + [*chain(*second)]) <= {0, 1, 2, 3, 4}
    assert first != second
    assert drawn_steps(sampler, 3) == [first, second]


def test_a_sampler_with_a_generator_of_its_own_is_drawn_anew_every_epoch() -> None:
    sampler = WeightedRandomSampler([1.0] * N, N, generator=torch.Generator())
    try:
        cloudpickle.dumps(sampler)
    except TypeError:
        pytest.skip("this torch cannot pickle a generator")
    first, second = drawn_steps(sampler, 2)
    assert first != second
    assert drawn_steps(sampler, 3) == [first, second]


def test_a_sampler_of_some_rows_makes_an_epoch_of_them() -> None:
    for steps in drawn_steps(SubsetRandomSampler([1, 3, 5, 7, 9]), 2, batch_size=3):
        assert [len(step) for step in steps] == [3, 2]
        assert sorted([*chain(*steps)]) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    ("options", "count"), [({"replacement": True, "num_samples": 25}, 25), ({"num_samples": 4}, 4), ({}, 10)]
)
def test_a_random_sampler_draws_as_many_rows_as_it_says(options: dict[str, Any], count: int) -> None:
    first, second = drawn_steps(RandomSampler(DATA, **options), 2)
    assert sum(map(len, first)) == sum(map(len, second)) == count
    assert set([*chain(*first)]) <= set(ROWS.tolist())
    assert first != second


class Endless(Sampler):  # type: ignore[type-arg]
    """Give rows without saying how many."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Short(Endless):
    def __len__(self) -> int:
        return 4


def test_a_dataset_must_tell_its_length() -> None:
    class Endless(Dataset[Any]):
        def __getitem__(self, row: int) -> Any:
            return torch.ones(2), torch.ones(1)

    with raises("dataset-without-length"):
        source_of(Endless(), DataSpec(batch_size=4))


def test_a_sampler_must_tell_its_length() -> None:
    with pytest.raises(
        WorkerFailed, match="the sampler Endless has no length, so its rows cannot be split over workers"
    ):
        steps_of(source_of(DataLoader(DATA, batch_size=4, sampler=Endless()), spec()), 1)
    with raises("sampler-length-wrong"):
        steps_of(source_of(DataLoader(DATA, batch_size=4, sampler=Short()), spec()), 1)


def collate(samples: list[Any]) -> Any:
    xs, ys = zip(*samples, strict=True)
    return {"x": torch.stack(xs) + 100, "y": torch.stack(ys) + 100}


def test_the_collate_function_is_kept() -> None:
    ((first, *_),) = steps_of(source_of(DataLoader(DATA, batch_size=2, collate_fn=collate), spec()), 2)
    assert first == [100, 101]


@pytest.mark.parametrize("library", ["numpy", "random", "torch"])
def test_a_sampler_is_drawn_alike_whatever_it_draws_from(library: str) -> None:
    first, second = drawn_steps(Shuffled(library), 3)
    assert drawn_steps(Shuffled(library), 1) == [first, second]
    assert sorted([*chain(*first)]) == ROWS.tolist() and first != second


def test_a_sampler_that_counts_epochs_is_told_of_a_new_one() -> None:
    first, second = drawn_steps(Epochal(), 2)
    assert first != second and drawn_steps(Epochal(), 3) == [first, second]


class Shuffled(Sampler):  # type: ignore[type-arg]
    """Draw all rows from the random numbers of a library."""

    def __init__(self, library: str) -> None:
        self.library = library

    def __iter__(self) -> Iterator[int]:
        if self.library == "numpy":
            return iter(np.random.permutation(N).tolist())
        if self.library == "torch":
            return iter(torch.randperm(N).tolist())
        return iter(random.sample(range(N), N))

    def __len__(self) -> int:
        return N


class Epochal(Shuffled):
    """Draw from the number of the epoch alone, as samplers for several processes do."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(N).tolist())


def test_a_sampler_that_splits_the_rows_itself_stands_for_the_whole_dataset() -> None:
    sampler = DistributedSampler(DATA, num_replicas=3, rank=1, shuffle=False)
    assert drawn_steps(sampler, 2) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2
    first, second = drawn_steps(DistributedSampler(DATA, num_replicas=3, rank=1), 2)
    assert sorted([*chain(*first)]) == ROWS.tolist() and first != second


# Loaders that bring their steps


class Buckets(Sampler):  # type: ignore[type-arg]
    """Give batches of 1, 2, 3 and 4 rows, in an order that is drawn anew."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[int]]:
        steps = [[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]]
        return (steps[i] for i in np.random.permutation(4))

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_steps_are_those_of_a_batch_sampler_cut_among_the_ranks(ranks: int) -> None:
    plain = BatchSampler(SequentialSampler(DATA), 4, drop_last=True)
    loader = DataLoader(DATA, batch_sampler=plain)
    assert source_of(loader, spec()).batch_size is None
    assert loaded_steps(loader, ranks) == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2
    first, second = loaded_steps(DataLoader(DATA, batch_sampler=Buckets()), ranks)
    assert sorted(first) == sorted(second) == [[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert first != second
    assert loaded_steps(DataLoader(DATA, batch_sampler=Buckets()), ranks, first_step=2) == [first[2:], second[2:]]
    random_rows = BatchSampler(RandomSampler(DATA), 3, drop_last=False)
    one, two = loaded_steps(DataLoader(DATA, batch_sampler=random_rows), ranks)
    assert [len(step) for step in one] == [3, 3, 3, 1] and sorted([*chain(*one)]) == ROWS.tolist() and one != two


def test_any_number_of_ranks_draws_the_same_batches() -> None:
    loader = DataLoader(DATA, batch_sampler=Buckets(), num_workers=1)
    assert loaded_steps(loader, 1) == loaded_steps(loader, 3)


class Counted(TensorDataset):
    """Note which rows are read."""

    seen: ClassVar[list[int]] = []

    def __getitem__(self, index: int) -> Any:
        self.seen.append(index)
        return super().__getitem__(index)


def test_rows_of_skipped_steps_and_of_other_ranks_are_not_read() -> None:
    sampler = BatchSampler(SequentialSampler(DATA), 4, drop_last=False)
    for loader in (DataLoader(DATA, batch_sampler=sampler), DataLoader(DATA, batch_size=4)):
        source = source_of(loader, spec())
        rows = source.shards(2).open(source.shards(2).portable()[1](), Path())["train"]
        rows.loader = DataLoader(Counted(*DATA.tensors), batch_size=4)
        feed = feed_of(rows, Seat(1, 2), source.batch_size, shuffle=True, seed=0)  # type: ignore[arg-type]
        Counted.seen.clear()
        assert [batch.rows for batch in feed.epoch(1, 1)] == [2, 1]
        assert Counted.seen == [6, 7, 9]


def test_a_batch_size_beside_a_batch_sampler_is_not_used_and_said_so(caplog: Any) -> None:
    loader = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False))
    with caplog.at_level(logging.WARNING, logger="orca"):
        assert source_of(loader, spec(7)).batch_size is None
    assert "batch_size=7 is not used: the DataLoader decides on the rows of a step." in caplog.text


class Unending(Buckets):
    def __iter__(self) -> Iterator[list[int]]:
        return ([i % N] for i in count())


class Lengthless(Endless):
    def __iter__(self) -> Iterator[Any]:
        return iter([[0]])


def test_a_batch_sampler_must_tell_its_length() -> None:
    with pytest.raises(ArgumentError, match="the batch sampler Lengthless has no length"):
        loaded_steps(DataLoader(DATA, batch_sampler=Lengthless()), 1)
    with raises("sampler-length-wrong"):
        loaded_steps(DataLoader(DATA, batch_sampler=Unending()), 1)


class Packs(Dataset):  # type: ignore[type-arg]
    """Have items that are batches already, of 4, 1 and 5 rows."""

    cuts = (slice(0, 4), slice(4, 5), slice(5, 10))

    def __getitem__(self, index: int) -> Any:
        return DATA[self.cuts[index]]

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_items_that_are_batches_are_steps_cut_among_the_ranks(ranks: int) -> None:
    whole = [[0, 1, 2, 3], [4], [5, 6, 7, 8, 9]]
    assert loaded_steps(DataLoader(Packs(), batch_size=None), ranks) == [whole] * 2
    assert loaded_steps(DataLoader(Packs(), batch_size=None), ranks, first_step=1) == [whole[1:]] * 2
    shuffled = loaded_steps(DataLoader(Packs(), batch_size=None, shuffle=True), ranks)
    assert [sorted(epoch) for epoch in shuffled] == [whole] * 2
    assert loaded_steps(DataLoader(Packs(), batch_size=None, shuffle=True), 1) == shuffled


def test_items_that_are_no_batches_are_named() -> None:
    with pytest.raises(DataError, match="an item of a dataset that is read with batch_size=None must be arrays with r"):
        loaded_steps(DataLoader(DATA, batch_size=None), 1)


class Unsized(Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_without_a_length_is_refused() -> None:
    with raises("loader-without-length"):
        source_of(DataLoader(Unsized(), sampler=Endless()), spec())


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, rows: int = N) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (DATA[i] for i in range(self.rows))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("loaded", [True, False])
def test_every_row_of_a_stream_is_read_once(ranks: int, loaded: bool) -> None:
    data = DataLoader(Stream(), batch_size=3) if loaded else Stream()
    for epoch in steps_of(source_of(data, spec(None if loaded else 3)), ranks, epochs=2):
        assert [len(step) for step in epoch] == [3, 3, 3, 1]
        assert sorted([*chain(*epoch)]) == ROWS.tolist()


class Split(Stream):
    """A dataset that is split among the workers of a loader, as torch wants it."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        return (DATA[i] for i in range(self.rows) if worker is None or i % worker.num_workers == worker.id)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("rows", [N, 7])
def test_every_row_of_a_stream_with_workers_is_read_once(ranks: int, rows: int) -> None:
    loader = DataLoader(Split(rows), batch_size=3, num_workers=2)
    for epoch in steps_of(source_of(loader, spec()), ranks, epochs=2):
        assert sorted([*chain(*epoch)]) == list(range(rows))
        assert [len(step) for step in epoch] == [3] * (rows // 3) + [1]


class Drawn(Stream):
    """Give the rows in an order of chance."""

    def __iter__(self) -> Iterator[Any]:
        return (DATA[i] for i in torch.randperm(N))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_in_an_order_of_chance_is_the_same_on_all_ranks(workers: int) -> None:
    loader = DataLoader(Drawn(), batch_size=3, num_workers=workers)
    for epoch in steps_of(source_of(loader, spec()), 3, epochs=2):
        assert sorted([*chain(*epoch)]) == ROWS.tolist()


def test_a_stream_keeps_the_settings_of_its_loader() -> None:
    (dropped,) = steps_of(source_of(DataLoader(Stream(), batch_size=4, drop_last=True), spec()), 2, shuffle=False)
    assert sorted([*chain(*dropped)]) == list(range(8))
    loader = DataLoader(Stream(), batch_size=4, collate_fn=collate)
    (moved,) = steps_of(source_of(loader, spec()), 2)
    assert sorted([*chain(*moved)]) == (ROWS + 100).tolist()


def test_validation_data_travels_along() -> None:
    train, valid = source_of(DataLoader(DATA, batch_size=4), spec()), source_of(DataLoader(Stream(3)), spec())
    results = LocalEngine(2).run(ReadAll(4), train.shards(2, valid), SETTINGS)
    assert sorted(y for rank in results for ys, _ in rank["valid"][0] for y in ys) == [0, 1, 2]
    assert sorted(y for rank in results for ys, _ in rank["train"][0] for y in ys) == ROWS.tolist()


def test_the_last_of_several_things_is_the_label() -> None:
    assert split_batch([1, 2, 3]) == ((1, 2), 3)
    assert split_batch((1, 2)) == (1, 2)
    assert split_batch([1]) == (1, None)
    assert split_batch({"x": 1, "y": 2}) == (1, 2)
    assert split_batch({"a": 1}) == ({"a": 1}, None)
    assert split_batch(5) == (5, None)


def test_the_parts_of_a_dict_are_found_by_their_names() -> None:
    batch = {"a": 1, "b": 2, "label": 3, "w": np.array([0.5])}
    assert split_batch(batch, Columns(("a", "b"), ("label",))) == ((1, 2), 3)
    assert split_batch(batch, Columns(labels=("label",), weight="w")) == ({"a": 1, "b": 2}, 3)
    assert split_batch(batch, Columns(("b",))) == (2, None)
    with pytest.raises(DataError, match="there is no column 'lable'; the data has .*Did you mean 'label'"):
        split_batch(batch, Columns(labels=("lable",)))


# Weights


@dataclass(frozen=True)
class ReadWeights:
    """Return the weight of every label that a rank sees."""

    batch_size: int | None

    def __call__(self, world: Any, rows: dict[str, Any], heartbeat: Any) -> dict[float, float]:
        feed = feed_of(rows["train"], world, self.batch_size, shuffle=True, seed=0, weighted=True)
        batches = list(feed.epoch(1))
        assert all(batch.weights.tolist() == [0.0] for batch in batches if not batch.rows)
        return {y: w for b in batches if b.rows for y, w in zip(b.y.tolist(), b.weights.tolist(), strict=True)}


def as_dict(samples: list[Any]) -> Any:
    xs, ys, ws = zip(*samples, strict=True)
    return {"a": torch.stack(xs), "label": torch.stack(ys), "w": torch.stack(ws)}


WEIGHED = TensorDataset(*DATA.tensors, ROWS / 4)


class WeighedStream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(WEIGHED)


class WeighedPacks(Packs):
    def __getitem__(self, index: int) -> Any:
        return WEIGHED[self.cuts[index]]


@pytest.mark.parametrize("ranks", [1, 3])
def test_weights_are_the_last_part_of_a_batch(ranks: int) -> None:
    named = DataSpec(Columns(labels=("label",), weight="w"), batch_size=4)
    plain = DataSpec(batch_size=4, weighted=True)
    kinds: list[tuple[Any, DataSpec]] = [(WEIGHED, plain), (WeighedStream(), plain)]
    kinds += [(DataLoader(WEIGHED, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)), plain)]
    kinds += [(DataLoader(WeighedPacks(), batch_size=None), plain)]
    kinds += [(DataLoader(WEIGHED, 4, collate_fn=as_dict), named)]
    for data, how in kinds:
        source = source_of(data, how)
        results = LocalEngine(ranks).run(ReadWeights(source.batch_size), source.shards(ranks), SETTINGS)
        assert {y: w for rank in results for y, w in rank.items()} == {y: y / 4 for y in ROWS.tolist()}


def test_batches_without_weights_are_named() -> None:
    source = source_of(DATA, DataSpec(batch_size=4, weighted=True))
    with raises("bad-weighted-data"):
        LocalEngine(1).run(ReadWeights(4), source.shards(1), SETTINGS)
    negative = source_of(TensorDataset(*DATA.tensors, ROWS - 1), DataSpec(batch_size=4, weighted=True))
    with raises("bad-sample-weights"):
        LocalEngine(1).run(ReadWeights(4), negative.shards(1), SETTINGS)


# Answers


@dataclass(frozen=True)
class Single:
    """A task whose model takes one input."""

    function: Callable[[Any], Any]

    def __call__(self, x: Any) -> Any:
        return self.function(x)

    def takes(self, x: Any) -> bool:
        return not isinstance(x, tuple | list)


@pytest.mark.parametrize("ranks", [1, 3])
def test_predictions_are_arrays_in_the_order_of_the_dataset(ranks: int) -> None:
    engine, expected = LocalEngine(ranks), np.asarray(DATA.tensors[0]) * 2
    unlabelled = spec(4, labelled=False)
    kinds: list[Any] = [
        DATA,
        DataLoader(DATA, batch_size=3, shuffle=True),
        Stream(),
        DataLoader(Stream(), batch_size=3),
    ]
    kinds += [TensorDataset(DATA.tensors[0]), DataLoader(Packs(), batch_size=None)]
    kinds += [DataLoader(DATA, batch_sampler=Buckets()), DataLoader(Packs(), batch_size=None, shuffle=True)]
    for kind in kinds:
        np.testing.assert_array_equal(source_of(kind, unlabelled).answer(Single(lambda x: x * 2), engine), expected)


def test_several_features_reach_the_model_together() -> None:
    two = TensorDataset(ROWS, ROWS + 1)
    answer = source_of(two, spec(4, labelled=False)).answer(lambda x: (x[0] + x[1], x[1]), LocalEngine(2))
    assert flatten(answer)[0][0].tolist() == (2 * ROWS + 1).tolist()
    assert len(answer) == 2


class Alone(TorchEstimator):
    """An Estimator whose one rank runs in this process."""

    engine = AloneEngine()  # type: ignore[assignment]


class Difference(nn.Module):
    """Take two inputs."""

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one - other


class Doubled(nn.Module):
    """Take one input."""

    def forward(self, one: torch.Tensor) -> torch.Tensor:
        return one * 2


@pytest.mark.parametrize("creator", [False, True])
def test_an_item_is_cut_into_inputs_and_label_only_where_the_model_takes_fewer_things(creator: bool) -> None:
    one, two, label, weights = (torch.arange(9.0) * factor for factor in (1, 3, 100, 1000))

    def answer(model: type[nn.Module], *tensors: torch.Tensor, arrays: bool = False) -> list[float]:
        data: Any = tuple(t.numpy() for t in tensors) if arrays else TensorDataset(*tensors)
        estimator = Estimator.from_torch(model=model(), backend="local", workers_per_node=2)
        return list(estimator.predict((lambda: data) if creator else data, batch_size=4))

    for arrays in (False, True) if creator else (False,):
        assert answer(Difference, one, two, arrays=arrays) == (one - two).tolist()
        assert answer(Difference, one, two, label, arrays=arrays) == (one - two).tolist()
        assert answer(Doubled, one, label, arrays=arrays) == (one * 2).tolist()
        assert answer(Doubled, one, label, weights, arrays=arrays) == (one * 2).tolist()


class Optional(nn.Linear):
    """Take a second input, or not."""

    def forward(self, one: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(one) + (0 if shift is None else shift)


def test_a_label_is_no_optional_input_of_a_model_that_has_seen_no_data(caplog: pytest.LogCaptureFixture) -> None:
    rows, shift = torch.arange(9.0)[:, None], torch.ones(9, 1)
    estimator = Alone.from_torch(model=Optional(1, 1), backend="local")
    wanted = estimator.predict(rows.numpy())
    for _ in range(2):
        np.testing.assert_array_equal(estimator.predict(TensorDataset(rows, shift + 7), batch_size=4), wanted)
    assert caplog.text.count("the last of the 2 things in an item is taken for a label") == 1
    answers = estimator.predict(TensorDataset(rows, shift, shift + 7), batch_size=4)
    np.testing.assert_allclose(answers, wanted + 1)  # an input that is not the last is one


def test_a_trained_model_knows_its_inputs() -> None:
    rows, label = torch.arange(9.0)[:, None], torch.zeros(9, 1)
    estimator = Alone.from_torch(
        model=Optional(1, 1),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.0),
        loss=nn.MSELoss(),
        backend="local",
    )
    estimator.fit(TensorDataset(rows, label + 7), batch_size=4)
    wanted = estimator.predict(rows.numpy())
    np.testing.assert_array_equal(estimator.predict(TensorDataset(rows, label + 7)), wanted)


def linear(seed: int = 0) -> Estimator:
    return Alone.from_torch(
        model=lambda config: nn.Linear(1, 1),
        optimizer=lambda model, config: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        backend="local",
        seed=seed,
    )


def lists(items: list[Any]) -> Any:
    return [[float(x)] for x, _ in items], [[float(y)] for _, y in items]


def test_numbers_of_any_type_are_trained_and_answered_alike() -> None:
    rows = torch.arange(9.0)[:, None]
    plain = linear()
    plain.fit(TensorDataset(rows, rows), batch_size=4)
    wanted = plain.predict(TensorDataset(rows, rows))
    for data in (
        TensorDataset(rows.double(), rows),
        TensorDataset(rows.bfloat16(), rows.bfloat16()),  # 0 to 8 have no digits to lose
        DataLoader(TensorDataset(rows, rows), 4, shuffle=True, collate_fn=lists),
    ):
        estimator = linear()
        estimator.fit(data, batch_size=4)
        np.testing.assert_allclose(estimator.predict(data), wanted, rtol=1e-6)


def test_a_list_of_lists_is_features_and_labels() -> None:
    rows = torch.arange(9.0)[:, None]
    plain, listed = linear(), linear()
    for estimator, collate_fn in ((plain, lists), (listed, lambda items: list(lists(items)))):
        data = DataLoader(TensorDataset(rows, rows), 4, shuffle=True, collate_fn=collate_fn)
        estimator.fit(data, batch_size=4)
        assert estimator.predict(data).shape == (9, 1)
    np.testing.assert_array_equal(listed.predict(data), plain.predict(data))


def test_rows_without_a_label_are_answered() -> None:
    rows = torch.arange(9.0)[:, None]
    without = DataLoader(rows, 4, collate_fn=lambda items: (torch.stack(items), None))  # type: ignore[arg-type]
    np.testing.assert_array_equal(linear().predict(without), linear().predict(rows))


def test_sparse_tensors_are_refused_where_they_are_read() -> None:
    rows = torch.eye(4).to_sparse()
    data = DataLoader([(row, 0.0) for row in torch.eye(4).unbind()], 2, collate_fn=lambda items: (rows, rows))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"a batch of the dataset is a sparse tensor \(sparse_coo\).*Call to_dense"):
        linear().predict(data)
    with pytest.raises(DataError, match="a batch of the dataset is a sparse tensor"):
        linear().fit(data)


class Noise(IterableDataset):  # type: ignore[type-arg]
    """Draw its rows."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(row, row) for row in torch.rand(6, 1)])


def test_beginning_to_read_draws_nothing_so_that_resumed_epochs_draw_alike() -> None:
    class Drawing(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            return torch.rand(2), number

    rows = LoaderRows(DataLoader(Drawing(), 2))
    torch.manual_seed(5)
    x, _ = next(rows.read([np.array([1])]))
    torch.manual_seed(5)
    assert torch.equal(x, torch.rand(1, 2))


def test_the_seed_reaches_an_iterable_dataset() -> None:
    losses = []
    for seed in (1, 1, 2):
        estimator = linear(seed)
        estimator.load_state_dict({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
        losses.append(estimator.fit(Noise(), batch_size=6)[0]["train_loss"])
    assert losses[0] == losses[1] != losses[2]


def test_no_row_is_dropped_from_an_answer() -> None:
    dropping = DataLoader(Stream(), batch_size=4, drop_last=True)
    answer = source_of(dropping, spec(labelled=False)).answer(Single(lambda x: x), LocalEngine(2))
    assert len(answer) == len(ROWS)
    created = source_of(lambda: dropping, spec(labelled=False)).answer(Single(lambda x: x), LocalEngine(2))
    np.testing.assert_array_equal(created, answer)


def test_nothing_to_predict_is_said() -> None:
    for empty in (TensorDataset(ROWS[:0]), Stream(0)):
        with raises("no-rows"):
            source_of(empty, spec(labelled=False)).answer(lambda x: x, LocalEngine(2))


def test_a_dataset_shorter_than_the_ranks_is_answered() -> None:
    answer = source_of(TensorDataset(ROWS[:2]), spec(labelled=False)).answer(lambda x: x * 2, LocalEngine(5))
    assert answer.tolist() == [0, 2]


def test_each_batch_of_a_stream_is_progress_while_it_is_spooled(tmp_path: Path) -> None:
    heartbeat, seen = Heartbeat(), []

    class Slow(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            for number in range(6):
                seen.append(heartbeat.progress)
                yield torch.ones(2), torch.tensor(number)

    with heartbeat.current():
        rows = loader_rows("train", DataLoader(Slow(), batch_size=1), Reading(), 1, 3, tmp_path)
    rows.close()
    assert seen == sorted(set(seen))  # also for the batches of other ranks


def test_the_extent_of_a_loader_is_what_its_sampler_draws() -> None:
    size = sum(tensor.nbytes for tensor in DATA.tensors)
    assert source_of(DATA, DataSpec()).extent() == Extent(N, size)
    assert source_of(DataLoader(DATA, 4, sampler=SubsetRandomSampler([1, 2, 3])), DataSpec()).extent().rows == 3
    split = DistributedSampler(DATA, num_replicas=2, rank=0)
    assert source_of(DataLoader(DATA, 4, sampler=split), DataSpec()).extent().rows == N
    steps = DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 3, False))
    assert source_of(steps, DataSpec()).extent() == Extent()
