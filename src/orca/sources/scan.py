"""Scan: a DataFrame that does nothing but read Parquet files, read by ranks themselves. Owns which plans and
files qualify, and how their rows are cut.

Spark has said which files there are, how they are cut into partitions and in which order: that is taken from its plan.
Only nodes, types and options that are known to give exactly Spark's values are accepted. All else is left to Spark.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as kinds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from orca.core.source import Items
from orca.rows.arrow import to_arrow
from orca.sources.parquet import Cursor, Reader, RowGroup, path_of, row_groups
from orca.sources.sparkplan import RELATION, OtherRoad, need, read_plan

SETTING = "spark.orca.scan"
LOOKUP = hasattr(F, "arrow_udf")  # Spark < 4.1 has none

_SOURCES = "org.apache.spark.sql.execution.datasources."
_REBASING = "spark.sql.parquet.datetimeRebaseModeInRead"
# Settings under which Spark reads files in a way of its own.
_OWN_WAYS = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
)
# Options that say which files there are, and not how they are read.
_LISTING = {"path", "paths", "basepath", "pathglobfilter", "recursivefilelookup", "serialization.format"}
_FILE = r"path: (file:[^\s,]+), range: (\d+)-(\d+), partition values: \[.*?\](?=, path: |\)$)"
_CODECS = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"}
_IN_ORDER = {f"org.apache.spark.sql.catalyst.plans.logical.{name}" for name in ("Project", "Filter", "SubqueryAlias")}
_MOST_FOLDERS = 1_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Leaf:
    """A simple type of Spark: its Arrow type, and how it lies in Parquet files that both read alike."""

    arrow: pa.DataType
    physical: str
    logical: tuple[str, ...]


_NONE = "None"
_LEAVES: dict[type[DataType], _Leaf] = {
    BooleanType: _Leaf(pa.bool_(), "BOOLEAN", (_NONE,)),
    ByteType: _Leaf(pa.int8(), "INT32", ("Int8",)),
    ShortType: _Leaf(pa.int16(), "INT32", ("Int16",)),
    IntegerType: _Leaf(pa.int32(), "INT32", (_NONE, "Int32")),
    LongType: _Leaf(pa.int64(), "INT64", (_NONE, "Int64")),
    FloatType: _Leaf(pa.float32(), "FLOAT", (_NONE,)),
    DoubleType: _Leaf(pa.float64(), "DOUBLE", (_NONE,)),
    StringType: _Leaf(pa.string(), "BYTE_ARRAY", ("String",)),
    BinaryType: _Leaf(pa.binary(), "BYTE_ARRAY", (_NONE,)),
    DateType: _Leaf(pa.date32(), "INT32", ("Date",)),
    TimestampType: _Leaf(pa.timestamp("us", "UTC"), "INT64", ("Timestamp",)),
    TimestampNTZType: _Leaf(pa.timestamp("us"), "INT64", ("LocalTimestamp",)),
}
_DATED = (DateType, TimestampType, TimestampNTZType)
# Types of columns that are in the names of folders, and how their values are asked for.
_IN_FOLDERS: dict[type[DataType], Callable[[Any, int], Any]] = {
    IntegerType: lambda values, i: values.getInt(i),
    LongType: lambda values, i: values.getLong(i),
    StringType: lambda values, i: values.getUTF8String(i).toString(),
    DateType: lambda values, i: values.getInt(i),  # days since 1970
}
# Types whose smallest and largest values in a row group decide whether it is read.
_ORDERED = {BooleanType, ByteType, ShortType, IntegerType, LongType, DateType}


@dataclass(frozen=True)
class Scan:
    """A DataFrame as the row groups that it reads.

    Attributes:
        reader: Reads them.
        partitions: The row groups of each of Spark's partitions, in its order.
    """

    reader: Reader
    partitions: tuple[tuple[RowGroup, ...], ...]

    @property
    def types(self) -> list[pa.DataType]:
        """Return the types of the columns."""
        return self.reader.types

    def deal(self, ranks: int) -> list[tuple[RowGroup, ...]]:
        """Deal the row groups out so that ranks have the same number of rows, or one more.

        Each goes to the rank that has most room. Where it has not enough for all of it, the rest goes on to others: at
        most one row group less than there are ranks is read twice.
        """
        groups = list(chain.from_iterable(self.partitions))
        total = sum(group.rows for group in groups)
        room = [total // ranks + (rank < total % ranks) for rank in range(ranks)]
        shares: list[list[RowGroup]] = [[] for _ in range(ranks)]
        for group in groups:
            start = group.start
            while start < group.stop:
                rank = max(range(ranks), key=room.__getitem__)
                stop = min(group.stop, start + room[rank])
                shares[rank].append(replace(group, start=start, stop=stop))
                room[rank] -= stop - start
                start = stop
        return [tuple(share) for share in shares]


@dataclass(frozen=True)
class ScanPiece:
    """A rank's rows of one or more scans, read when called.

    Attributes:
        shares: A reader and its row groups, for each part ("train", "valid") by its number.
        here: Whether the files are on the driver's machine.
    """

    shares: tuple[tuple[Reader, tuple[RowGroup, ...]], ...]
    here: bool = False

    def __call__(self) -> Items:
        """Yield record batches whose first column is the number of the part."""
        for part, (reader, groups) in enumerate(self.shares):
            for batch in reader(groups):
                number = to_arrow(np.full(batch.num_rows, part, np.int32))
                yield pa.RecordBatch.from_arrays([number, *batch.columns], names=["part", *batch.schema.names])


@dataclass(frozen=True)
class LookupTask:
    """A task over the places of rows: the path of a file and the number of a row in it. The rows are read there.

    Attributes:
        work: A task of record batches, which returns them with columns added.
        reader: Reads the columns that the work needs; all rows.
        multiple: How many rows the work likes at a time.
    """

    work: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    reader: Reader
    multiple: int

    def __call__(self, places: Iterable[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        """Yield the columns that the work adds, as structs, in the order of the places."""
        for batch in self.work(self._rows(places)):
            extra = range(len(self.reader.columns), batch.num_columns)
            yield pa.StructArray.from_arrays([batch.column(i) for i in extra], [batch.schema.names[i] for i in extra])

    def _rows(self, places: Iterable[tuple[pa.Array, pa.Array]]) -> Iterator[pa.RecordBatch]:
        cursor: Cursor | None = None
        for paths, rows in places:
            start, files = 0, pc.run_end_encode(paths)
            for stop, address in zip(files.run_ends.to_pylist(), files.values.to_pylist(), strict=True):
                if cursor is None or cursor.address != address:
                    cursor = Cursor(self.reader, address, self.multiple)
                yield from cursor.take(rows.slice(start, stop - start).to_numpy())
                start = stop


def looked_up(frame: DataFrame, task: LookupTask, kind: StructType) -> DataFrame:
    """Return a scan with the fields of a task's answers as columns: only the places of rows go to Python."""
    from pyspark.util import PythonEvalType  # Spark 3.5 has it elsewhere

    udf: Any = F.arrow_udf
    with warnings.catch_warnings():  # it asks for type hints, which an object has not
        warnings.simplefilter("ignore", UserWarning)
        answer = udf(task, kind, PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF)
    places = frame.select("*", F.col("_metadata.file_path").alias("path"), F.col("_metadata.row_index").alias("row"))
    answers = places.select(*frame.columns, answer("path", "row").alias("answer"))
    return answers.select(*frame.columns, "answer.*")


