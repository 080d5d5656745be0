"""ShardsSource: XShards of {"x", "y"} arrays or pandas frames. Owns reading a shard and adding "prediction" to it.

Weights of rows are a third entry of the dict, "weights" or the name of the weight column, or a column of the frame.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from orca.core.columns import arrays_of, check_columns, column_array, output_names, single, squeeze, with_columns
from orca.core.feed import SpoolRows, spool_parts, weigh
from orca.core.source import DEFAULT_BATCH, Columns, DataSpec, Extent, Items, Shards
from orca.errors import DataError
from orca.rows.tree import flatten
from orca.sources.export import Export
from orca.sources.frame import deal

_PARTS = ("train", "valid")


class ShardsSource:
    """XShards that live in Spark."""

    def __init__(self, data: Any, spec: DataSpec) -> None:
        self.xshards, self.columns, self.labelled, self.weighted = data, spec.columns, spec.labelled, spec.weighted
        self.batch_size = spec.batch_size or DEFAULT_BATCH

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise XShards in Spark."""
        return hasattr(data, "rdd") and hasattr(data, "transform_shard")

    def extent(self) -> Extent:
        """Return nothing: counting the rows of shards is a job."""
        return Extent()

    def shards(self, ranks: int, valid: ShardsSource | None = None) -> Shards:
        """Deal whole shards out to the ranks.

        They are always dealt, never read where they lie: a Python RDD in the stage of the barrier would need two Python
        workers in each of its tasks, which Spark 3.5 was seen to wait for without end.
        """
        frame = self._pickled(0)
        rows = frame if valid is None else frame.union(valid._pickled(1))
        export = Export(lambda parts: deal(rows, parts), ranks)
        return Shards(
            OpenShards(self.columns, self.labelled, _PARTS[: 2 if valid else 1], self.weighted),
            portable=export,
            home="spark",
            native=deal(rows, ranks),
            release=export.release,
        )

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return the shards with "prediction" added to each."""
        return self.xshards.transform_shard(Predicted(task, self.columns))

    def _pickled(self, part: int) -> DataFrame:
        session = SparkSession.builder.getOrCreate()
        rows = self.xshards.rdd.map(lambda shard: (bytearray(pickle.dumps(shard)),))
        return session.createDataFrame(rows, "shard binary").select(F.lit(part).cast("int").alias("part"), "shard")


@dataclass(frozen=True)
class OpenShards:
    """The spooling of a rank's shards."""

    columns: Columns
    labelled: bool
    parts: tuple[str, ...]
    weighted: bool = False

    def __call__(self, items: Items, folder: Path) -> dict[str, SpoolRows]:
        """Return the rows of each part."""
        return spool_parts(self._blocks(items), folder, self.parts)

    def _blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Any, Any]]:
        for batch in batches:
            for part, cell in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                shard = pickle.loads(cell.as_buffer())
                x, y = read_shard(shard, self.columns)
                if self.labelled and y is None:
                    raise DataError('a shard has no labels. Training needs shards of {"x": …, "y": …}.')
                yield self.parts[part], x, weigh(y, _weights(shard, self.columns)) if self.weighted else y


@dataclass(frozen=True)
class Predicted:
    """Predictions added to a shard."""

    task: Callable[[Any], Any]
    columns: Columns

    def __call__(self, shard: Any) -> Any:
        """Return the shard with its predictions."""
        output = self.task(read_shard(shard, self.columns)[0])
        heads, columns = flatten(output)[0], self.columns
        if isinstance(shard, dict) and not columns.outputs:
            named = {"prediction": output}
        else:
            named = dict(zip(output_names(columns, len(heads)), heads, strict=True))
        if not isinstance(shard, dict):
            return with_columns(shard, {name: squeeze(head) for name, head in named.items()})
        taken = [name for name in named if name in shard]
        if taken:
            raise DataError(f"the shards have the key {taken[0]!r} already. Name another with output_cols=['…'].")
        return {**shard, **named}


def read_shard(shard: Any, columns: Columns) -> tuple[Any, Any]:
    """Return (x, y) of a shard; lists of inputs become several model arguments.

    Raises:
        DataError: The shard is of another kind, or columns are missing.
    """
    if isinstance(shard, dict) and "x" in shard:
        y = shard.get("y")
        return arrays_of(shard["x"], "x of a shard"), None if y is None else arrays_of(y, "y of a shard")
    if hasattr(shard, "columns") and hasattr(shard, "iloc"):
        check_columns(columns, list(shard.columns))
        labels = tuple(column_array(shard[name], name) for name in columns.labels)
        features = tuple(column_array(shard[name], name) for name in columns.features)
        return single(features), single(labels) if labels else None
    raise DataError(
        f'each shard must be a dict with "x" (and "y"), or a pandas DataFrame with feature_cols; got '
        f"{type(shard).__name__}{f' with keys {list(shard)}' if isinstance(shard, dict) else ''}."
    )


def _weights(shard: Any, columns: Columns) -> Any:
    name = columns.weight or "weights"
    have = list(shard) if isinstance(shard, dict) else list(shard.columns)
    if name not in have:
        raise DataError(
            f"there are no weights under the name {name!r}; a shard has {have}. Name their column: sample_weight='…'."
        )
    return shard[name] if isinstance(shard, dict) else column_array(shard[name], name)
