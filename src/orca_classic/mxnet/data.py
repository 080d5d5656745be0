"""MXNet data: the DataIters and DataLoaders that creators make. Owns the arguments of creators, and a step.

A creator `(config, kv)` is called on every rank. One that asks kv for its rank or for the number of workers makes this
rank's own share of the rows: the batches that the ranks give at a time are a step. One that does not makes the whole
data: each of its batches is a step, of which every rank takes its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from operator import itemgetter
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import gluon

from orca.core.columns import concatenate, single
from orca.core.draws import alike, kept_draws, seed_draws
from orca.core.feed import unweigh, weigh
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, Batch, DataSpec, Extent, Items, Shards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import cut_rows, rows_of
from orca.sources.arrays import inputs_of
from orca.sources.creator import CreatorPiece, one_at_a_time

_FORM = "a creator (config, kv) must return a DataIter or a gluon DataLoader"


@dataclass(frozen=True)
class MxnetCreator:
    """A user's creator `(config, kv)`."""

    creator: Callable[..., Any]


class WorkerStore:
    """A creator's view of MXNet's KVStore: the rank of this worker, the number of workers, and the type."""

    type = "dist_sync"

    def __init__(self, rank: int, workers: int) -> None:
        self._rank, self._workers, self.asked = rank, workers, False

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        self.asked = True
        return self._rank

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        self.asked = True
        return self._workers


