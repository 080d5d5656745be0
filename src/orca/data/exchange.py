"""Exchange: XShards of frames as Spark DataFrames, through Arrow. Owns which Spark type a pandas column gets.

Spark takes Arrow record batches from Python only in mapInArrow. So batches pass between RDDs and DataFrames as cells
of bytes, some thousand rows in each: no row is touched by Python on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from orca.errors import DataError

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

_ROWS = 10_000  # of a record batch, as Spark's own
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}
_VALUELESS = {pa.null(): pa.string()}  # of columns that have no value in any shard


def to_spark_df(rdd: RDD[Any]) -> DataFrame:
    """Return the rows of frames as a DataFrame, whose partitions are those of the frames."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import TimestampNTZType

    schema = _common(rdd.map(_schema_of).collect())
    try:
        fields = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    except TypeError as error:
        raise DataError(
            f"to_spark_df: {error}. Convert the column first, with transform_shard.", code="column-without-spark-type"
        ) from error
    session = SparkSession.builder.getOrCreate()
    cells = session.createDataFrame(rdd.flatMap(partial(_packed, schema=schema)), "batch binary")
    frame = cells.mapInArrow(UnpackTask(), fields)
    if session.conf.get("spark.sql.timestampType", "TIMESTAMP_LTZ") == "TIMESTAMP_NTZ":
        return frame
    # Times without a zone are those of the session's zone, as createDataFrame has it.
    columns = [(field.name, F.col(f"`{field.name}`"), field.dataType) for field in fields]
    return frame.select(
        *(c.cast("timestamp").alias(n) if isinstance(k, TimestampNTZType) else c for n, c, k in columns)
    )


def _schema_of(frame: pd.DataFrame) -> pa.Schema:
    return _table(frame).schema


def _table(frame: pd.DataFrame) -> pa.Table:
    """Return a frame as Arrow, in types that Spark has."""
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        raise DataError(
            f"to_spark_df: columns have the same name in {names}. Rename one of them.", code="duplicate-column"
        )
    copy = frame.set_axis(names, axis=1)
    halves = dict.fromkeys(copy.columns[copy.dtypes == np.float16], np.float32)  # Arrow < 16 does not cast them
    try:
        table = pa.Table.from_pandas(copy.astype(halves), preserve_index=False)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"to_spark_df: Arrow has no type for a column: {error}. Convert it with transform_shard.",
            code="column-without-arrow-type",
        ) from error
    fields = [pa.field(field.name, _plain(field.type)) for field in table.schema]
    return _cast(table, pa.schema(fields))


def _plain(kind: pa.DataType, others: Mapping[pa.DataType, pa.DataType] = _WIDER) -> pa.DataType:
    """Return the type that Spark has for one of pandas'; columns without a value have none yet."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type, others)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")  # Spark keeps the moment, in whatever zone it was
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type, others))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type, others)) for field in kind])
    return others.get(kind, kind)


def _common(schemas: list[pa.Schema]) -> pa.Schema:
    """Return the schema that holds the rows of all."""
    try:
        common = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"to_spark_df: a column has types in different shards that do not go together: {error}. Convert it with "
            "transform_shard.",
            code="column-types-differ",
        ) from error
    return pa.schema([pa.field(field.name, _plain(field.type, _VALUELESS)) for field in common])


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    try:
        return table.select(schema.names).cast(schema, safe=True)
    except pa.ArrowInvalid as error:
        if "lose data" not in str(error):
            raise DataError(
                f"to_spark_df: Spark has no type for a column: {error}.", code="column-without-spark-type"
            ) from error
        return table.select(schema.names).cast(schema, safe=False)  # nanoseconds, of which Spark has none


def _packed(frame: pd.DataFrame, schema: pa.Schema) -> Iterator[tuple[bytearray]]:
    """Yield a frame's rows as cells of bytes."""
    for batch in _cast(_table(frame), schema).to_batches(max_chunksize=_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(batch)
        yield (bytearray(sink.getvalue()),)


class UnpackTask:
    """A task that turns cells of bytes into record batches again."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of each cell."""
        for batch in batches:
            for cell in batch.column(0):
                with pa.ipc.open_stream(cell.as_buffer()) as reader:
                    yield from reader
