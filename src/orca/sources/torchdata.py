"""Torch data: Datasets and DataLoaders. Owns splitting a loader over the ranks, every row once.

A map-style dataset can be read by every rank: each step of the global order is cut among them, so that any number of
ranks sees the same global batches. The steps of a loader with a batch sampler of its own are the sampler's batches,
of whatever size; those of a loader with batch_size=None are the dataset's items.

An iterable dataset is read by every rank, which keeps its share of the batches. So it must give all of its rows, in
one order, on each rank: it must not split itself by torch.distributed or by RANK and WORLD_SIZE, or rows are lost.
Its draws from torch, numpy and random are the same on all ranks. With num_workers it must split itself by
torch.utils.data.get_worker_info(), as everywhere in torch, or each worker gives all rows once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from orca.core.columns import array_of, arrays_of, concatenate, single
from orca.core.draws import alike
from orca.core.feed import SpoolRows, spool_parts, unweigh, weigh
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, Batch, Columns, DataSpec, Draws, Extent, Items, Rows, Shards
from orca.errors import ArgumentError, DataError
from orca.monitor.heartbeat import counted
from orca.rows.tree import cut_rows, rows_of
from orca.sources.arrays import inputs_of, named_pair

logger = logging.getLogger(__name__)

_UNNAMED = Columns()
_BATCH = "a batch of the dataset"


class LoaderSource:
    """A torch Dataset or DataLoader instance, split over the ranks."""

    def __init__(self, data: Any, spec: DataSpec) -> None:
        size = spec.batch_size or DEFAULT_BATCH
        self.loader = data if isinstance(data, DataLoader) else _loader(data, size, shuffle=spec.labelled)
        self.reading = Reading.of(spec)
        self.batch_size: int | None = spec.batch_size or self.loader.batch_size or DEFAULT_BATCH
        if brings_steps(self.loader):
            if spec.labelled and spec.batch_size:
                logger.warning("batch_size=%d is not used: the DataLoader decides on the rows of a step.", size)
            self.batch_size = None
        _check(self.loader)

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a torch Dataset or DataLoader."""
        return isinstance(data, DataLoader | Dataset)

    def extent(self) -> Extent:
        """Return the rows that the sampler draws; the bytes where the dataset is made of tensors."""
        if isinstance(self.loader.dataset, IterableDataset) or brings_steps(self.loader):
            return Extent()
        rows, tensors = _length(_whole_sampler(self.loader), "sampler"), getattr(self.loader.dataset, "tensors", None)
        return Extent(rows, sum(tensor.nbytes for tensor in tensors) if tensors else None)

    def shards(self, ranks: int, valid: LoaderSource | None = None) -> Shards:
        """Send the loader to every rank."""
        loaders = {"train": self.loader} | ({"valid": valid.loader} if valid else {})
        pieces: list[Callable[[], Items]] = [LoaderPiece(loaders, rank, ranks) for rank in range(ranks)]
        return Shards(OpenLoaders(self.reading), lambda: pieces)

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the dataset."""
        if isinstance(self.loader.dataset, IterableDataset):
            answers = [task(self.reading.inputs(batch, task)) for batch in _whole(self.loader)]
        else:
            parts = even_split(len(self.loader.dataset), engine.workers)  # type: ignore[arg-type]
            work = OnRange(task, self.loader, self.reading)
            answers = engine.map(work, [part for part in parts if part[0] < part[1]])
        if not answers:
            raise DataError("there are no rows to predict: the dataset is empty.", code="no-rows")
        return concatenate(answers)


@dataclass(frozen=True)
class Reading:
    """The way to read batches: which of their parts are features, labels and weights, and the seed of their draws.

    Attributes:
        columns: The names of features, labels and weight in batches that are dicts.
        weighted: Whether the last part of a batch are the weights of its rows.
        seed: Seed of an iterable dataset's draws.
    """

    columns: Columns = _UNNAMED
    weighted: bool = False
    seed: int = 0

    @classmethod
    def of(cls, spec: DataSpec) -> Reading:
        """Return how the user wants their batches read."""
        return cls(spec.columns, spec.weighted, spec.seed)

    def split(self, batch: Any) -> tuple[Any, Any]:
        """Return (x, y) of a batch, y tied to weights where there are some."""
        return split_batch(arrays_of(_several(batch), _BATCH, _read), self.columns, self.weighted)

    def inputs(self, batch: Any, task: Callable[[Any], Any]) -> Any:
        """Return the inputs of a batch that may come with labels and weights."""
        batch = arrays_of(_without_none(_several(batch)), _BATCH)
        return inputs_of(tuple(batch), task) if isinstance(batch, tuple | list) else self.split(batch)[0]


@dataclass(frozen=True)
class LoaderPiece:
    """Loaders on their way to a rank."""

    loaders: dict[str, Any]
    rank: int
    ranks: int

    def __call__(self) -> Items:
        """Give (part, loader, rank, ranks) items."""
        return iter([(part, loader, self.rank, self.ranks) for part, loader in self.loaders.items()])


@dataclass(frozen=True)
class OpenLoaders:
    """The rows of a rank's loaders."""

    reading: Reading = Reading()

    def __call__(self, items: Items, folder: Path) -> dict[str, Rows | Draws]:
        """Return the rows of each part."""
        return {
            part: loader_rows(part, loader, self.reading, rank, ranks, folder) for part, loader, rank, ranks in items
        }


