"""Torch data: Datasets and DataLoaders. Owns splitting a loader over the ranks, every row once.

A map-style dataset can be read by every rank: each step of the global order is cut among them, so that any number of
ranks sees the same global batches. An iterable one is read by every rank, which keeps its share of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from orca.core.columns import concatenate
from orca.core.feed import SpoolRows, spool_parts
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, DataSpec, Items, Rows, Shards
from orca.core.tree import map_tree
from orca.errors import ArgumentError, DataError, NotYet


class LoaderSource:
    """Wrap a torch Dataset or DataLoader instance, split over the ranks."""

    def __init__(self, data: Any, spec: DataSpec) -> None:
        size = spec.batch_size or DEFAULT_BATCH
        self.loader = data if isinstance(data, DataLoader) else _loader(data, size, shuffle=spec.labelled)
        self.batch_size: int | None = spec.batch_size or self.loader.batch_size or DEFAULT_BATCH
        _check(self.loader)

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a torch Dataset or DataLoader."""
        return isinstance(data, DataLoader | Dataset)

    def shards(self, ranks: int, valid: LoaderSource | None = None) -> Shards:
        """Send the loader to every rank."""
        loaders = {"train": self.loader} | ({"valid": valid.loader} if valid else {})
        pieces: list[Callable[[], Items]] = [LoaderPiece(loaders, rank, ranks) for rank in range(ranks)]
        return Shards(OpenLoaders(), lambda: pieces)

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the dataset."""
        if isinstance(self.loader.dataset, IterableDataset):
            return concatenate([task(_numpy(_features(batch))) for batch in self.loader])
        rows = len(self.loader.dataset)  # type: ignore[arg-type]
        if not rows:
            raise DataError("there are no rows to predict: the dataset is empty.")
        parts = even_split(rows, engine.workers)
        return concatenate(engine.map(OnRange(task, self.loader), [part for part in parts if part[0] < part[1]]))


@dataclass(frozen=True)
class LoaderPiece:
    """Carry loaders to a rank."""

    loaders: dict[str, Any]
    rank: int
    ranks: int

    def __call__(self) -> Items:
        """Give (part, loader, rank, ranks) items."""
        return iter([(part, loader, self.rank, self.ranks) for part, loader in self.loaders.items()])


@dataclass(frozen=True)
class OpenLoaders:
    """Turn the loaders of a rank into rows."""

    def __call__(self, items: Items, folder: Path) -> dict[str, Rows]:
        """Return the rows of each part."""
        return {part: loader_rows(part, loader, rank, ranks, folder) for part, loader, rank, ranks in items}


@dataclass
class LoaderRows:
    """Be the rows of a map-style dataset, read through a DataLoader with the settings of the user's own."""

    loader: DataLoader[Any]
    shared: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _check(self.loader)
        self.size = len(self.loader.dataset)  # type: ignore[arg-type]
        self.count = _draws(self.loader.sampler)
        self.batch_size = self.loader.batch_size
        self.drop_last = self.loader.drop_last

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        """Return the epoch's indices: the loader's own sampler decides whether and how they are shuffled."""
        sampler: Any = self.loader.sampler
        if isinstance(sampler, SequentialSampler):
            return np.arange(self.count)
        if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == self.size:
            return generator.permutation(self.count) if shuffle else np.arange(self.count)
        with torch.random.fork_rng(devices=[]):  # the same draw on every rank
            seed = int(generator.integers(2**62))
            torch.manual_seed(seed)
            if getattr(sampler, "generator", None) is not None:
                sampler.generator.manual_seed(seed)
            order = np.fromiter(sampler, dtype=np.int64)
        if len(order) != self.count:
            raise DataError(
                f"the sampler {type(sampler).__name__} gave {len(order)} rows, but its length is {self.count}. "
                "Let its __len__ return what an epoch has."
            )
        return order

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) for each array of indices."""
        mine = self.loader
        loader = DataLoader(
            mine.dataset,
            batch_sampler=_Lists(indices),
            num_workers=mine.num_workers,
            collate_fn=mine.collate_fn,
            pin_memory=mine.pin_memory,
            timeout=mine.timeout,
            worker_init_fn=mine.worker_init_fn,
            multiprocessing_context=mine.multiprocessing_context,
            generator=mine.generator,
            prefetch_factor=mine.prefetch_factor,
        )
        return (split_batch(batch) for batch in loader)

    def close(self) -> None:
        """Hold nothing."""


class _Lists:
    """Be a batch sampler over given lists of indices."""

    def __init__(self, indices: Iterable[np.ndarray]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        return (index.tolist() for index in self.indices)


@dataclass(frozen=True)
class OnRange:
    """Apply a task to a range of a dataset's rows."""

    task: Callable[[Any], Any]
    loader: DataLoader[Any]

    def __call__(self, part: tuple[int, int]) -> Any:
        """Return the outputs for the rows from start to stop."""
        start, stop = part
        size = self.loader.batch_size or DEFAULT_BATCH
        indices = [np.arange(at, min(at + size, stop)) for at in range(start, stop, size)]
        return concatenate([self.task(_numpy(x)) for x, _ in LoaderRows(self.loader).read(indices)])


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return (features, labels) of what a loader gives: the last of several things is the label.

    >>> split_batch([1, 2, 3])
    ((1, 2), 3)
    """
    if isinstance(batch, dict) and "x" in batch:
        return batch["x"], batch.get("y")
    if isinstance(batch, tuple | list):
        *features, label = batch
        if not features:
            return label, None
        return features[0] if len(features) == 1 else tuple(features), label
    return batch, None


def loader_of(made: Any, batch_size: int) -> DataLoader[Any] | None:
    """Return what a creator made as a DataLoader, a Dataset in shuffled batches; None for anything else."""
    if isinstance(made, DataLoader):
        return made
    return _loader(made, batch_size, shuffle=True) if isinstance(made, Dataset) else None


def loader_rows(part: str, loader: DataLoader[Any], rank: int, ranks: int, folder: Path) -> Rows:
    """Return a rank's rows of a loader: all of a map-style dataset, which is shared, or its share of a stream."""
    if not isinstance(loader.dataset, IterableDataset):
        return LoaderRows(loader)
    pairs = (split_batch(batch) for number, batch in enumerate(loader) if number % ranks == rank)
    stream = ((part, _numpy(x), None if y is None else _numpy(y)) for x, y in pairs)
    rows: SpoolRows = spool_parts(stream, folder, [part])[part]
    rows.batch_size = loader.batch_size or DEFAULT_BATCH
    return rows


