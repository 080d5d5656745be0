"""Feed: a rank's rows or stream as batches. Owns batch_size, shuffle, seed and how uneven shards step together.

Rows that come with weights carry them beside their labels, as a pair: `weigh` ties it, the feed unties it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, count, islice, pairwise, repeat, tee
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from orca.core.columns import array_of
from orca.core.plan import Plan, even_split
from orca.core.source import Batch, Draws, Rows, Stream
from orca.core.world import World
from orca.errors import ArgumentError, DataError
from orca.monitor.heartbeat import counted
from orca.rows.spool import SpoolWriter
from orca.rows.tree import Structure, cut_rows, flatten, map_tree, outline, rows_of, unflatten

_GROUP_BYTES = 256 << 10  # rows of a spool that are taken at once: taking few costs as much as taking some


def feed_of(
    rows: Rows | Stream | Draws,
    world: World,
    batch_size: int | None,
    *,
    shuffle: bool,
    seed: int,
    weighted: bool = False,
    first_epoch: int = 0,
) -> Feed | StreamFeed:
    """Return the feed of a rank's rows or stream; all ranks call it together. See `Feed` for the arguments."""
    if not hasattr(rows, "read"):
        return StreamFeed(cast(Stream, rows), world, seed=seed, weighted=weighted, first_epoch=first_epoch)
    return Feed(cast(Rows, rows), world, batch_size, shuffle=shuffle, seed=seed, weighted=weighted)


def weigh(y: Any, weights: Any) -> tuple[Any, np.ndarray]:
    """Tie labels (None where there are none) and the weights of their rows together, as rows carry them."""
    array = np.asarray(weights)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise DataError(
            f"weights must be one number a row; got {array.dtype} of shape {array.shape}. Pass an array of shape (n,).",
            code="bad-sample-weights",
        )
    array = array if array.dtype.kind == "f" else array.astype(np.float32)
    wrong = np.flatnonzero(~((array >= 0) & np.isfinite(array)))  # nan is not >= 0
    if len(wrong):
        raise DataError(
            f"weights must be finite and not negative; got {array[wrong[0]]}, one of {len(wrong)} such value(s) among "
            f"{len(array)} rows. Correct these rows, or give them the weight 0.",
            code="bad-sample-weights",
        )
    labels = () if y is None else y
    rows_of((labels, array), "labels and weights")
    return labels, array


def unweigh(pair: Any) -> tuple[Any, np.ndarray]:
    """Return labels and weights as they were before `weigh`."""
    y, weights = pair
    return None if isinstance(y, tuple) and not y else y, weights


class Feed:
    """A rank's batches, epoch after epoch, in step with all other ranks.

    Args:
        rows: This rank's rows.
        world: The ranks that step together; one exchange of row counts makes the same plan on each.
        batch_size: Rows of a step over all ranks; None takes the data's own (a DataLoader's).
        shuffle: Whether each epoch reads in a new order, drawn from (seed, epoch).
        seed: The seed of the order.
        weighted: Whether the rows carry weights beside their labels.
    """

    endless = False
    masses: np.ndarray | None = None  # weight of each row in the mean of a loss, where a learner knows it beforehand

    def __init__(
        self, rows: Rows, world: World, batch_size: int | None, *, shuffle: bool, seed: int, weighted: bool = False
    ) -> None:
        self.rows, self.world, self.shuffle, self.seed, self.weighted = rows, world, shuffle, seed, weighted
        mine = (rows.count, rows.batch_size, _template(rows))
        ranks: list[tuple[int, int | None, Any]] = world.all_gather(mine)
        counts = tuple(count for count, _, _ in ranks)
        size = batch_size or sum(own or 0 for _, own, _ in ranks)
        if size < 1:
            raise ArgumentError(
                f"batch_size must be a positive number of rows over all workers; got {batch_size}.",
                code="bad-batch-size",
            )
        if rows.shared and len(set(counts)) > 1:
            raise DataError(
                f"every worker must see the same dataset, but their lengths differ: {counts}. "
                "A data creator must return the whole dataset on each worker; it is split for you.",
                code="dataset-differs-by-worker",
            )
        self.plan = Plan(counts[:1] if rows.shared else counts, size, rows.drop_last)
        self.template: Any = _common([template for _, _, template in ranks])

    @property
    def steps(self) -> int:
        """Return the steps of an epoch, the same on every rank."""
        return self.plan.steps

    @property
    def layout(self) -> tuple[int, ...]:
        """Return the rows by rank and of a step: the order of the rows depends on these, seed and epoch."""
        return (*self.plan.counts, self.plan.batch_size)

    def check_rows(self) -> None:
        """Check that there is something to train on."""
        if not self.plan.rows:
            raise _no_rows()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's batch of every step of an epoch, from first_step on; those before it are not read."""
        ahead, cuts = tee(islice(self._cuts(epoch), first_step, None))  # loaders with workers read some steps ahead
        parts = self.rows.read(index for index, _ in ahead if len(index))
        for index, shares in cuts:
            x, y = next(parts) if len(index) else self.template
            weights = None
            if self.weighted:
                y, weights = unweigh(y)
                weights = weights if len(index) else np.zeros_like(weights)
            leader = next(rank for rank, rows in enumerate(shares) if rows)
            batch = Batch(x, y, len(index), sum(shares), leader, weights, shares=shares, quiet=self.rows.quiet)
            if self.masses is not None:
                batch.masses = self.masses[index] if len(index) else np.zeros(1)
            yield batch

    def read_from(self, rows: Rows, masses: np.ndarray | None) -> None:
        """Read the same rows from another place from now on, with what each counts in the mean of a loss, if known."""
        self.rows, self.masses = rows, masses

    def _cuts(self, epoch: int) -> Iterator[tuple[np.ndarray, tuple[int, ...]]]:
        """Yield (this rank's indices, the rows of each rank) of every step."""
        shared = self.rows.shared
        rank = self.world.rank
        order = self.rows.order(np.random.default_rng([self.seed, epoch, 0 if shared else rank + 1]), self.shuffle)
        if not shared:
            for before, after in self.plan.walk():
                shares = tuple(stop - start for start, stop in zip(before, after, strict=True))
                yield order[before[rank] : after[rank]], shares
            return
        for start, stop, _ in self.plan.slices(0):
            cuts = even_split(stop - start, self.world.size)
            first, last = cuts[rank]
            yield order[start + first : start + last], _lengths(cuts)