@dataclass
class LoaderRows:
    """The rows of a map-style dataset, read through a DataLoader with the settings of the user's own."""

    loader: DataLoader[Any]
    reading: Reading = Reading()
    shared: bool = field(default=True, init=False)
    quiet: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check(self.loader)
        self.size = len(self.loader.dataset)  # type: ignore[arg-type]
        self.sampler = _whole_sampler(self.loader)
        self.count = _length(self.sampler, "sampler")
        self.batch_size = self.loader.batch_size
        self.drop_last = self.loader.drop_last

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        """Return the epoch's indices: the loader's own sampler decides whether and how they are shuffled."""
        sampler = self.sampler
        if isinstance(sampler, SequentialSampler):
            return np.arange(self.count)
        if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == self.size:
            return generator.permutation(self.count) if shuffle else np.arange(self.count)
        return np.array(_drawn(sampler, generator, self.count, "rows"), dtype=np.int64)

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) for each array of indices."""
        return map(self.reading.split, _batches(self.loader, (index.tolist() for index in indices)))

    def close(self) -> None:
        """Do nothing: no file is open."""


@dataclass
class LoaderSteps:
    """The steps of a loader that brings its own: its batch sampler's batches, or its dataset's items.

    A rank reads its rows of a batch, but every rank reads whole items: their rows are known only then.
    """

    loader: DataLoader[Any]
    reading: Reading = Reading()

    def __post_init__(self) -> None:
        _check(self.loader)
        self.by_item = self.loader.batch_sampler is None
        self.sampler = _whole_sampler(self.loader) if self.by_item else self.loader.batch_sampler
        self.steps = _length(self.sampler, "sampler" if self.by_item else "batch sampler")

    def draw(self, generator: np.random.Generator, rank: int, ranks: int, first_step: int) -> Iterator[Batch]:
        """Yield this rank's part of every step from first_step on; where it has no row, the first one as template."""
        draws = _drawn(self.sampler, generator, self.steps, "items" if self.by_item else "batches")
        if self.by_item:
            return self._of_items(draws[first_step:], rank, ranks)
        return self._of_rows([list(step) for step in draws if len(step)][first_step:], rank, ranks)

    def _of_items(self, steps: list[Any], rank: int, ranks: int) -> Iterator[Batch]:
        for item in _items(self.loader, steps):
            x, y = self.reading.split(item)
            rows = rows_of(x if y is None else (x, y), "an item of a dataset that is read with batch_size=None")
            start, stop = even_split(rows, ranks)[rank]
            cut = slice(start, stop) if start < stop else slice(0, 1)
            yield self._batch(cut_rows(x, cut), None if y is None else cut_rows(y, cut), stop - start, rows)

    def _of_rows(self, steps: list[list[Any]], rank: int, ranks: int) -> Iterator[Batch]:
        cuts = [even_split(len(step), ranks)[rank] for step in steps]
        mine = (step[start:stop] or step[:1] for step, (start, stop) in zip(steps, cuts, strict=True))
        batches = map(self.reading.split, _batches(self.loader, mine))
        for (x, y), step, (start, stop) in zip(batches, steps, cuts, strict=True):
            yield self._batch(x, y, stop - start, len(step))

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _batch(self, x: Any, y: Any, rows: int, step_rows: int) -> Batch:
        if not self.reading.weighted:
            return Batch(x, y, rows, step_rows)
        y, weights = unweigh(y)
        return Batch(x, y, rows, step_rows, 0, weights if rows else np.zeros_like(weights))