def loader_answers(
    task: Callable[[Any], Any], loader: DataLoader[Any], number: int, tasks: int
) -> Iterator[tuple[int, Any]]:
    """Yield (place, outputs) of one of several tasks that share a loader: a range of its rows, or every n-th batch."""
    _check(loader)
    if isinstance(loader.dataset, IterableDataset):
        for place, batch in enumerate(loader):
            if place % tasks == number:
                yield place, task(_numpy(_features(batch)))
        return
    start, stop = even_split(len(loader.dataset), tasks)[number]  # type: ignore[arg-type]
    if start < stop:
        yield number, OnRange(task, loader)((start, stop))


def _loader(dataset: Any, batch_size: int, shuffle: bool) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size, shuffle=None if isinstance(dataset, IterableDataset) else shuffle)


def _check(loader: DataLoader[Any]) -> None:
    if loader.batch_size is None and not isinstance(loader.dataset, IterableDataset):
        raise NotYet(
            "a DataLoader with a batch_sampler of its own, or with batch_size=None, cannot be split over workers yet. "
            "Pass a sampler (or shuffle=True) and a batch_size instead."
        )
    if not isinstance(loader.dataset, IterableDataset) and not hasattr(loader.dataset, "__len__"):
        raise ArgumentError(
            f"the dataset {type(loader.dataset).__name__} has no length, so its rows cannot be split over workers. "
            "Give it __len__, or make it an IterableDataset."
        )


def _draws(sampler: Any) -> int:
    """Return how many rows an epoch has: those of the sampler, which may be more or fewer than the dataset's."""
    try:
        return len(sampler)
    except TypeError:
        raise ArgumentError(
            f"the sampler {type(sampler).__name__} has no length, so its rows cannot be split over workers. "
            "Give it __len__."
        ) from None


def _features(batch: Any) -> Any:
    return split_batch(batch)[0]


def _numpy(tree: Any) -> Any:
    return map_tree(np.asarray, tree)
