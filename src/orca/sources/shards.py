"""ShardsSource and RayShardsSource: XShards of {"x", "y"} arrays or pandas frames. Own reading a shard and adding
"prediction" to it.

Weights of rows are a third entry of the dict, "weights" or the name of the weight column, or a column of the frame.
Shards are dealt out to ranks in pieces, with the columns that are used and without those that have no rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from orca.core.columns import arrays_of, check_columns, column_array, output_names, single, squeeze, with_columns
from orca.core.feed import SpoolRows, spool_parts, weigh
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, Columns, DataSpec, Extent, Items, Shards
from orca.errors import DataError
from orca.rows.tree import cut_rows, flatten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTS = ("train", "valid")
_PIECE = 32 << 20  # bytes of a piece, more or less


class ShardsSource:
    """XShards that live in Spark."""

    def __init__(self, data: Any, spec: DataSpec) -> None:
        self.xshards, self.columns, self.labelled, self.weighted = data, spec.columns, spec.labelled, spec.weighted
        self.batch_size = spec.batch_size or DEFAULT_BATCH

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise XShards in Spark."""
        return hasattr(data, "transform_shard") and not hasattr(data, "get_partition_refs")

    def extent(self) -> Extent:
        """Return nothing: counting the rows of shards is a job."""
        return Extent()

    def shards(self, ranks: int, valid: ShardsSource | None = None) -> Shards:
        """Deal the pieces of shards out to the ranks.

        They are always dealt, never read where they lie: a Python RDD in the stage of the barrier would need two Python
        workers in each of its tasks, which Spark 3.5 was seen to wait for without end.
        """
        from orca.sources.export import Export
        from orca.sources.frame import deal

        frame = self._pickled(0)
        rows = frame if valid is None else frame.union(valid._pickled(1))
        export = Export(lambda parts: deal(rows, parts), ranks)
        return Shards(
            OpenShards(self.columns, self.labelled, _PARTS[: 2 if valid else 1], self.weighted, pickled=True),
            portable=export,
            home="spark",
            native=deal(rows, ranks),
            release=export.release,
        )

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return the shards with "prediction" added to each."""
        return self.xshards.transform_shard(ShardPredictTask(task, self.columns))

    def _pickled(self, part: int) -> DataFrame:
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F

        session = SparkSession.builder.getOrCreate()
        rows = self.xshards.rdd.flatMap(partial(_cells, columns=self.columns))
        return session.createDataFrame(rows, "shard binary").select(F.lit(part).cast("int").alias("part"), "shard")


class RayShardsSource(ShardsSource):
    """XShards that live in Ray."""

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise XShards in Ray."""
        return hasattr(data, "get_partition_refs")

    def shards(self, ranks: int, valid: ShardsSource | None = None) -> Shards:
        """Deal the partitions out to the ranks: as Ray holds them, or pickled for other engines."""
        sources = [self] if valid is None else [self, valid]
        pairs = [(part, ref) for part, source in enumerate(sources) for ref in source.xshards.get_partition_refs()]
        return Shards(
            OpenShards(self.columns, self.labelled, _PARTS[: len(sources)], self.weighted),
            portable=lambda: [GivenShards(part, _fetched(ref)) for part, ref in pairs],
            home="ray",
            native=partial(_computed, pairs),
        )


@dataclass(frozen=True)
class GivenShards:
    """Shards of a part, at hand or in Ray's object store."""

    part: int
    shards: Any

    def __call__(self) -> Items:
        """Yield each shard with the number of its part."""
        shards = self.shards if isinstance(self.shards, list) else _fetched(self.shards)
        return ((self.part, shard) for shard in shards)


def _computed(pairs: list[tuple[int, Any]]) -> list[GivenShards]:
    """Return the shards in Ray when they are there: computing them needs CPUs, which ranks would hold."""
    import ray

    if pairs:
        ray.wait([ref for _, ref in pairs], num_returns=len(pairs), fetch_local=False)
    return [GivenShards(part, ref) for part, ref in pairs]


def _fetched(ref: Any) -> list[Any]:
    import ray

    shards: list[Any] = ray.get(ref)
    return shards


@dataclass(frozen=True)
class OpenShards:
    """The spooling of a rank's shards, which come with the number of their part, or in Spark's batches of pickles."""

    columns: Columns
    labelled: bool
    parts: tuple[str, ...]
    weighted: bool = False
    pickled: bool = False

    def __call__(self, items: Items, folder: Path) -> dict[str, SpoolRows]:
        """Return the rows of each part."""
        return spool_parts(self._blocks(_unpickled(items) if self.pickled else items), folder, self.parts)

    def _blocks(self, pairs: Iterable[tuple[int, Any]]) -> Iterator[tuple[str, Any, Any]]:
        for part, shard in pairs:
            if _is_empty(shard):
                continue
            x, y = read_shard(shard, self.columns)
            if self.labelled and y is None:
                raise DataError(
                    'a shard has no labels. Training needs shards of {"x": …, "y": …}.', code="missing-labels"
                )
            yield self.parts[part], x, weigh(y, _weights(shard, self.columns)) if self.weighted else y


