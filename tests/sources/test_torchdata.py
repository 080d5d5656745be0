from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
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
)

from orca.core.engine import Settings
from orca.core.feed import Feed
from orca.core.source import DataSpec
from orca.core.tree import flatten
from orca.errors import ArgumentError, NotYet, WorkerFailed
from orca.registry import source_of
from orca.sources.torchdata import LoaderSource, split_batch
from orca.testing import ThreadEngine

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

    def __call__(self, world: Any, rows: dict[str, Any], pulse: Any) -> dict[str, list[Any]]:
        feeds = {name: Feed(part, world, self.batch_size, shuffle=self.shuffle, seed=3) for name, part in rows.items()}
        return {
            name: [[self._told(batch) for batch in feed.epoch(epoch)] for epoch in range(self.epochs)]
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
    told = ThreadEngine(ranks).run(job, source.shards(ranks, valid), SETTINGS)
    return [
        [_joined(step) for step in zip(*epoch, strict=True)]
        for epoch in zip(*(rank["train"] for rank in told), strict=True)
    ]


@dataclass(frozen=True)
class Seat:
    """Be a rank among others that hold the same rows. Ranks here take turns: threads share torch's random numbers."""

    rank: int
    size: int

    def all_gather(self, item: Any) -> list[Any]:
        return [item] * self.size


def drawn_steps(sampler: Any, ranks: int, batch_size: int = 4) -> list[list[list[float]]]:
    """Return the labels of every step over all ranks of two epochs; each must have the rows it says."""
    source = source_of(DataLoader(DATA, batch_size=batch_size, sampler=sampler), spec())
    shards = source.shards(ranks)
    told = []
    for rank, piece in enumerate(shards.portable()):
        rows = shards.open(cloudpickle.loads(cloudpickle.dumps(piece))(), Path())
        torch.manual_seed(rank)  # ranks are at different places of their random numbers
        told.append(ReadAll(batch_size, epochs=2)(Seat(rank, ranks), rows, None)["train"])
    return [[_joined(step) for step in zip(*epoch, strict=True)] for epoch in zip(*told, strict=True)]


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


def test_a_sampler_must_tell_its_length() -> None:
    with pytest.raises(
        WorkerFailed, match="the sampler Endless has no length, so its rows cannot be split over workers"
    ):
        steps_of(source_of(DataLoader(DATA, batch_size=4, sampler=Endless()), spec()), 1)
    with pytest.raises(WorkerFailed, match="the sampler Short gave 10 rows, but its length is 4. Let its __len__"):
        steps_of(source_of(DataLoader(DATA, batch_size=4, sampler=Short()), spec()), 1)


def collate(samples: list[Any]) -> Any:
    xs, ys = zip(*samples, strict=True)
    return {"x": torch.stack(xs) + 100, "y": torch.stack(ys) + 100}


def test_the_collate_function_is_kept() -> None:
    ((first, *_),) = steps_of(source_of(DataLoader(DATA, batch_size=2, collate_fn=collate), spec()), 2)
    assert first == [100, 101]


@pytest.mark.parametrize(
    "options", [{"batch_sampler": BatchSampler(SequentialSampler(DATA), 2, False)}, {"batch_size": None}]
)
def test_batches_that_cannot_be_split_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(
        NotYet, match="batch_sampler of its own, or with batch_size=None, cannot be split .*a batch_size"
    ):
        source_of(DataLoader(DATA, **options), spec())


class Unsized(Dataset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_without_a_length_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match="the dataset Unsized has no length.*Give it __len__, or make it an IterableD"
    ):
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


def test_a_stream_keeps_the_settings_of_its_loader() -> None:
    (dropped,) = steps_of(source_of(DataLoader(Stream(), batch_size=4, drop_last=True), spec()), 2, shuffle=False)
    assert sorted([*chain(*dropped)]) == list(range(8))
    loader = DataLoader(Stream(), batch_size=4, collate_fn=collate)
    (moved,) = steps_of(source_of(loader, spec()), 2)
    assert sorted([*chain(*moved)]) == (ROWS + 100).tolist()


def test_validation_data_travels_along() -> None:
    train, valid = source_of(DataLoader(DATA, batch_size=4), spec()), source_of(DataLoader(Stream(3)), spec())
    told = ThreadEngine(2).run(ReadAll(4), train.shards(2, valid), SETTINGS)
    assert sorted(y for rank in told for ys, _ in rank["valid"][0] for y in ys) == [0, 1, 2]
    assert sorted(y for rank in told for ys, _ in rank["train"][0] for y in ys) == ROWS.tolist()


def test_the_last_of_several_things_is_the_label() -> None:
    assert split_batch([1, 2, 3]) == ((1, 2), 3)
    assert split_batch((1, 2)) == (1, 2)
    assert split_batch([1]) == (1, None)
    assert split_batch({"x": 1, "y": 2}) == (1, 2)
    assert split_batch({"a": 1}) == ({"a": 1}, None)
    assert split_batch(5) == (5, None)


# Answers


@pytest.mark.parametrize("ranks", [1, 3])
def test_predictions_are_arrays_in_the_order_of_the_dataset(ranks: int) -> None:
    engine, expected = ThreadEngine(ranks), np.asarray(DATA.tensors[0]) * 2
    unlabelled = spec(4, labelled=False)
    kinds: list[Any] = [
        DATA,
        DataLoader(DATA, batch_size=3, shuffle=True),
        Stream(),
        DataLoader(Stream(), batch_size=3),
    ]
    kinds += [TensorDataset(DATA.tensors[0])]
    for kind in kinds:
        np.testing.assert_array_equal(source_of(kind, unlabelled).answer(lambda x: x * 2, engine), expected)


def test_several_features_reach_the_model_together() -> None:
    three = TensorDataset(ROWS, ROWS + 1, ROWS + 2)
    answer = source_of(three, spec(4, labelled=False)).answer(lambda x: (x[0] + x[1], x[1]), ThreadEngine(2))
    assert flatten(answer)[0][0].tolist() == (2 * ROWS + 1).tolist()
    assert len(answer) == 2


def test_a_dataset_shorter_than_the_ranks_is_answered() -> None:
    answer = source_of(TensorDataset(ROWS[:2]), spec(labelled=False)).answer(lambda x: x * 2, ThreadEngine(5))
    assert answer.tolist() == [0, 2]