# Which plans are recognised


def scan_of(frame: DataFrame, *, by_place: bool = False) -> Scan | None:
    """Return the scan that a DataFrame is; None where Spark must read it.

    A scan is Parquet files of this machine or of a folder that is mounted on all, read as they are: columns
    chosen and renamed, rows chosen by comparing columns with values. Each file has the columns in the types of the
    DataFrame, but for those that are in the names of folders.

    Args:
        frame: The DataFrame.
        by_place: Whether Spark chooses the rows, by filters of any kind, and tells their places: the scan has none.
    """
    if not hasattr(frame, "_jdf") or frame.isStreaming:
        return None
    try:
        return _recognised(frame, by_place)
    except Exception as reason:  # whatever it is: Spark can do it, or says why not in its own words
        logger.debug("Spark reads this DataFrame: %s: %s", type(reason).__name__, reason)
        return None


def _recognised(frame: DataFrame, by_place: bool) -> Scan:
    settings = frame.sparkSession.conf
    need(str(settings.get(SETTING, "true")).lower() == "true", f"{SETTING} is off")
    execution = frame._jdf.queryExecution()
    if by_place:
        _check_places(execution.analyzed())
    columns, condition, operands = read_plan(json.loads(execution.optimizedPlan().toJSON()), by_place)
    node = _file_scan(execution.sparkPlan())
    schema, folders = _table_schemas(node.relation())
    need(not by_place or "_metadata" not in map(str.casefold, schema.names), "a column called _metadata")
    for name in _OWN_WAYS:
        need(str(settings.get(name)).lower() == "false", f"{name} is on")
    names = list(dict.fromkeys([*columns, *operands]))
    in_folders = [name for name in folders.names if name in names]
    need(not (by_place and in_folders), "a feature in the names of folders")
    types = {name: schema[name].dataType for name in names if name not in in_folders}
    need(bool(types), "no column of the files")
    for name in types:
        need(not any(key.startswith("__") for key in schema[name].metadata or {}), f"{name} is padded or cut")
    kinds = {type(types.get(name)) for name in operands}
    values = _values(node.relation(), folders, in_folders)
    partitions = _partitions(node, frame.sparkSession, _Footers(frame.sparkSession, types), values)
    need(any(chain.from_iterable(partitions)), "there are no rows")
    target = pa.schema([(name, _arrow_type(type_)) for name, type_ in types.items()])
    skips = condition is not None and kinds <= _ORDERED
    places = pa.schema([(name, _arrow_type(folders[name].dataType)) for name in in_folders])
    return Scan(Reader(tuple(columns), target, condition, skips, places), partitions)