def _unpickled(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for part, cell in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
            yield part, pickle.loads(cell.as_buffer())


def _is_empty(shard: Any) -> bool:
    if isinstance(shard, dict) and "x" in shard:
        leaves = flatten(shard["x"])[0]
        return bool(leaves) and all(np.ndim(leaf) > 0 and len(leaf) == 0 for leaf in leaves)
    return _is_frame(shard) and not len(shard)


def _is_frame(shard: Any) -> bool:
    return hasattr(shard, "columns") and hasattr(shard, "iloc")


def _cells(shard: Any, columns: Columns) -> Iterator[tuple[bytearray]]:
    """Yield the pieces of a shard as pickles."""
    if not _is_empty(shard):
        for piece in _pieces(_needed(shard, columns)):
            yield (bytearray(pickle.dumps(piece, pickle.HIGHEST_PROTOCOL)),)


def _needed(shard: Any, columns: Columns) -> Any:
    """Return a shard with the columns in use alone; missing ones are noticed where the shard is read."""
    if _is_frame(shard):
        names = dict.fromkeys((*columns.features, *columns.targets))
        have = list(shard.columns)
        return shard[list(names)] if names and all(have.count(name) == 1 for name in names) else shard
    if isinstance(shard, dict) and "x" in shard:
        return {key: shard[key] for key in ("x", "y", columns.weight or "weights") if key in shard}
    return shard


def _pieces(shard: Any) -> Iterator[Any]:
    """Yield a shard in parts of some bytes; whole where its rows are not those of arrays of one length."""
    if _is_frame(shard):
        rows, size = len(shard), int(shard.memory_usage(deep=True).sum())
    else:
        leaves = flatten(shard)[0]
        lengths = {len(leaf) if isinstance(leaf, np.ndarray) and leaf.ndim else -1 for leaf in leaves}
        rows, size = (lengths.pop() if len(lengths) == 1 else -1), sum(getattr(leaf, "nbytes", 0) for leaf in leaves)
    count = min(rows, -(-size // _PIECE))
    if count < 2:
        yield shard
        return
    for start, stop in even_split(rows, count):
        yield shard.iloc[start:stop] if _is_frame(shard) else cut_rows(shard, slice(start, stop))


@dataclass(frozen=True)
class ShardPredictTask:
    """Predictions added to a shard."""

    task: Callable[[Any], Any]
    columns: Columns

    def __call__(self, shard: Any) -> Any:
        """Return the shard with its predictions."""
        output = self.task(read_shard(shard, self.columns)[0])
        heads, columns = flatten(output)[0], self.columns
        if isinstance(shard, dict) and not columns.outputs:
            outputs = {"prediction": output}
        else:
            outputs = dict(zip(output_names(columns, len(heads)), heads, strict=True))
        if not isinstance(shard, dict):
            return with_columns(shard, {name: squeeze(head) for name, head in outputs.items()})
        clashes = [name for name in outputs if name in shard]
        if clashes:
            raise DataError(
                f"the shards have the key {clashes[0]!r} already. Name another with output_cols=['…'].",
                code="output-column-taken",
            )
        return {**shard, **outputs}


def read_shard(shard: Any, columns: Columns) -> tuple[Any, Any]:
    """Return (x, y) of a shard; lists of inputs become several model arguments."""
    if isinstance(shard, dict) and "x" in shard:
        y = shard.get("y")
        return arrays_of(shard["x"], "x of a shard"), None if y is None else arrays_of(y, "y of a shard")
    if _is_frame(shard):
        check_columns(columns, list(shard.columns))
        labels = tuple(column_array(shard[name], name) for name in columns.labels)
        features = tuple(column_array(shard[name], name) for name in columns.features)
        return single(features), single(labels) if labels else None
    raise DataError(
        f'each shard must be a dict with "x" (and "y"), or a pandas DataFrame with feature_cols; got '
        f"{type(shard).__name__}{f' with keys {list(shard)}' if isinstance(shard, dict) else ''}.",
        code="bad-shard",
    )


def _weights(shard: Any, columns: Columns) -> Any:
    name = columns.weight or "weights"
    have = list(shard) if isinstance(shard, dict) else list(shard.columns)
    if name not in have:
        raise DataError(
            f"there are no weights under the name {name!r}; a shard has {have}. Name their column: sample_weight='…'.",
            code="missing-sample-weights",
        )
    return shard[name] if isinstance(shard, dict) else column_array(shard[name], name)
