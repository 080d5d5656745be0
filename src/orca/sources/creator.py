"""Creators: functions that make data where it is used. Owns how they are called and the kinds of data they may return.

Every rank calls the creator and gets the whole data, of which it takes its part: a torch DataLoader or Dataset, a
batched tf.data.Dataset, or arrays. A library is only looked at where the creator has loaded it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from orca.core.columns import arrays_of, concatenate
from orca.core.creators import create_data
from orca.core.draws import kept_draws, loaded, seed_draws
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, DataSpec, Draws, Extent, Items, Rows, Shards, Stream
from orca.errors import DataError, OrcaError
from orca.rows.tree import cut_rows, map_tree, rows_of
from orca.sources.arrays import ArraySource, inputs_of, pair


class CreatorSource:
    """A creator function `(config[, batch_size, ...])`, called on every rank.

    It gets the rank's share of a batch; with `spec.whole` the whole batch, of which each rank then takes its part.
    """

    def __init__(self, data: Callable[..., Any], spec: DataSpec) -> None:
        self.creator, self.spec = data, spec
        self.batch_size: int | None = (spec.batch_size or DEFAULT_BATCH) if spec.whole else None

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a function."""
        return callable(data) and not isinstance(data, type)

    def extent(self) -> Extent:
        """Return nothing: the data is known after the creator was called."""
        return Extent()

    def shards(self, ranks: int, valid: CreatorSource | None = None) -> Shards:
        """Send the creator, with its share, to every rank."""
        creators = {"train": self.creator} | ({"valid": valid.creator} if valid else {})
        pieces: list[Callable[[], Items]] = [
            CreatorPiece({part: Creation(creator, self.spec, rank, ranks) for part, creator in creators.items()})
            for rank in range(ranks)
        ]
        return Shards(OpenCreated(), lambda: pieces)

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the data: every worker creates it and answers for its part."""
        tasks = engine.workers
        pieces = [Creation(self.creator, self.spec, number, tasks) for number in range(tasks)]
        parts = [answer for answers in engine.map(OnCreated(task), pieces) for answer in answers]
        if not parts:
            raise DataError(
                f"there are no rows to predict: what {_name(self.creator)} returned is empty.", code="no-rows"
            )
        return concatenate([output for _, output in sorted(parts, key=itemgetter(0))])


@dataclass(frozen=True)
class Creation:
    """The data that one of several ranks, or tasks, creates."""

    creator: Callable[..., Any]
    spec: DataSpec
    rank: int
    ranks: int

    @property
    def share(self) -> int:
        """Return this rank's share of a batch, one row at least."""
        start, stop = even_split(self.whole, self.ranks)[self.rank]
        return max(stop - start, 1)

    @property
    def whole(self) -> int:
        """Return the rows of a batch over all ranks."""
        return self.spec.batch_size or DEFAULT_BATCH

    def make(self) -> Any:
        """Call the creator; return a DataLoader, a tf.data.Dataset or a pair (x, y) of arrays.

        Raises:
            DataError: It returned something else.
        """
        with one_at_a_time(self.spec.lock):
            if self.spec.whole:
                return self._make_alike()
            data = self._known(create_data(self.creator, self.spec.config, self.share), self.share)
            # Some data flows in whole steps: a rank cannot add the others' shares to its own.
            return self._make_alike() if _is_stream(data) or _brings_steps(data) else data

    def make_whole(self) -> Any:
        """Call the creator as `make` does, for whole batches that are alike wherever this is called."""
        with one_at_a_time(self.spec.lock):
            return self._make_alike()

    def _make_alike(self) -> Any:
        libraries = seed_draws(self.spec.seed)
        data = create_data(self.creator, self.spec.config, self.whole)
        if libraries != loaded():  # the creator itself loaded a library, which drew from a seed of its own
            seed_draws(self.spec.seed)
            data = create_data(self.creator, self.spec.config, self.whole)
        return self._known(data, self.whole)

    def _known(self, data: Any, size: int) -> Any:
        """Return the data of a creator in one of the forms we know."""
        if "torch.utils.data" in sys.modules:
            from orca.sources.torchdata import loader_of

            loader = loader_of(data, size)
            if loader is not None:
                return loader
        if _is_stream(data):
            return data
        if ArraySource.wraps(data):
            return ArrayRows(*pair(arrays_of(data), self.spec.columns, self.spec.labelled, self.spec.weighted), size)
        raise DataError(
            f"the data creator {_name(self.creator)} must return a torch DataLoader (or Dataset), a batched "
            "tf.data.Dataset, or numpy arrays: (x, y) or {'x': …, 'y': …}; "
            f"got {type(data).__name__}.",
            code="bad-creator-data",
        )