class StreamFeed:
    """A rank's part of every step of a stream, pass after pass: the stream itself owns their size and order.

    Args:
        stream: The stream, the same on every rank.
        world: The ranks that step together; one exchange makes sure that they see streams of one length.
        seed: The seed of the order of data that draws its own steps.
        weighted: Whether every batch must bring weights.
        first_epoch: Epochs trained before this fit: its first pass belongs to the epoch after them.
    """

    layout: tuple[int, ...] = ()

    def __init__(
        self, stream: Stream | Draws, world: World, *, seed: int = 0, weighted: bool = False, first_epoch: int = 0
    ) -> None:
        self.stream, self.world, self.seed, self.weighted = stream, world, seed, weighted
        self.first_epoch = first_epoch
        self.steps = stream.steps
        self.passes = 0
        self.endless = bool(getattr(stream, "endless", False))
        lengths = world.all_gather((self.steps, self.endless))
        if len(set(lengths)) > 1:
            raise DataError(
                "every worker must see the same dataset, but their lengths differ: "
                f"{tuple('endless' if endless else steps for steps, endless in lengths)} batches. "
                "A data creator must return the whole dataset on each worker; it is split for you.",
                code="dataset-differs-by-worker",
            )

    def check_rows(self) -> None:
        """Check that there is something to train on; a stream of unknown length tells when its first pass ends."""
        if self.steps == 0:
            raise _no_rows()

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield this rank's part of every step of one more pass, from first_step on.

        A source that draws its own steps draws them from (seed, epoch) and reads none of those before first_step. A
        stream decides on its order itself, by the passes before this one: it is read until first_step is reached.
        """
        empty = not first_step
        steps = self._steps(epoch, first_step)
        for batch in self._together(steps) if getattr(self.stream, "own", False) else steps:
            empty = False
            if self.weighted and batch.weights is None:
                raise DataError(
                    "the rows must come with weights, but a batch of the data has none. Let it give (x, y, weights).",
                    code="missing-sample-weights",
                )
            batch.shares = batch.shares or _lengths(even_split(batch.step_rows, self.world.size))
            yield batch
        if empty:
            raise _no_rows()

    def _steps(self, epoch: int, first_step: int) -> Iterator[Batch]:
        rank, ranks = self.world.rank, self.world.size
        if hasattr(self.stream, "draw"):
            generator = np.random.default_rng([self.seed, epoch, 0])
            return cast(Draws, self.stream).draw(generator, rank, ranks, first_step)
        skips = max(0, epoch - self.first_epoch - 1 - self.passes)  # those of the run that this one resumes
        if skips:
            self.stream.skip(skips)
        self.passes += skips + 1
        return islice(self.stream.batches(rank, ranks), first_step, None)

    def _together(self, mine: Iterator[Batch]) -> Iterator[Batch]:
        """Yield this rank's own batches in step with the others', until the last rank has none left.

        A rank that has none left gets a row as template, which may be another rank's.
        """
        template: Any = None
        for step in count():
            batch = next(mine, None)
            if not step:  # rows may be large: they are told once
                row = None if batch is None else cut_rows((batch.x, () if batch.y is None else batch.y), slice(0, 1))
                template = next((sample for sample in self.world.all_gather(row) if sample is not None), None)
            rows = np.zeros(self.world.size)
            rows[self.world.rank] = batch.rows if batch else 0
            shares = tuple(map(int, self.world.all_reduce([rows], "sum")[0]))
            if not any(shares):
                return
            if batch is None:
                x, y = template
                labels = None if isinstance(y, tuple) and not y else y
                batch = Batch(x, labels, 0, 0, weights=np.zeros(1) if self.weighted else None)
            leader = next(rank for rank, share in enumerate(shares) if share)
            yield replace(batch, step_rows=sum(shares), shares=shares, leader=leader)


def _lengths(cuts: list[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in cuts)


def _no_rows() -> DataError:
    return DataError(
        "there are no rows to train on: the data is empty, or drop_last left nothing of it.", code="no-rows"
    )


def _template(rows: Rows) -> Any:
    """Return the first row as (x, y), or None where there is none."""
    if not rows.count:
        return None
    x, y = next(iter(rows.read([np.zeros(1, dtype=np.int64)])))
    return map_tree(_as_numpy, x), None if y is None else map_tree(_as_numpy, y)


def _common(templates: list[Any]) -> Any:
    """Return the first row that a rank has; None where there is none at all."""
    rows = [template for template in templates if template is not None]
    for row in rows[1:]:
        if outline(row) != outline(rows[0]):
            raise _differing("two workers' data", flatten(rows[0])[1], flatten(row)[1])
    return rows[0] if rows else None


def _differing(what: str, one: Structure, other: Structure) -> DataError:
    forms = [unflatten(structure, repeat("...")) for structure in (one, other)]
    return DataError(
        f"all blocks of {what} must have the same structure; got {forms[0]} and then {forms[1]}, features before "
        "labels. Give every row the same keys.",
        code="blocks-differ",
    )


def _as_numpy(leaf: Any) -> Any:
    return array_of(leaf, "a row of the data") if hasattr(leaf, "__array__") else leaf


class Store(Protocol):
    """Rows by their number, a list of arrays at a time: a Spool."""

    rows: int
    row_bytes: float

    def take(self, index: np.ndarray) -> list[Any]:
        """Return the rows of these numbers, in this order."""

    def close(self) -> None:
        """Free the memory or the files that hold them."""


class SpoolRows:
    """The rows of a stream, spooled once to a memory-mapped Arrow file and read in any order.

    Args:
        spool: The spool, or where else the rows are by now; None where there are none.
        structure: How its columns make features and labels.
        group_bytes: How much is taken at once where batches are small.
    """

    shared = False
    quiet = True
    batch_size: int | None = None
    drop_last = False

    def __init__(self, spool: Store | None, structure: Structure = None, group_bytes: int = _GROUP_BYTES) -> None:
        self.spool, self.structure = spool, structure
        self.count = spool.rows if spool else 0
        self.group_rows = max(1, int(group_bytes // spool.row_bytes)) if spool else 1

    def order(self, generator: np.random.Generator, shuffle: bool) -> np.ndarray:
        """Return all indices, shuffled or as they came."""
        return generator.permutation(self.count) if shuffle else np.arange(self.count)

    def read(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) for each array of indices; the rows of several small ones are taken at once."""
        for group in _groups(indices, self.group_rows):
            assert self.spool is not None
            leaves = self.spool.take(np.concatenate(group))
            for start, stop in pairwise(accumulate(map(len, group), initial=0)):
                x, y = unflatten(self.structure, [leaf[start:stop] for leaf in leaves])
                yield x, None if isinstance(y, tuple) and not y else y

    def close(self) -> None:
        """Delete the spool."""
        if self.spool:
            self.spool.close()