class MxnetSource:
    """A creator of MXNet's data, called on every rank."""

    batch_size: int | None = None

    def __init__(self, data: Any, spec: DataSpec) -> None:
        if not isinstance(data, MxnetCreator):
            raise ArgumentError(
                f"a {type(data).__name__} of MXNet cannot be sent to the workers: it belongs to the process that made "
                "it. Pass a creator that makes it on each worker: fit(lambda config, kv: mx.io.NDArrayIter(x, y, "
                "config['batch_size']))."
            )
        self.creator, self.spec = data.creator, spec

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a creator of MXNet's data, and that data itself, to refuse it."""
        return isinstance(data, MxnetCreator | mx.io.DataIter | gluon.data.DataLoader)

    def extent(self) -> Extent:
        """Return nothing: the data is known after the creator was called."""
        return Extent()

    def shards(self, ranks: int, valid: MxnetSource | None = None) -> Shards:
        """Send the creator to every rank."""
        creators = {"train": self.creator} | ({"valid": valid.creator} if valid else {})
        pieces: list[Callable[[], Items]] = [
            CreatorPiece({part: Making(creator, self.spec, rank, ranks) for part, creator in creators.items()})
            for rank in range(ranks)
        ]
        return Shards(OpenBatches(), lambda: pieces)

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays: in the order of the data; of own shares, those of rank 0 first."""
        tasks = engine.workers
        makings = [Making(self.creator, self.spec, number, tasks) for number in range(tasks)]
        answers = [answer for answers in engine.map(OnBatches(task), makings) for answer in answers]
        if not answers:
            raise DataError("there are no rows to predict: what the creator returned is empty.")
        return concatenate([output for _, output in sorted(answers, key=itemgetter(0))])


@dataclass(frozen=True)
class Making:
    """The data that one of several ranks, or tasks, makes with a creator."""

    creator: Callable[..., Any]
    spec: DataSpec
    rank: int
    ranks: int

    def make(self) -> BatchStream:
        """Call the creator, with this rank's share of a batch; again with the whole batch if it made the whole data.

        Raises:
            DataError: It returned something else than data of MXNet.
        """
        whole = self.spec.batch_size or DEFAULT_BATCH
        start, stop = even_split(whole, self.ranks)[self.rank]
        with one_at_a_time(self.spec.lock):
            data, store = self._call(max(stop - start, 1))
            if not store.asked and self.ranks > 1:
                data, store = self._call(whole)
        if not isinstance(data, mx.io.DataIter | gluon.data.DataLoader):
            raise DataError(f"{_FORM}; got {type(data).__name__}. Pass arrays and XShards as they are.")
        return BatchStream(data, store.asked, self.spec.seed, self.spec.weighted and self.spec.labelled)

    def _call(self, size: int) -> tuple[Any, WorkerStore]:
        store = WorkerStore(self.rank, self.ranks)
        seed_draws(self.spec.seed)
        arguments = ({**self.spec.config, "batch_size": size}, store)
        return self.creator(*arguments[: len(signature(self.creator).parameters)]), store


@dataclass(frozen=True)
class OpenBatches:
    """The streams that creators made on a rank."""

    def __call__(self, items: Items, folder: Path) -> dict[str, BatchStream]:
        """Return the stream of each part."""
        return {part: stream for part, stream, _ in items}


@dataclass(frozen=True)
class OnBatches:
    """A task that creates data on a worker and answers for its own share, or for every n-th batch."""

    task: Callable[[Any], Any]

    def __call__(self, making: Making) -> list[tuple[Any, Any]]:
        """Return (place, outputs) of the batches."""
        with kept_draws():
            stream = making.make()
            return [
                ((making.rank, place) if stream.own else (place, 0), self.task(inputs_of(parts, self.task)))
                for place, parts in enumerate(stream.features())
                if stream.own or place % making.ranks == making.rank
            ]


class BatchStream:
    """The batches of a DataIter or DataLoader, pass after pass.

    Each batch is drawn from (seed, pass, batch): alike on every rank, and the same where a fit is resumed.

    Args:
        data: The data.
        own: Whether it is this rank's share of the rows.
        seed: The seed of the draws while it is read.
        weighted: Whether the last part of a loader's batches are weights of the rows.
    """

    steps: int | None = None

    def __init__(self, data: Any, own: bool, seed: int, weighted: bool) -> None:
        self.data, self.own, self.seed, self.weighted = data, own, seed, weighted
        self.passes = 0

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Yield this rank's part of every batch of one more pass over the data."""
        for x, y in self._pass():
            rows = rows_of(x if y is None else (x, y), "a batch of MXNet's data")
            start, stop = (0, rows) if self.own else even_split(rows, ranks)[rank]
            cut = slice(start, stop) if start < stop else slice(0, 1)
            labels, weights = (None if y is None else cut_rows(y, cut)), None
            if self.weighted and y is not None:
                labels, weights = unweigh(labels)
                weights = weights if start < stop else np.zeros_like(weights)
            if rows:
                yield Batch(cut_rows(x, cut), labels, stop - start, rows, 0, weights)

    def features(self) -> Iterator[tuple[Any, ...]]:
        """Yield the parts of each batch that may be inputs of a model: those of a loader may end in labels."""
        for parts, _ in self._read():
            yield tuple(parts)

    def skip(self, passes: int) -> None:
        """Leave out so many passes: iterators shuffle for the next one as if they had been read."""
        for _ in range(passes):
            reader = self._read()
            if isinstance(self.data, mx.io.NDArrayIter) and self.data.last_batch_handle != "roll_over":
                next(reader, None)
                continue
            for _ in reader:
                pass

    def close(self) -> None:
        """Hold nothing."""

    def _pass(self) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) of every batch of one more pass, y tied to weights where there are some."""
        for parts, labels in self._read():
            weights = None
            if labels is None and self.weighted and len(parts) > 2:
                *parts, weights = parts
            if labels is None and len(parts) > 1:
                *parts, label = parts
                labels = [label]
            x, y = single(tuple(parts)), single(tuple(labels)) if labels else None
            yield x, y if weights is None else weigh(y, weights)

    def _read(self) -> Iterator[tuple[list[Any], list[Any] | None]]:
        """Yield (features, labels) of every batch, true rows only; labels are None where nobody says which they are."""
        iterates = isinstance(self.data, mx.io.DataIter)
        reader: Any = None
        step = 0
        while True:
            with alike(self._draws(step)):
                if reader is None:
                    if iterates and self.passes:
                        self.data.reset()
                    reader = iter(self.data)
                    self.passes += 1
                batch = next(reader, None)
            if batch is None:
                return
            step += 1
            if not iterates:
                yield [_numpy(part) for part in (batch if isinstance(batch, list | tuple) else [batch])], None
                continue
            # Rows that an iterator rolls over from the last pass are new, and yet called padding.
            padding = 0 if getattr(self.data, "last_batch_handle", "") == "roll_over" else batch.pad or 0
            parts = [[_numpy(part) for part in arrays or ()] for arrays in (batch.data, batch.label)]
            data, labels = ([part[: len(part) - padding] for part in arrays] for arrays in parts)
            yield data, labels

    def _draws(self, step: int) -> int:
        return int(np.random.SeedSequence([self.seed, self.passes, step]).generate_state(1)[0])


def _numpy(part: Any) -> Any:
    return part.asnumpy() if isinstance(part, mx.nd.NDArray) else np.asarray(part)