@dataclass(frozen=True)
class CreatorPiece:
    """Creators on their way to a rank, called there."""

    creations: dict[str, Any]  # with a method `make`

    def __call__(self) -> Items:
        """Give (part, data, how it was created) items."""
        for part, creation in self.creations.items():
            yield part, creation.make(), creation


@dataclass(frozen=True)
class OpenCreated:
    """The rows and streams that creators made on a rank."""

    def __call__(self, items: Items, folder: Path) -> dict[str, Rows | Stream | Draws]:
        """Return the rows or the stream of each part."""
        return {part: _opened(part, data, creation, folder) for part, data, creation in items}


@dataclass(frozen=True)
class OnCreated:
    """A task that creates data on a worker and answers for one part of it."""

    task: Callable[[Any], Any]

    def __call__(self, creation: Creation) -> list[tuple[int, Any]]:
        """Return (place, outputs) of this part."""
        with kept_draws():
            data = creation.make_whole()
            return list(_answers(self.task, data, creation))


@dataclass
class ArrayRows:
    """The rows of arrays that every rank has: each step is cut among the ranks."""

    x: Any
    y: Any
    batch_size: int | None
    shared: bool = field(default=True, init=False)
    quiet: bool = field(default=True, init=False)
    drop_last: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.count = rows_of(self.x if self.y is None else (self.x, self.y))

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        """Return all indices, shuffled or as they came."""
        return generator.permutation(self.count) if shuffle else np.arange(self.count)

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) for each array of indices."""
        for index in indices:
            x = map_tree(itemgetter(index), self.x)
            yield x, None if self.y is None else map_tree(itemgetter(index), self.y)

    def close(self) -> None:
        """Do nothing: no file is open."""


def _name(creator: Callable[..., Any]) -> str:
    return repr(getattr(creator, "__name__", creator))


def _is_stream(data: Any) -> bool:
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(data, tensorflow.data.Dataset)


def _brings_steps(data: Any) -> bool:
    if "torch.utils.data" not in sys.modules:
        return False
    from orca.sources.torchdata import brings_steps

    return brings_steps(data)


def _opened(part: str, data: Any, creation: Creation, folder: Path) -> Rows | Stream | Draws:
    if isinstance(data, ArrayRows):
        return data
    if _is_stream(data):
        from orca.sources.tfdata import DatasetStream

        return DatasetStream(data)
    from orca.sources.torchdata import Reading, loader_rows

    return loader_rows(part, data, Reading.of(creation.spec), creation.rank, creation.ranks, folder)


def _answers(task: Callable[[Any], Any], data: Any, creation: Creation) -> Iterator[tuple[int, Any]]:
    """Yield (place, outputs) of one of several tasks that share the data."""
    number, tasks = creation.rank, creation.ranks
    if isinstance(data, ArrayRows):
        start, stop = even_split(data.count, tasks)[number]
        if start == stop:
            return iter(())
        x = cut_rows(data.x, slice(start, stop))
        return iter([(number, task(inputs_of(tuple(x), task) if isinstance(x, tuple | list) else x))])
    if _is_stream(data):
        from orca.sources.tfdata import dataset_answers

        return dataset_answers(task, data, creation.spec.steps, number, tasks)
    from orca.sources.torchdata import Reading, loader_answers

    return loader_answers(task, data, Reading.of(creation.spec), number, tasks)


@contextmanager
def one_at_a_time(lock: str) -> Iterator[None]:
    """Let the creators of one node run one after the other.

    Args:
        lock: The name of a file in the temporary folder, drawn for this fit, as others must not foresee it; "" does not
            wait.
    """
    if not lock or sys.platform == "win32":
        yield
        return
    import fcntl

    path = os.path.join(tempfile.gettempdir(), lock)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_uid != os.geteuid():
                raise OrcaError(
                    f"{path} belongs to another user, who holds up data creators on this node. Try again.",
                    code="lock-of-another-user",
                )
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file, path):  # removed by the one before
                continue
            try:
                yield
            finally:
                os.unlink(path)
            return
        finally:
            os.close(file)


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False