def _check_places(node: Any) -> None:
    """Check that a plan tells the places of its rows, and in the order of the files.

    The plan is the one before Spark leaves out the steps that the features do not need: a window, for one, which sorts
    the rows.
    """
    need("_metadata#" in node.metadataOutput().mkString(","), "the plan hides the places, as a view does")
    while (name := node.getClass().getName()) != RELATION:
        need(name in _IN_ORDER, name)
        node = node.child()


def _file_scan(node: Any) -> Any:
    """Return the node of Spark's plan that reads the files."""
    while True:
        name = node.getClass().getName()
        if name == "org.apache.spark.sql.execution.FileSourceScanExec":
            return node
        need(name in ("org.apache.spark.sql.execution.ProjectExec", "org.apache.spark.sql.execution.FilterExec"), name)
        node = node.child()


def _table_schemas(relation: Any) -> tuple[StructType, StructType]:
    """Return the columns of files and of folders as Spark has them."""
    index, form = (str(thing.getClass().getName()) for thing in (relation.location(), relation.fileFormat()))
    need(index == _SOURCES + "InMemoryFileIndex", index)
    need(form == _SOURCES + "parquet.ParquetFileFormat", form)
    need(relation.bucketSpec().isEmpty(), "buckets")
    options = {key.lower() for key in relation.options().keys().mkString("\n").split("\n") if key}
    need(options <= _LISTING, f"the options {options}")
    schemas = [StructType.fromJson(json.loads(s.json())) for s in (relation.dataSchema(), relation.partitionSchema())]
    files, folders = ({name.casefold() for name in schema.names} for schema in schemas)
    need(not files & folders, "a column in files and in the names of folders")
    return schemas[0], schemas[1]


