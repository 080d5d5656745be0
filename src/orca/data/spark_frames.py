"""Spark frames: a Spark DataFrame as XShards of pandas. Owns the rows of a shard and the types of its columns.

Rows leave Spark in Arrow blocks, each column a message of its own, and become a shard on the worker. So a shard is in
memory once: the Arrow form of a column is freed as soon as pandas has it. Python touches no row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from orca.data.refusals import refused
from orca.data.shard import SparkXShards
from orca.data.slices import FRAME
from orca.rows.arrow import stretches

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import RDD
    from pyspark.sql import DataFrame


def frame_shards(frame: DataFrame) -> SparkXShards:
    """Return a Spark DataFrame as XShards of pandas DataFrames, at least one of each partition.

    Timestamps are those of the session's time zone, without a zone. ML vectors become arrays.

    Args:
        frame: The DataFrame. `OrcaContext._shard_size` says how many rows a shard has; unset, a partition is a shard.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    from orca.cluster.context import OrcaContext

    frame = _without_vectors(frame)
    labels = tuple(frame.columns)
    plain = frame.toDF(*(f"c{number}" for number in range(len(labels))))  # whatever the names, Arrow takes them
    # Before Spark 4 it knows no time zones; here they do not matter.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    template = _local_times(pa.RecordBatch.from_pylist([], to_arrow_schema(plain.schema, **zone)))
    rdd = plain.mapInArrow(_blocks, "columns array<binary>").rdd
    if not rdd.getNumPartitions():  # as of limit(0)
        rdd = rdd.ctx.parallelize([], 1)
    return computed(rdd.mapPartitions(Assembly(labels, template.schema, OrcaContext._shard_size)), FRAME)


def computed(rdd: RDD[Any], class_name: str) -> SparkXShards:
    """Return XShards of an RDD whose elements are shards.

    Raises:
        DataError: A task raised it, when shards are computed at once.
    """
    with refused():
        return SparkXShards(rdd, class_name=class_name)


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches on their way out of Spark: one row a block, one Arrow message a column."""
    for batch in batches:
        messages = [_message(column) for column in _local_times(batch).columns]
        cells = pa.array([messages], pa.list_(pa.binary()))
        yield pa.RecordBatch.from_arrays([cells], ["columns"])


def _local_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a block with timestamps as the clock of the session shows them."""
    columns = [
        pc.local_timestamp(column) if pa.types.is_timestamp(column.type) and column.type.tz else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


@dataclass(frozen=True)
class Assembly:
    """The shards of a partition, put together from its blocks."""

    labels: tuple[Any, ...]
    schema: pa.Schema
    size: int | None

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the shards of rows of `_blocks`; one without rows if the partition has none."""
        empty = True
        for table in _tables((_batch(row[0]) for row in rows), self.size):
            empty = False
            yield self._shard(table)
        if empty:
            yield self._shard([self.schema.empty_table()])

    def _shard(self, tables: list[pa.Table]) -> Any:
        shard = _to_pandas(tables)
        shard.columns = list(self.labels)
        return shard


def _tables(batches: Iterator[pa.RecordBatch], size: int | None) -> Iterator[list[pa.Table]]:
    """Yield the rows of each shard as a list with one table, which the caller takes out of it."""
    if size is None:
        whole = list(batches)
        if whole:
            tables = [pa.Table.from_batches(whole)]
            del whole
            yield tables
        return
    for stretch in stretches(batches, size):
        table = pa.Table.from_batches(stretch)
        for start in range(0, table.num_rows, size):
            yield [table.slice(start, size)]


def _to_pandas(tables: list[pa.Table]) -> pd.DataFrame:
    table, options = tables.pop(), {"maps_as_pydicts": "strict"}  # as in DataFrame.toPandas
    if all(column.num_chunks < 2 for column in table.columns):
        return table.to_pandas(**options).copy()  # pandas would look at Arrow's memory, which may not be written to
    return table.to_pandas(split_blocks=True, self_destruct=True, **options)


def _message(column: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([column], ["column"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _batch(messages: list[bytes]) -> pa.RecordBatch:
    columns = [pa.ipc.open_stream(message).read_next_batch().column(0) for message in messages]
    return pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])


def _without_vectors(frame: DataFrame) -> DataFrame:
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    names = [field.name for field in frame.schema.fields if type(field.dataType).__name__ == "VectorUDT"]
    columns = {name: F.col(f"`{name}`") for name in names}
    vectors = {name: F.when(column.isNotNull(), vector_to_array(column)) for name, column in columns.items()}
    return frame.withColumns(vectors) if vectors else frame
