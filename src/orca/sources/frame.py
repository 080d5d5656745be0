"""FrameSource: a Spark DataFrame, classic or Connect. Owns choosing and unwrapping columns, and predict as a column."""

from __future__ import annotations

import operator
import pickle
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
)

from orca.core.columns import check_columns, not_numbers, output_names, single, squeeze
from orca.core.feed import SpoolRows, spool_parts, weigh
from orca.core.loading import hush_pyspark
from orca.core.source import DEFAULT_BATCH, DataSpec, Extent, Items, Shards
from orca.core.state import OutputSpec
from orca.errors import DataError
from orca.monitor.failures import carried_by, carrier_of, in_short, made_by_user
from orca.monitor.spark_logs import muted
from orca.monitor.verbosity import adopt, verbosity
from orca.rows.arrow import stretches, to_arrays, to_arrow, widened
from orca.rows.tree import flatten, map_tree, unflatten
from orca.sources.export import Export, is_here
from orca.sources.scan import LOOKUP, LookupTask, Scan, ScanPiece, looked_up, scan_of
from orca.sources.sparkplan import is_dealt

hush_pyspark()

Readers = Mapping[str, Callable[[Any, str], Any]]  # by column

_PARTS = ("train", "valid")
_UNKNOWN = 1 << 60  # Spark's planner gives such sizes where it does not know
_DENSE = 1  # the type of a dense ML vector, in its struct
_TYPES = {
    "float16": FloatType(),
    "bfloat16": FloatType(),
    "float32": FloatType(),
    "float64": DoubleType(),
    "bool": BooleanType(),
    "int8": ShortType(),
    "uint8": ShortType(),
    "int16": ShortType(),
    "uint16": IntegerType(),
    "int32": IntegerType(),
    "uint32": LongType(),
    "int64": LongType(),
}