def _groups(indices: Iterable[np.ndarray], rows: int) -> Iterator[list[np.ndarray]]:
    """Yield arrays of indices in groups of at least so many rows."""
    group: list[np.ndarray] = []
    missing = rows
    for index in indices:
        group.append(index)
        missing -= len(index)
        if missing <= 0:
            yield group
            group, missing = [], rows
    if group:
        yield group


def spool_parts(stream: Iterable[tuple[str, Any, Any]], folder: Path, parts: Iterable[str]) -> dict[str, SpoolRows]:
    """Spool a stream of (part, x, y) blocks, y None for data without labels, into rows by part."""
    writers: dict[str, SpoolWriter] = {}
    structures: dict[str, Structure] = {}
    try:
        for part, x, y in counted(stream):
            leaves, structure = flatten((x, () if y is None else y))
            if part not in writers:
                writers[part] = SpoolWriter(folder)
                structures[part] = structure
            if structures[part] != structure:
                raise _differing(f"the {part} data", structures[part], structure)
            writers[part].append([array_of(leaf, f"the {part} data") for leaf in leaves])
        spools = {part: writer.finish() for part, writer in writers.items()}
    except BaseException:
        for writer in writers.values():
            writer.close()
        raise
    return {part: SpoolRows(spools.get(part), structures.get(part)) for part in parts}