def _values(relation: Any, folders: StructType, in_folders: list[str]) -> dict[str, tuple[Any, ...]]:
    """Return the values that Spark reads from each folder's name, for the columns that are asked for."""
    if not in_folders:
        return {}
    ways = [(folders.names.index(name), _IN_FOLDERS.get(type(folders[name].dataType))) for name in in_folders]
    places = relation.location().partitionSpec().partitions()
    need(places.size() <= _MOST_FOLDERS, f"{places.size()} folders")
    values: dict[str, tuple[Any, ...]] = {}
    for place in map(places.apply, range(places.size())):
        row = place.values()
        cells = [None if row.isNullAt(i) else _read_value(way, row, i) for i, way in ways]
        values[path_of(place.path().toUri().toString())] = tuple(cells)
    return values


def _read_value(way: Callable[[Any, int], Any] | None, row: Any, place: int) -> Any:
    if way is None:
        raise OtherRoad("a type in the names of folders")
    return way(row, place)


def _partitions(
    node: Any, session: Any, footers: _Footers, values: dict[str, tuple[Any, ...]]
) -> tuple[tuple[RowGroup, ...], ...]:
    """Return the row groups of each partition that Spark would make."""
    partitions = node.inputRDDs().head().filePartitions()
    cuts: list[list[tuple[str, int, int]]] = []
    for i in range(partitions.size()):
        files = partitions.apply(i).files()
        text = session._jvm.scala.runtime.ScalaRunTime.stringOf(files)  # one call for all files
        matches = list(re.finditer(_FILE, text, re.DOTALL))
        need(text == f"Array({', '.join(match[0] for match in matches)})" and len(matches) == len(files), text)
        cuts.append([(path_of(match[1]), int(match[2]), int(match[3])) for match in matches])
    times = Counter(path for cut in cuts for path, _, _ in cut)
    need(len(times) <= footers.most, f"{len(times)} files")
    return tuple(
        tuple(
            replace(group, values=values[str(Path(path).parent)]) if values else group
            for path, start, stop in cut
            for group in (
                footers.all(path)
                if times[path] == 1 and stop == Path(path).stat().st_size  # else it was replaced
                else footers.between(path, start, stop)
            )
        )
        for cut in cuts
    )


# The files


class _Footers:
    """The footers of Parquet files, checked to hold the needed columns in the types that Spark reads."""

    most = 10_000  # files: the footers of more take the driver longer than Spark takes to begin

    def __init__(self, session: Any, columns: dict[str, DataType]) -> None:
        self._columns, self._corrected = columns, str(session.conf.get(_REBASING)).upper() == "CORRECTED"
        self._has_dates = any(_holds_dates(kind) for kind in columns.values())
        self._footer_of: dict[str, pq.FileMetaData] = {}
        self._schemas: list[tuple[pq.ParquetSchema, bytes | None, list[int]]] = []

    def all(self, path: str) -> Iterator[RowGroup]:
        """Yield the row groups of a file that have rows."""
        return row_groups(path, self._footer(path))

    def between(self, path: str, start: int, stop: int) -> Iterator[RowGroup]:
        """Yield the row groups whose middle lies between two bytes of a file: so Spark deals them to its tasks."""
        for group in self.all(path):
            if start <= _middle(self._footer(path).row_group(group.number)) < stop:
                yield group

    def _footer(self, path: str) -> pq.FileMetaData:
        if path not in self._footer_of:
            footer = pq.read_metadata(path)
            own = footer.metadata or {}
            places = self._places(footer, own.get(b"ARROW:schema"))
            if self._has_dates:
                version = own.get(b"org.apache.spark.version")
                need(b"org.apache.spark.legacyDateTime" not in own, f"old dates in {path}")
                need(self._corrected if version is None else int(version.split(b".")[0]) >= 3, f"old dates in {path}")
            for place in places if footer.num_row_groups else ():
                codec = footer.row_group(0).column(place).compression
                need(codec in _CODECS, f"the codec {codec}")
            self._footer_of[path] = footer
        return self._footer_of[path]

    def _places(self, footer: pq.FileMetaData, types: bytes | None) -> list[int]:
        """Return the numbers of the needed columns; most files are like one that was checked before."""
        for schema, own, places in self._schemas:
            if own == types and schema.equals(footer.schema):
                return places
        places = _check_schema(footer.schema, self._columns)
        self._schemas.append((footer.schema, types, places))
        return places