class FrameSource:
    """A Spark DataFrame with feature and label columns."""

    def __init__(self, data: DataFrame, spec: DataSpec) -> None:
        if not _is_alive(data):
            raise DataError(
                "this DataFrame belongs to a Spark session that was stopped. Make it anew in the session of now; "
                "what is computed lazily, as predictions are, must be used before stop_orca_context().",
                code="session-stopped",
            )
        self.frame, self.columns, self.vectors = data, spec.columns, spec.vectors
        self.readers = dict(spec.readers)
        self.fields = data.schema.fields  # read once: through Spark Connect, each reading copies all of it
        self.have = [column.name for column in self.fields]
        self.batch_size = spec.batch_size or DEFAULT_BATCH
        check_columns(replace(self.columns, labels=self.columns.targets), self.have)
        if spec.weighted and self.columns.weight is None:
            raise DataError(
                f"rows with weights need the name of their column; got columns {self.have}. Pass sample_weight='…'.",
                code="missing-sample-weights",
            )
        if spec.labelled and not self.columns.labels:
            raise DataError(
                f"training and evaluation need label_cols for a DataFrame; got columns {self.have}. "
                "Pass label_cols=['…'].",
                code="missing-label-cols",
            )
        if spec.labelled and data.isStreaming:
            raise DataError(
                "training and evaluation need all rows, but a streaming DataFrame has no end. "
                "Write it to a table first and read that, or fit each batch in foreachBatch.",
                code="streaming-dataframe",
            )
        for name in self._names():
            if name in self.readers:
                continue
            _check_type(name, self._field(name).dataType, spec.numbers)

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a DataFrame of classic Spark or of Spark Connect."""
        if isinstance(data, DataFrame):
            return True
        connect = sys.modules.get("pyspark.sql.connect.dataframe")
        return connect is not None and isinstance(data, connect.DataFrame)

    def extent(self) -> Extent:
        """Return the estimate of Spark's planner; there is none for streams, or over Connect."""
        if self.frame.isStreaming or not hasattr(self.frame, "_jdf"):
            return Extent()
        stats = self.frame._jdf.queryExecution().optimizedPlan().stats()
        size, rows = int(str(stats.sizeInBytes())), stats.rowCount()
        return Extent(int(str(rows.get())) if rows.isDefined() else None, size if size < _UNKNOWN else None)

    def shards(self, ranks: int, valid: FrameSource | None = None) -> Shards:
        """Cut the rows evenly over the ranks; validation rows travel with them, tagged.

        Ranks read the files of plain scans themselves: of these, nothing is kept.
        """
        sources = [self] if valid is None else [self, valid]
        scans = [scan_of(source._chosen()) for source in sources]
        readers = [scan for scan in scans if scan is not None]
        # Spark gives columns of different types one that holds both.
        alike = len(readers) == len(sources) and all(scan.types == readers[0].types for scan in readers)
        here = is_here(self.frame.sparkSession)
        pieces = _pieces(readers, ranks, here) if alike else []

        def dealt(parts: int) -> DataFrame:
            first, *others = (source._tagged(part) for part, source in enumerate(sources))
            return deal(first.union(*others) if others else first, parts)

        export = Export(dealt, ranks)
        return Shards(
            OpenFrame(
                len(self.columns.features),
                len(self.columns.labels),
                self._names(),
                _PARTS[: len(sources)],
                weighted=self.columns.weight is not None,
                readers=self.readers,
            ),
            portable=(lambda: pieces) if pieces and here else export,
            home="spark",
            native=pieces or dealt(ranks),
            release=export.release,
        )

    def answer(self, task: Any, engine: Any) -> DataFrame:
        """Return the DataFrame with the prediction column(s): nothing runs until it is used."""
        output: OutputSpec = task.output or self.look(task)
        cells = self._predictions(output)
        self._check_free(tuple(cells))
        kinds = [_spark_type(*head) for head in output.heads]
        float_types = tuple("float64" if isinstance(_value(kind), DoubleType) else "float32" for kind in kinds)
        places = tuple(self.have.index(name) for name in self.columns.features)
        frame = self._numbered()
        heads = StructType([StructField(f"p{i}", kind) for i, kind in enumerate(kinds)])
        scan = scan_of(frame.select(*(f"c{place}" for place in places)), by_place=True) if LOOKUP else None
        if scan is None:
            fields = [StructField(f"c{i}", _travelling(field), field.nullable) for i, field in enumerate(self.fields)]
            schema = StructType([*fields, *heads.fields])
            work = FramePredictTask(
                task, self.columns.features, places, tuple(schema.names), self.batch_size, float_types, self.readers
            )
            result = frame.mapInArrow(work, schema)
            columns = [_restored(f"c{i}", field) for i, field in enumerate(self.fields)]
        else:
            names = (*(f"c{place}" for place in places), *heads.names)
            order = tuple(range(len(places)))
            work = FramePredictTask(
                task, self.columns.features, order, names, self.batch_size, float_types, self.readers, owned=True
            )
            result = looked_up(frame, LookupTask(work, scan.reader, self.batch_size), heads)
            columns = [_named(F.col(f"c{i}"), field) for i, field in enumerate(self.fields)]
        return result.select(*columns, *(cell.alias(name) for name, cell in cells.items()))

    def _predictions(self, output: OutputSpec) -> dict[str, Any]:
        """Return the prediction columns by their names, made of the heads p0, p1, ...

        The names of output_cols may be those of all heads, or of the items of a tuple, or of the entries of a dict or
        the dict itself.
        """
        heads = [self._head(i, shape) for i, (_, shape) in enumerate(output.heads)]
        whole = unflatten(output.structure, heads)
        is_dict = isinstance(whole, dict)
        parts = list(whole.values()) if is_dict else list(whole) if output.structure else [whole]
        ways = [[whole], parts] if is_dict else [parts]
        ways = [*ways, heads] if self.vectors else [heads, *ways]
        is_flat = len(parts) == len(heads) > 1 and all(map(operator.is_, parts, heads))
        if self.vectors and is_flat and all(len(shape) == 1 for _, shape in output.heads):
            ways = [[F.array(*heads)], *ways]  # several vectors are a list of them
        columns = next((way for way in ways if len(way) == len(self.columns.outputs)), ways[0])
        return dict(zip(output_names(self.columns, len(columns)), map(_struct, columns), strict=True))

    def _head(self, place: int, shape: tuple[int, ...]) -> Any:
        """Return a head as a column: in the JVM, an array becomes a vector without Python touching a row."""
        from pyspark.ml.functions import array_to_vector

        column = F.col(f"p{place}")
        if not self.vectors or len(shape) != 1:
            return column
        return array_to_vector((F.array(column) if shape == (1,) else column).cast("array<double>"))

    def _names(self) -> tuple[str, ...]:
        return (*self.columns.features, *self.columns.targets)

    def _field(self, name: str) -> StructField:
        return self.fields[self.have.index(name)]

    def _numbered(self) -> DataFrame:
        """Return the frame with its columns called c0, c1, ...: their own names may be alike, or hold dots."""
        return self.frame.toDF(*(f"c{i}" for i in range(len(self.have))))

    def _chosen(self) -> DataFrame:
        """Return the columns that ranks need, as they are."""
        return self._numbered().select(*(f"c{self.have.index(name)}" for name in self._names()))

    def _tagged(self, part: int) -> DataFrame:
        """Select the columns as c0, c1, ... with the number of the part they belong to."""
        cells = [self._plain(name).alias(f"c{i}") for i, name in enumerate(self._names())]
        return self._numbered().select(F.lit(part).cast("int").alias("part"), *cells)

    def _plain(self, name: str) -> Any:
        """Return a column as Arrow knows it: an ML vector, dense or sparse, as an array."""
        from pyspark.ml.functions import vector_to_array

        column = F.col(f"c{self.have.index(name)}")
        if not _is_vector(self._field(name).dataType):
            return column
        return F.when(column.isNotNull(), vector_to_array(column, "float32"))  # alone, it fails on a null

    def _check_free(self, names: tuple[str, ...]) -> None:
        """Check that no column has the name of a prediction, as Spark compares names."""
        clashes = {name.casefold() for name in self.have} & {name.casefold() for name in names}
        if clashes and str(self.frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true":
            clashes = set(self.have) & set(names)
        if clashes:
            have = next(name for name in self.have if name in clashes or name.casefold() in clashes)
            raise DataError(
                f"the DataFrame has the column {have!r} already. Name another with output_cols=['…'].",
                code="output-column-taken",
            )

    def look(self, task: Any) -> OutputSpec:
        """Learn the shape and type of answers from the first rows: the one case in which predict runs a job."""
        if self.frame.isStreaming:
            raise DataError(
                "predict cannot look at the rows of a streaming DataFrame. Fit or evaluate first.",
                code="streaming-dataframe",
            )
        cells = [f"c{self.have.index(name)}" for name in self.columns.features]
        first = self._numbered().select(*cells).limit(2)  # a model may drop the dimension of a single row
        task = DescribeTask(task, self.columns.features, self.readers)
        try:
            with muted(self.frame.sparkSession):
                answers = first.mapInArrow(task, "output binary").collect()
        except Exception as error:
            raise self._understood(error) from None
        if not answers:
            raise DataError(
                "predict cannot know the model's output from an empty DataFrame. Fit or evaluate first.", code="no-rows"
            )
        output: OutputSpec = pickle.loads(bytes(answers[0].output))
        return output

    def _understood(self, error: Exception) -> Exception:
        """Return Spark's exception as our own error if it carries one."""
        failure = carried_by(str(error))
        return failure.error() if failure else made_by_user(str(error)) or error


@dataclass(frozen=True)
class OpenFrame:
    """The spooling of a rank's record batches: columns become features, labels and weights by their place."""

    features: int
    labels: int
    names: tuple[str, ...]
    parts: tuple[str, ...]
    weighted: bool = False
    readers: Readers = field(default_factory=dict)

    def __call__(self, items: Items, folder: Path) -> dict[str, SpoolRows]:
        """Return the rows of each part."""
        return spool_parts(self._blocks(items), folder, self.parts)

    def _blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, Any, Any]]:
        for batch in _small(batches, DEFAULT_BATCH, self.readers):
            present = pc.unique(batch.column(0)).to_pylist()
            for number, part in enumerate(self.parts):
                if number not in present:
                    continue
                mine = batch if len(present) == 1 else batch.filter(pc.equal(batch.column(0), number))
                cells = tuple(_read(mine.column(i + 1), name, self.readers) for i, name in enumerate(self.names))
                x, labels = cells[: self.features], cells[self.features : self.features + self.labels]
                y = single(labels) if labels else None
                yield part, single(x), weigh(y, cells[-1]) if self.weighted else y


