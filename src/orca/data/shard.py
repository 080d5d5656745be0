"""XShards: one Python object a shard, spread over Spark. Owns the verbs; an RDD element is a shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.plan import even_split
from orca.errors import ArgumentError, DataError
from orca.rows.tree import cut_rows, rows_of

if TYPE_CHECKING:
    from pyspark import RDD


class XShards:
    """Make XShards of data on the driver."""

    @staticmethod
    def partition(data: Any, num_shards: int | None = None) -> SparkXShards:
        """Cut arrays, or (nested) dicts, lists and tuples of arrays, into shards along their rows.

        Args:
            data: Arrays with equal first dimensions, in any nesting.
            num_shards: How many shards; the cluster's cores unless given.

        Raises:
            DataError: There are no arrays, their lengths differ, or there are fewer rows than shards.
        """
        from orca.cluster.context import OrcaContext

        if not isinstance(data, np.ndarray | dict | list | tuple):
            raise DataError(
                f"XShards.partition takes numpy arrays and dicts, lists and tuples of them; got {type(data).__name__}."
            )
        if num_shards is not None and num_shards < 1:
            raise ArgumentError(f"num_shards must be a positive whole number; got {num_shards!r}.")
        context = OrcaContext.get_spark_context()
        shards = num_shards or context.defaultParallelism
        rows = rows_of(data)
        if rows < shards:
            raise DataError(
                f"the number of shards must not be larger than the number of rows; got {shards} shards for {rows} "
                "row(s). Pass a smaller num_shards."
            )
        parts = [cut_rows(data, slice(start, stop)) for start, stop in even_split(rows, shards)]
        return SparkXShards(context.parallelize(parts, shards))


class SparkXShards(XShards):
    """Shards in a Spark RDD.

    Args:
        rdd: One element a shard.
        transient: Whether to leave the shards uncomputed until they are used.
    """

    def __init__(self, rdd: RDD[Any], transient: bool = False, class_name: str | None = None) -> None:
        from orca.cluster.context import OrcaContext

        self.rdd = rdd
        self.eager = OrcaContext._eager_mode and not transient
        if self.eager:
            self.rdd.cache()
            self.rdd.count()

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> SparkXShards:
        """Apply a function to every shard; returns new shards."""
        return SparkXShards(self.rdd.map(lambda shard: func(shard, *args)), transient=not self.eager)

    def collect(self) -> list[Any]:
        """Return all shards to the driver."""
        return self.rdd.collect()

    def first(self) -> Any:
        """Return the first shard."""
        return self.rdd.first()

    def take(self, count: int) -> list[Any]:
        """Return the first shards."""
        return self.rdd.take(count)

    def num_partitions(self) -> int:
        """Return how many partitions the shards lie in."""
        return self.rdd.getNumPartitions()

    def cache(self) -> SparkXShards:
        """Keep the shards in memory."""
        self.rdd.cache()
        return self

    def uncache(self) -> SparkXShards:
        """Let go of cached shards."""
        self.rdd.unpersist()
        return self

    def is_cached(self) -> bool:
        """Say whether the shards are cached."""
        return bool(self.rdd.is_cached)

    def compute(self) -> SparkXShards:
        """Compute lazy shards now."""
        self.rdd.count()
        return self

    def __len__(self) -> int:
        return int(self.rdd.map(lambda shard: len(shard) if hasattr(shard, "__len__") else 1).sum())

    def __getitem__(self, key: Any) -> SparkXShards:
        first = self.first()
        if not hasattr(first, "__getitem__"):
            raise ArgumentError("No selection operation available for this XShards")
        try:
            first[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ArgumentError(f"Invalid key for this XShards: {key!r}") from error
        return SparkXShards(self.rdd.map(lambda shard: shard[key]), transient=True)