def _check_schema(schema: pq.ParquetSchema, types: dict[str, DataType]) -> list[int]:
    """Check that a file has the columns, in the types that Spark and Arrow read alike; return the leaves' numbers."""
    arrow = schema.to_arrow_schema()
    lowercase = [name.casefold() for name in arrow.names]
    need(not any("." in name for name in arrow.names), "dots in names")
    leaves: dict[str, list[int]] = {}
    for number in range(len(schema.names)):
        leaves.setdefault(schema.column(number).path.split(".")[0], []).append(number)
    for name, kind in types.items():
        need(lowercase.count(name.casefold()) == 1 and name in arrow.names, f"the files differ in {name}")
        need(_is_alike(kind, arrow.field(name).type), f"{name} is {arrow.field(name).type} in a file")
        paths = list(_leaves(re.escape(name), kind))
        need(len(paths) == len(leaves[name]), f"the parts of {name}")
        for number, (path, leaf) in zip(leaves[name], paths, strict=True):
            column = schema.column(number)
            fits = re.fullmatch(path, column.path) and column.physical_type == leaf.physical
            need(bool(fits) and _logical(column) in leaf.logical, f"{column.path} is stored otherwise")
    return [number for name in types for number in leaves[name]]


def _leaves(path: str, kind: DataType) -> Iterator[tuple[str, _Leaf]]:
    """Yield the simple types that a type is made of, and a pattern of where each lies in a file."""
    if isinstance(kind, ArrayType):
        yield from _leaves(path + r"\.list\.(?:element|item)", kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            need("." not in field.name, "dots in names")
            yield from _leaves(rf"{path}\.{re.escape(field.name)}", field.dataType)
    else:
        yield path, _leaf(kind)


def _leaf(kind: DataType) -> _Leaf:
    if type(kind) not in _LEAVES or getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":
        raise OtherRoad(f"the type {kind.simpleString()}")
    return _LEAVES[type(kind)]


def _logical(column: Any) -> str:
    """Return the word for a column's logical type, with the parameters that matter."""
    logical = json.loads(column.logical_type.to_json())
    if logical["Type"] == "Int":
        return f"{'Int' if logical['isSigned'] else 'UInt'}{logical['bitWidth']}"
    if logical["Type"] == "Timestamp":
        need(logical["timeUnit"] == "microseconds", f"timestamps in {logical['timeUnit']}")
        return "Timestamp" if logical["isAdjustedToUTC"] else "LocalTimestamp"
    return str(logical["Type"])


def _is_alike(kind: DataType, arrow: pa.DataType) -> bool:
    """Say whether Arrow's values need at most another form, and no other values, to be of Spark's type."""
    if isinstance(kind, ArrayType):
        lists = kinds.is_list(arrow) or kinds.is_large_list(arrow) or kinds.is_fixed_size_list(arrow)
        return bool(lists) and _is_alike(kind.elementType, arrow.value_type)
    if isinstance(kind, StructType):
        return (
            bool(kinds.is_struct(arrow))
            and [field.name for field in arrow] == kind.names
            and all(_is_alike(field.dataType, arrow[i].type) for i, field in enumerate(kind.fields))
        )
    own = _leaf(kind).arrow
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return bool(arrow == own or arrow == large.get(own))


def _arrow_type(kind: DataType) -> pa.DataType:
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _arrow_type(kind.elementType)))
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow_type(field.dataType)) for field in kind.fields])
    return _leaf(kind).arrow


def _holds_dates(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_dates(kind.elementType)
    if isinstance(kind, StructType):
        return any(_holds_dates(field.dataType) for field in kind.fields)
    return isinstance(kind, _DATED)


def _middle(group: pq.RowGroupMetaData) -> int:
    columns = [group.column(i) for i in range(group.num_columns)]
    first = columns[0].data_page_offset
    if columns[0].has_dictionary_page and 0 < columns[0].dictionary_page_offset < first:
        first = columns[0].dictionary_page_offset
    return int(first + sum(column.total_compressed_size for column in columns) // 2)