@dataclass(frozen=True)
class FramePredictTask:
    """Prediction columns added to record batches. The model sees full batches, whatever the size of those.

    Attributes:
        task: Gives the outputs for rows of features.
        features: The names of the features.
        places: Their places among the columns.
        names: The names of all columns of the answer, the predictions last.
        batch_size: Rows the model sees at a time.
        float_types: For each prediction, the type of a floating output of half precision.
        readers: How the features become arrays, where they are not just numbers.
        owned: Whether nobody reads the features afterwards: a model may write into them, so that it needs no copy.
        verbosity: How much the worker shows of an error.
    """

    task: Callable[[Any], Any]
    features: tuple[str, ...]
    places: tuple[int, ...]
    names: tuple[str, ...]
    batch_size: int
    float_types: tuple[str, ...]
    readers: Readers = field(default_factory=dict)
    owned: bool = False
    verbosity: str = field(default_factory=verbosity)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each record batch with its predictions; none waits for longer than it takes to fill a batch."""
        adopt(self.verbosity)
        try:
            yield from self._predicted(batches)
        except Exception as error:
            raise in_short(error) from None

    def _predicted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        queue: deque[pa.RecordBatch] = deque()
        batches = _small(batches, self.batch_size, self.readers)
        answers = _Answers()
        for stretch in stretches(_noted(batches, queue), self.batch_size):
            answers.add(flatten(self.task(self._arguments(stretch)))[0])
            while queue and queue[0].num_rows <= answers.rows:
                batch = queue.popleft()
                yield self._with_columns(batch, answers.take(batch.num_rows))

    def _arguments(self, stretch: list[pa.RecordBatch]) -> Any:
        """Return the features of consecutive slices as the model's arguments."""
        whole = stretch[0] if len(stretch) == 1 else pa.Table.from_batches(stretch)
        columns = [whole.column(place) for place in self.places]
        pairs = zip(columns, self.features, strict=True)
        x = single(tuple(_read(column, name, self.readers) for column, name in pairs))
        return _writable(x) if self.owned else x

    def _with_columns(self, batch: pa.RecordBatch, heads: list[np.ndarray]) -> pa.RecordBatch:
        arrays = [to_arrow(squeeze(widened(head, kind))) for head, kind in zip(heads, self.float_types, strict=True)]
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], names=self.names)