@dataclass(frozen=True)
class OnRange:
    """A task applied to a range of a dataset's rows, or of its items where these are batches."""

    task: Callable[[Any], Any]
    loader: DataLoader[Any]
    reading: Reading

    def __call__(self, part: tuple[int, int]) -> Any:
        """Return the outputs for the rows from start to stop."""
        start, stop = part
        if self.loader.batch_sampler is None:
            batches = _items(self.loader, range(start, stop))
        else:
            size = self.loader.batch_size or DEFAULT_BATCH
            batches = _batches(self.loader, [range(at, min(at + size, stop)) for at in range(start, stop, size)])
        return concatenate([self.task(self.reading.inputs(batch, self.task)) for batch in batches])


def split_batch(batch: Any, columns: Columns = _UNNAMED, weighted: bool = False) -> tuple[Any, Any]:
    """Return (features, labels) of a loader's batch: the last of several things is the label.

    With weights, these are the last and the labels the last but one; they come back tied together. The parts of a
    dict are found by the columns' names, else as x, y and weights.

    >>> split_batch([1, 2, 3])
    ((1, 2), 3)
    """
    if isinstance(batch, dict) and (columns.features or columns.labels or "x" in batch):
        return named_pair(batch, columns, weighted)
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if weighted:
        if len(parts) < 3:
            words = f"a dict with keys {list(batch)}" if isinstance(batch, dict) else f"{len(parts)} thing(s)"
            raise DataError(
                f"a batch with weights must be (x, y, weights) or {{'x': …, 'y': …, 'weights': …}}; got {words}.",
                code="bad-weighted-data",
            )
        *features, label, weights = parts
        return single(tuple(features)), weigh(label, weights)
    *features, label = parts
    return (single(tuple(features)), label) if features else (label, None)


def brings_steps(loader: Any) -> bool:
    """Say whether this is a loader of a map-style dataset with a batch sampler of its own, or with batch_size=None."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    return loader.batch_size is None


def loader_of(data: Any, batch_size: int) -> DataLoader[Any] | None:
    """Return the data of a creator as a DataLoader, a Dataset in shuffled batches; None for anything else."""
    if isinstance(data, DataLoader):
        return data
    return _loader(data, batch_size, shuffle=True) if isinstance(data, Dataset) else None


def loader_rows(
    part: str, loader: DataLoader[Any], reading: Reading, rank: int, ranks: int, folder: Path
) -> Rows | Draws:
    """Return a rank's rows of a loader: all of a map-style dataset, which is shared, or its share of a stream."""
    if brings_steps(loader):
        return LoaderSteps(loader, reading)
    if not isinstance(loader.dataset, IterableDataset):
        return LoaderRows(loader, reading)
    with alike(reading.seed):
        pairs = (reading.split(batch) for number, batch in enumerate(counted(loader)) if number % ranks == rank)
        stream = ((part, arrays_of(x), None if y is None else arrays_of(y)) for x, y in pairs)
        rows: SpoolRows = spool_parts(stream, folder, [part])[part]
    rows.batch_size = loader.batch_size or DEFAULT_BATCH
    return rows


def loader_answers(
    task: Callable[[Any], Any], loader: DataLoader[Any], reading: Reading, number: int, tasks: int
) -> Iterator[tuple[int, Any]]:
    """Yield (place, outputs) of one of several tasks that share a loader: a range of its rows, or every n-th batch."""
    _check(loader)
    if isinstance(loader.dataset, IterableDataset):
        with alike(reading.seed):
            for place, batch in enumerate(_whole(loader)):
                if place % tasks == number:
                    yield place, task(reading.inputs(batch, task))
        return
    start, stop = even_split(len(loader.dataset), tasks)[number]  # type: ignore[arg-type]
    if start < stop:
        yield number, OnRange(task, loader, reading)((start, stop))