class _Answers:
    """The outputs for rows that are not handed out yet, in their order."""

    def __init__(self) -> None:
        self.rows = 0
        self._blocks: deque[list[np.ndarray]] = deque()

    def add(self, heads: list[np.ndarray]) -> None:
        """Take the outputs for the next rows."""
        self.rows += len(heads[0])
        self._blocks.append(heads)

    def take(self, rows: int) -> list[np.ndarray]:
        """Hand out the outputs for the first rows."""
        blocks: list[list[np.ndarray]] = []
        self.rows -= rows
        while rows:
            heads = self._blocks.popleft()
            if len(heads[0]) > rows:
                self._blocks.appendleft([head[rows:] for head in heads])
                heads = [head[:rows] for head in heads]
            blocks.append(heads)
            rows -= len(heads[0])
        return blocks[0] if len(blocks) == 1 else [np.concatenate(parts) for parts in zip(*blocks, strict=True)]


def _noted(batches: Iterable[pa.RecordBatch], queue: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that have rows and note down each."""
    for batch in batches:
        if batch.num_rows:
            queue.append(batch)
            yield batch


@dataclass(frozen=True)
class DescribeTask:
    """A task that tells the shape and type of the model's answers."""

    task: Callable[[Any], Any]
    features: tuple[str, ...]
    readers: Readers = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the description for the rows there are; all are read, or Spark would end this Python worker."""
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            table = pa.Table.from_batches(rows)
            try:
                x = single(tuple(_read(table.column(i), name, self.readers) for i, name in enumerate(self.features)))
                output = pickle.dumps(OutputSpec.of(self.task(x)))
            except Exception as error:
                raise carrier_of(0, socket.gethostname(), error) from None
            yield pa.RecordBatch.from_arrays([pa.array([output])], names=["output"])


@dataclass(frozen=True)
class _Memory:
    """The memory of an array, to write to."""

    array: np.ndarray

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, "data": (self.array.ctypes.data, False)}


def _writable(tree: Any) -> Any:
    """Return arrays that may be written to: Arrow marks all of its memory as read-only.

    A column that is there twice has its memory once: it stays as it is but for the first.
    """
    ids: set[int] = set()

    def writable(leaf: Any) -> Any:
        is_numeric = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" and leaf.size
        if not is_numeric or leaf.flags.writeable or leaf.ctypes.data in ids:
            return leaf
        ids.add(leaf.ctypes.data)
        return np.asarray(_Memory(leaf))

    return map_tree(writable, tree)


def _read(column: pa.Array | pa.ChunkedArray, name: str, readers: Readers) -> Any:
    return readers.get(name, to_arrays)(column, name)


def _small(batches: Iterable[pa.RecordBatch], rows: int, readers: Readers) -> Iterable[pa.RecordBatch]:
    """Return record batches, in pieces where a reader makes much more of a row than it is: an image, say."""
    if not any(getattr(getattr(reader, "__self__", reader), "grows", False) for reader in readers.values()):
        return batches
    return (batch.slice(at, rows) for batch in batches for at in range(0, batch.num_rows, rows))


def _pieces(scans: list[Scan], ranks: int, here: bool) -> list[Callable[[], Items]]:
    """Return the rows of each rank: of training and validation data by their order."""
    shares = zip(*(scan.deal(ranks) for scan in scans), strict=True)
    readers = [scan.reader for scan in scans]
    return [ScanPiece(tuple(zip(readers, share, strict=True)), here) for share in shares]


def deal(frame: DataFrame, ranks: int) -> DataFrame:
    """Deal the rows out evenly, one partition a rank; where they lie so, they stay."""
    if is_dealt(frame, ranks):
        return frame
    if not hasattr(frame, "repartitionById"):  # Spark < 4.1: dealt out as well, but sorted first
        return frame.repartition(ranks)
    row = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << 33) - 1)) + F.spark_partition_id()
    names = frame.columns
    rows = frame.withColumn("rank", (row % ranks).cast("int"))
    return rows.repartitionById(ranks, "rank").select(*names)


def _travelling(field: StructField) -> DataType:
    """Return the type in which a column passes through a task: a user-defined one as its struct."""
    kind: DataType = field.dataType
    if type(kind).__name__ in ("YearMonthIntervalType", "CalendarIntervalType"):
        raise DataError(
            f"column {field.name!r} has the type {kind.simpleString()}, which cannot pass through predict. Drop it, or "
            "cast it to a string before.",
            code="bad-column-type",
        )
    return kind.sqlType() if isinstance(kind, UserDefinedType) else kind


def _restored(place: str, field: StructField) -> Any:
    """Return a column that passed through a task as it was before, with its name and metadata.

    Only Spark's JSON reader makes values of user-defined types of their parts; a function makes dense vectors faster.
    """
    from pyspark.ml.functions import array_to_vector
    from pyspark.ml.linalg import VectorUDT

    column = F.col(place)
    if isinstance(field.dataType, UserDefinedType):
        whole = F.to_json(F.struct(column.alias("value")))
        value = F.from_json(whole, StructType([StructField("value", field.dataType)]))["value"]
        parts, value = column, F.when(column.isNotNull(), value)
        if isinstance(field.dataType, VectorUDT):  # of spark.ml: those of mllib are another type
            value = F.when(parts["type"] == _DENSE, array_to_vector(parts["values"])).otherwise(value)
        column = value
    return _named(column, field)


def _named(column: Any, field: StructField) -> Any:
    return column.alias(field.name, metadata=field.metadata) if field.metadata else column.alias(field.name)


def _is_vector(kind: DataType) -> bool:
    return isinstance(kind, UserDefinedType) and type(kind).__name__ == "VectorUDT"


def _value(kind: DataType) -> DataType:
    """Return the type of the values of an array of any depth."""
    return _value(kind.elementType) if isinstance(kind, ArrayType) else kind


def _check_type(name: str, kind: DataType, numbers: bool) -> None:
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _check_type(f"{name}.*", kind.valueType, numbers)
    if isinstance(kind, StructType) and kind.fields:
        for field in kind.fields:
            _check_type(f"{name}.{field.name}", field.dataType, numbers)
        return None
    if numbers and isinstance(_value(kind), StringType | DateType | TimestampType | TimestampNTZType):
        raise not_numbers(f"column {name!r}", "text" if isinstance(_value(kind), StringType) else "dates")
    simple = NumericType | BooleanType | BinaryType | StringType | DateType | TimestampType | TimestampNTZType
    if not isinstance(_value(kind), simple) and not _is_vector(kind):
        raise DataError(
            f"column {name!r} has the type {kind.simpleString()}, which cannot feed a model. Use numbers, booleans, "
            "arrays of them, ML vectors or binary; or structs, and maps with strings as keys, as dicts of these.",
            code="bad-column-type",
        )
    return None


def _struct(part: Any) -> Any:
    """Return a part of the output as a column: a dict or a tuple, whose fields are _1, _2, ..., as a struct."""
    if not isinstance(part, dict | tuple | list):
        return part
    fields = part.items() if isinstance(part, dict) else ((f"_{i}", field) for i, field in enumerate(part, 1))
    return F.struct(*(_struct(field).alias(str(name)) for name, field in fields))


def _spark_type(dtype: str, shape: tuple[int, ...]) -> DataType:
    """Return the type of a prediction: a number for one number a row, else an array as deep as the output."""
    if dtype not in _TYPES:
        raise DataError(
            f"the model's output has the type {dtype}, which Spark does not have. Return real numbers.",
            code="output-without-spark-type",
        )
    kind: DataType = _TYPES[dtype]
    for _ in () if shape == (1,) else shape:
        kind = ArrayType(kind)
    return kind


def _is_alive(frame: DataFrame) -> bool:
    """Return whether the Spark session of a DataFrame, classic or Connect, has not been stopped."""
    session: Any = frame.sparkSession
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return not session.is_stopped
    return session._sc._jsc is not None