def _loader(dataset: Any, batch_size: int, shuffle: bool) -> DataLoader[Any]:
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size)
    has_length = isinstance(dataset, Sized)
    if not has_length:
        raise DataError(
            f"{type(dataset).__name__} has no __len__, so its rows cannot be dealt to the workers. Define __len__ and "
            "__getitem__, or make it a torch.utils.data.IterableDataset.",
            code="dataset-without-length",
        )
    return DataLoader(dataset, batch_size, shuffle=shuffle)


def _whole(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a loader of an iterable dataset that drops no rows."""
    return DataLoader(loader.dataset, loader.batch_size, **_settings(loader)) if loader.drop_last else loader


def _batches(mine: DataLoader[Any], indices: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Yield the batches of these rows, read with the settings of a loader."""
    return _begun(DataLoader(mine.dataset, batch_sampler=_Once(indices), **_settings(mine)))


def _items(mine: DataLoader[Any], indices: Iterable[Any]) -> Iterator[Any]:
    """Yield these items of a dataset, read with the settings of a loader."""
    return _begun(DataLoader(mine.dataset, batch_size=None, sampler=_Once(indices), **_settings(mine)))


def _begun(loader: DataLoader[Any]) -> Iterator[Any]:
    """Begin to read. A loader draws a seed for its workers then, also without any: the step's numbers are its rows'."""
    with torch.random.fork_rng(devices=[]):
        return iter(loader)


def _settings(mine: DataLoader[Any]) -> dict[str, Any]:
    names = "num_workers collate_fn pin_memory timeout worker_init_fn multiprocessing_context generator prefetch_factor"
    return {name: getattr(mine, name) for name in names.split()}


class _Once:
    """A sampler that gives its indices once."""

    def __init__(self, indices: Iterable[Any]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        return iter(self.indices)


def _check(loader: DataLoader[Any]) -> None:
    if not isinstance(loader.dataset, IterableDataset) and not hasattr(loader.dataset, "__len__"):
        raise ArgumentError(
            f"the dataset {type(loader.dataset).__name__} has no length, so its rows cannot be split over workers. "
            "Give it __len__, or make it an IterableDataset.",
            code="loader-without-length",
        )


def _whole_sampler(loader: DataLoader[Any]) -> Any:
    """Return the sampler of the whole dataset: one that splits it over workers is taken for the order it means."""
    sampler: Any = loader.sampler
    if not isinstance(sampler, DistributedSampler):
        return sampler
    return RandomSampler(loader.dataset) if sampler.shuffle else SequentialSampler(loader.dataset)  # type: ignore[arg-type]


def _length(sampler: Any, what: str) -> int:
    """Return how many things an epoch has: those of the sampler, which may be more or fewer than the dataset's."""
    try:
        return len(sampler)
    except TypeError:
        raise ArgumentError(
            f"the {what} {type(sampler).__name__} has no length, so its rows cannot be split over workers. "
            "Give it __len__.",
            code="sampler-without-length",
        ) from None


def _drawn(sampler: Any, generator: np.random.Generator, count: int, things: str) -> list[Any]:
    """Return the draws of a sampler for an epoch: the same on every rank, others for another generator."""
    seed = int(generator.integers(2**62))
    with alike(seed):
        parts: list[Any] = [sampler, getattr(sampler, "sampler", None)]
        for part in parts:  # a batch sampler draws from a sampler
            if getattr(part, "generator", None) is not None:
                part.generator.manual_seed(seed)
            if hasattr(part, "set_epoch"):
                part.set_epoch(seed % 2**31)
        draws = list(islice(sampler, count + 1))  # one without an end must not keep us
    if len(draws) != count:
        words = f"more than {count}" if len(draws) > count else len(draws)
        raise DataError(
            f"the sampler {type(sampler).__name__} gave {words} {things}, but its length is {count}. "
            "Let its __len__ return what an epoch has.",
            code="sampler-length-wrong",
        )
    return draws


def _several(batch: Any) -> Any:
    """Return a batch that is a list as a tuple: it is several things, also where they are lists of numbers."""
    return tuple(batch) if isinstance(batch, list) else batch


def _without_none(batch: Any) -> Any:
    """Return a batch without a None in the place of its labels or weights."""
    while isinstance(batch, tuple) and batch and batch[-1] is None:
        batch = batch[:-1]
    return batch


def _read(leaf: Any, what: str) -> Any:
    """Return dense tensors as they are, all else as arrays."""
    return leaf if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else array_of(leaf, what)
