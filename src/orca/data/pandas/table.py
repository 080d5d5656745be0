"""Tables in text files, read by Spark. Owns the meaning of pandas' keywords for Spark, and the checks of rows.

Spark reads files of any size in splits, and infers the types of columns. Columns with a dtype are read as text and
converted by Arrow: a code such as 007 keeps its zeros.
"""

from __future__ import annotations

import codecs
import csv
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orca.data.pandas.lines import UNREADABLE, CsvForm, CsvPlan, LineRange, guess, labels_of, read_form, study
from orca.data.pandas.paths import DataFile
from orca.data.slices import FRAME, SERIES
from orca.data.spark_frames import Assembly, computed, frame_shards, other_header
from orca.errors import ArgumentError, DataError
from orca.storage import hdfs

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import Accumulator
    from pyspark.sql import DataFrame

    from orca.data.shard import SparkXShards

logger = logging.getLogger(__name__)
_CORRUPT = "_orca_corrupt"
_TRIAL = "orca.csv.trial"  # the property of the job that tries out a guess
_NO_TEXT = "\ufffd"  # the character that Spark reads for bytes that are no text
_EXCERPT = 80
_UNIT = "\x1f"
_PATTERN = re.compile(r"[\\^$.|?*+()\[\]{}]")  # pandas takes a separator with one of these for a regular expression
_JSON_LINES = "Each line must be one; pass lines=False for files that are one array of objects."
_CHARSETS = {
    "utf-8": "UTF-8", "utf-8-sig": "UTF-8", "ascii": "US-ASCII", "iso8859-1": "ISO-8859-1", "utf-16": "UTF-16",
    "utf-16-be": "UTF-16BE", "utf-16-le": "UTF-16LE", "utf-32": "UTF-32",
}  # fmt: skip


def shards_of_csv(
    paths: list[str],
    header: Any = "infer",
    names: Sequence[Any] | None = None,
    usecols: Any = None,
    dtype: Any = None,
    squeeze: bool = False,
    index_col: Any = None,
    sep: str | None = None,
    delimiter: str | None = None,
    quotechar: str = '"',
    escapechar: str | None = None,
    comment: str | None = None,
    skipinitialspace: bool = False,
    na_values: str | None = None,
    encoding: str | None = None,
    encoding_errors: str = "strict",
    on_bad_lines: str = "error",
) -> SparkXShards:
    """Return CSV files as XShards of pandas DataFrames; the keywords are those of pandas.read_csv.

    Raises:
        ArgumentError: A keyword has a value that Spark's reader does not support.
        DataError: There is nothing at a path, columns do not fit, or rows are malformed.
    """
    first = _has_header(header, names)
    _check_word("encoding_errors", encoding_errors, ("strict", "replace"))
    _check_word("on_bad_lines", on_bad_lines, ("error", "skip"))
    if na_values is not None and not isinstance(na_values, str):
        raise ArgumentError(
            f"na_values must be one text where Spark reads the files; got {na_values!r}. pandas takes more: "
            "OrcaContext.pandas_read_backend = 'pandas'."
        )
    separator = sep or delimiter or ","
    if len(separator) > 1 and separator != r"\t" and set(separator) != {"|"} and _PATTERN.search(separator):
        raise ArgumentError(
            f"sep is plain text where Spark reads the files; got {separator!r}, which pandas takes for a regular "
            "expression. pandas splits by it: OrcaContext.pandas_read_backend = 'pandas'."
        )
    options = {
        "sep": separator, "quote": quotechar, "escape": escapechar or quotechar, "comment": comment,
        "nullValue": na_values, "encoding": _charset(encoding), "header": first, "preferDate": False,
        "columnPruning": False, "ignoreLeadingWhiteSpace": skipinitialspace,
    }  # fmt: skip
    exact = first and names is None  # then all files must have the same header
    columns_of = partial(_Columns, dtype=dtype, index_col=index_col, squeeze=squeeze)
    if not (escapechar or comment or skipinitialspace):
        try:
            form, files = read_form(paths, separator, quotechar, _charset(encoding), first, exact, na_values)
        except UNREADABLE as error:
            logger.debug("Spark's parser reads %s: %s", paths, error)
        else:
            shards = _shards_by_arrow(form, files, columns_of(*_chosen(form.labels(), names, usecols)))
            if shards is not None:
                return shards
    frame = loaded("csv", paths, {**options, "inferSchema": dtype is None or isinstance(dtype, Mapping)})
    header = frame.columns
    labels = _header(paths, options, header, exact) if first else range(len(header))
    columns = columns_of(*_chosen(labels, names, usecols))
    # Spark's own names for duplicate and empty names are not those of the header.
    options["enforceSchema"] = not exact or labels != header
    _refuse_open_quotes(paths, OpenQuotes(separator, quotechar, escapechar, skipinitialspace), comment)
    bad_rows = BadCsvRows(len(header), separator, quotechar, escapechar, on_bad_lines == "skip")
    text = encoding_errors == "replace" or encoding or "UTF-8"
    return _shards("csv", paths, options, frame, columns, bad_rows, text)


def _header(paths: list[str], options: Mapping[str, Any], columns: list[str], exact: bool) -> list[Any]:
    """Return the names that pandas makes from the header: Spark has others for duplicate and empty names.

    Raises:
        DataError: Such files have different headers; Spark does not compare them.
    """
    from pyspark.sql import functions as F

    if not any(name.endswith(str(number)) for number, name in enumerate(columns)):
        return columns
    lines = loaded("csv", paths, {**options, "header": False, "nullValue": None})
    cells = F.array(*(F.coalesce(F.col(f"`{name}`"), F.lit("")) for name in lines.columns))
    path, place = F.col("_metadata.file_path"), F.monotonically_increasing_id()
    begins = lines.where("_metadata.file_block_start = 0")
    begins = begins.select(path.alias("path"), cells.alias("cells"), place.alias("place"))
    firsts = begins.groupBy("path").agg(F.min_by("cells", "place").alias("cells")).orderBy("path").collect()
    if not firsts or len(firsts[0].cells) != len(columns):
        return columns
    labels = labels_of(firsts[0].cells)
    for row in firsts[1:] if exact and labels != columns else []:
        if [cell.lower() for cell in row.cells] != [cell.lower() for cell in firsts[0].cells]:  # as Spark compares
            raise other_header(row.path, ", ".join(row.cells))
    return labels


def _shards_by_arrow(form: CsvForm, files: list[DataFile], columns: _Columns) -> SparkXShards | None:
    """Return CSV files as Arrow reads them; None if Spark might read them differently."""
    from orca.cluster.context import OrcaContext

    session = OrcaContext.get_spark_session()
    dtypes, finish, check = columns.work(_refuse_json, None)
    as_text = {number: number in dtypes for number in columns.positions}
    for plan_of in (guess, study) if OrcaContext._eager_mode else (study,):
        try:
            plan = plan_of(session, form, files, as_text)
        except UNREADABLE as error:
            logger.debug("%s of %s: %s", plan_of.__name__, files[0].path, error)
            continue
        template = check.converted(pa.RecordBatch.from_pylist([], plan.schema()))
        assembly = Assembly(finish.labels, template.schema, OrcaContext._shard_size, finish)
        problems = session.sparkContext.accumulator(0)
        reading = ArrowReading(plan, check, assembly, None if plan.known else problems)
        rdd = session.sparkContext.parallelize(plan.groups, len(plan.groups)).mapPartitions(hdfs.Reaching(reading))
        session.sparkContext.setLocalProperty(_TRIAL, "true")
        try:
            shards = computed(rdd, SERIES if columns.squeeze else FRAME)
        finally:
            session.sparkContext.setLocalProperty(_TRIAL, None)  # type: ignore[arg-type]
        if not problems.value:
            return shards
        shards.uncache()
    return None


def _refuse_open_quotes(paths: list[str], open_quotes: OpenQuotes, comment: str | None) -> None:
    """Refuse cells of several lines: Spark would take each line for a row, and might not notice."""
    from pyspark.sql import functions as F

    line = F.col("value")
    lines = loaded("text", paths, {}).where(line.contains(open_quotes.quote))
    lines = lines.where(~line.startswith(comment)) if comment else lines
    for row in lines.select(line.cast("binary")).mapInArrow(open_quotes, "line binary").take(1):
        text = row.line.decode(errors="replace")
        raise DataError(
            f"Error tokenizing data: a quote is not closed in the line {text[:_EXCERPT]!r}. Spark reads line by line; "
            "for fields of several lines: OrcaContext.pandas_read_backend = 'pandas'."
        )


def shards_of_json(
    paths: list[str],
    names: Sequence[Any] | None = None,
    usecols: Any = None,
    dtype: Any = None,
    squeeze: bool = False,
    index_col: Any = None,
    lines: bool = True,
    encoding: str | None = None,
) -> SparkXShards:
    """Return JSON files as XShards of pandas DataFrames.

    Args:
        paths: Files of one object a line; with lines=False each is one array of objects, read by one task.
        names: Names for the columns, which Spark sorts alphabetically.
        usecols: As in read_csv.
        dtype: As in read_csv.
        squeeze: As in read_csv.
        index_col: As in read_csv.
        lines: Whether each line is an object.
        encoding: The encoding of the files.

    Raises:
        DataError: There is nothing at a path, columns do not fit, or rows are malformed.
    """
    options = {"multiLine": not lines, "encoding": _charset(encoding), "columnNameOfCorruptRecord": _CORRUPT}
    frame = loaded("json", paths, options)
    frame = frame.drop(_CORRUPT)
    if not frame.columns:
        raise DataError(f"there is no JSON object in {', '.join(paths)}. {_JSON_LINES}")
    labels, positions = _chosen(frame.columns, names, usecols)
    columns = _Columns(labels, positions, dtype, index_col, squeeze)
    return _shards("json", paths, options, frame, columns, _refuse_json, encoding or "UTF-8")


def loaded(kind: str, paths: list[str], options: Mapping[str, Any], schema: Any = None) -> DataFrame:
    """Return files as Spark reads them.

    Raises:
        DataError: There is nothing at a path, or no column in the files.
    """
    from pyspark.errors import AnalysisException

    from orca.cluster.context import OrcaContext

    settings = {name: value for name, value in options.items() if value is not None}
    session = OrcaContext.get_spark_session()
    reader = session.read.format(kind).options(**settings)
    places = ["s3a" + path[2:] if path.startswith("s3:") else path for path in paths]  # Hadoop's name for it
    places = _looked_up(session, places[0]) if len(places) == 1 else places
    try:
        frame = (reader if schema is None else reader.schema(schema)).load(places)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise _no_path(paths) from None
        if "UNABLE_TO_INFER_SCHEMA" in str(error):
            raise _no_columns(paths) from None
        raise
    if not frame.columns:
        raise _no_columns(paths)
    return frame


def _looked_up(session: Any, path: str) -> list[str]:
    """Return the paths that one path or glob matches: Spark itself would log a stack trace for a glob or missing file.

    Raises:
        DataError: There is nothing, or Spark has no client for such paths.
    """
    from py4j.protocol import Py4JJavaError

    place = session._jvm.org.apache.hadoop.fs.Path(path)
    try:
        files = place.getFileSystem(session._jsc.hadoopConfiguration())
        if files.exists(place):
            return [path]
        matches = files.globStatus(place)
    except Py4JJavaError as error:
        raise DataError(
            f"Spark cannot open {path}: {error.java_exception.toString()}. pandas opens paths through fsspec: "
            "OrcaContext.pandas_read_backend = 'pandas'."
        ) from None
    if not matches:
        raise _no_path([path])
    return [str(match.getPath().toString()) for match in matches]


def _no_path(paths: list[str]) -> DataError:
    return DataError(f"Path does not exist: {', '.join(paths)}. Check the path; workers must reach it too.")


def _no_columns(paths: list[str]) -> DataError:
    return DataError(f"No columns to parse from file: there is no content at {', '.join(paths)}. Check the path.")


def _charset(encoding: str | None) -> str | None:
    """Return Java's name of an encoding of Python's."""
    if encoding is None:
        return None
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise ArgumentError(f"encoding must be one that Python knows; got {encoding!r}.") from None
    if name not in _CHARSETS:
        raise ArgumentError(
            f"Spark reads files in {', '.join(_CHARSETS)}; got encoding={encoding!r}. pandas reads more: "
            "OrcaContext.pandas_read_backend = 'pandas'."
        )
    return _CHARSETS[name]


# Columns


@dataclass(frozen=True)
class _Columns:
    """The caller's columns: all labels, the positions in use, and their dtypes and index."""

    labels: list[Any]
    positions: list[int]
    dtype: Any
    index_col: Any
    squeeze: bool

    def work(
        self, bad_rows: Callable[[pa.Array], np.ndarray], encoding: str | None
    ) -> tuple[dict[int, Any], Finish, BlockCheck]:
        """Return the dtypes by position, and the workers' functions for shards and for blocks."""
        dtypes = _dtypes(self.dtype, self.labels)
        labels = [self.labels[number] for number in self.positions]
        by_label = {self.labels[number]: dtypes[number] for number in self.positions if number in dtypes}
        finish = Finish(tuple(labels), by_label, _index(self.index_col, labels), self.squeeze)
        return dtypes, finish, BlockCheck(bad_rows, tuple(labels), encoding, finish.arrow_types())


def _shards(
    kind: str,
    paths: list[str],
    options: Mapping[str, Any],
    frame: DataFrame,
    columns: _Columns,
    bad_rows: Callable[[pa.Array], np.ndarray],
    text: Any,
) -> SparkXShards:
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    dtypes, finish, check = columns.work(bad_rows, None if text is True else str(text))
    fields = [
        StructField(field.name, StringType() if number in dtypes else field.dataType)
        for number, field in enumerate(frame.schema.fields)
    ]
    for one in fields:
        one.dataType = LongType() if one.dataType == IntegerType() else one.dataType  # as pandas reads integers
    schema = StructType([*fields, StructField(_CORRUPT, StringType())])
    options = {**options, "columnNameOfCorruptRecord": _CORRUPT, "mode": "PERMISSIVE"}
    rows = loaded(kind, paths, options, schema)
    rows = rows.toDF(*map(str, range(len(fields))), _CORRUPT).select(*map(str, columns.positions), _CORRUPT)
    return frame_shards(rows, check, finish, SERIES if columns.squeeze else FRAME)


def _has_header(header: Any, names: Any) -> bool:
    if header not in ("infer", None, 0) or isinstance(header, bool):
        raise ArgumentError(
            f"header must be 'infer', 0 or None where Spark reads the files; got {header!r}. "
            "pandas takes more: OrcaContext.pandas_read_backend = 'pandas'."
        )
    return names is None if header == "infer" else header == 0


def _check_word(name: str, value: Any, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise ArgumentError(
            f"{name} must be {' or '.join(map(repr, legal))} where Spark reads the files; got {value!r}. "
            "pandas takes more: OrcaContext.pandas_read_backend = 'pandas'."
        )


def _chosen(header: Sequence[Any], names: Sequence[Any] | None, usecols: Any) -> tuple[list[Any], list[int]]:
    """Return the labels of all columns, and the positions of those in use, in the order of the file."""
    labels, width = list(header if names is None else names), len(header)
    if len(set(labels)) < len(labels):
        raise DataError(f"names must differ from each other; got {labels}.")
    usecols = [usecols] if isinstance(usecols, str) else usecols
    numbers = None if usecols is None or callable(usecols) else list(usecols)
    by_position = numbers is not None and all(isinstance(one, int | np.integer) for one in numbers)
    if len(labels) != width:
        if not by_position or numbers is None or len(labels) != len(set(numbers)):
            hint = "" if usecols is None else f"Passed names did not match usecols {usecols!r}: "
            raise DataError(f"{hint}names has {len(labels)} column(s), the files have {width}. Name every column.")
        for number, name in zip(sorted(set(numbers)), names or (), strict=True):
            header = [*header[:number], name, *header[number + 1 :]]
        labels = list(header)
    if usecols is None:
        return labels, list(range(width))
    strange = [one for one in numbers or () if (one not in range(width) if by_position else one not in labels)]
    if strange:
        raise DataError(f"Passed names did not match usecols: {strange} not among the columns {labels}.")
    if numbers is None:
        positions = [number for number, label in enumerate(labels) if usecols(label)]
    else:
        positions = sorted({one if by_position else labels.index(one) for one in numbers})
    if not positions:
        raise DataError(f"usecols chooses none of the columns {labels}.")
    return labels, positions


def _dtypes(dtype: Any, labels: list[Any]) -> dict[int, Any]:
    """Return dtypes by the position of their column."""
    if dtype is None:
        return {}
    if not isinstance(dtype, Mapping):
        return dict.fromkeys(range(len(labels)), dtype)
    positions = {**dict(enumerate(range(len(labels)))), **{label: number for number, label in enumerate(labels)}}
    strange = [key for key in dtype if key not in positions]
    if strange:
        raise DataError(f"dtype names columns {strange}, which are not among the columns {labels}.")
    return {positions[key]: value for key, value in dtype.items()}


def _index(index_col: Any, labels: list[Any]) -> list[Any]:
    if index_col is None or index_col is False:
        return []
    keys = []
    for one in index_col if isinstance(index_col, list | tuple) else [index_col]:
        if one not in labels and (isinstance(one, str) or one not in range(len(labels))):
            raise DataError(
                f"The column index to be set {one} is not in current dataframe, whose columns are {labels}."
            )
        keys.append(one if one in labels else labels[one])
    return keys


# On the workers


@dataclass(frozen=True)
class ArrowReading:
    """The reader of a task's lines as shards.

    Args:
        plan: The plan by which Arrow reads.
        check: Checks and converts blocks of rows.
        assembly: Makes shards of blocks.
        problems: Counts tasks whose lines do not fit the plan; None for a plan that is known to fit. When shards are
            computed again later, nobody reads it: such a task fails.
    """

    plan: CsvPlan
    check: BlockCheck
    assembly: Assembly
    problems: Accumulator[int] | None

    def __call__(self, groups: Iterable[list[LineRange]]) -> Iterator[Any]:
        """Yield the shards; those of a task that counts as a problem must not be used.

        Raises:
            DataError: A value is not of its column's dtype, or a file has changed.
        """
        for group in groups:
            yield from self.assembly.shards(map(self.check.converted, self._batches(group)))

    def _batches(self, group: list[LineRange]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        try:
            yield from self.plan.batches(group)
        except UNREADABLE as error:
            task = TaskContext.get()
            if self.problems is None or task is None or task.getLocalProperty(_TRIAL) is None:
                raise DataError(f"{group[0].path} has changed while it was read: {error}. Read it again.") from None
            logger.debug("%s: %s", group[0].path, error)
            self.problems.add(1)


@dataclass(frozen=True)
class BlockCheck:
    """A function that drops malformed rows of a block and converts columns with a dtype.

    Args:
        bad_rows: Takes the rows that Spark marked as malformed; returns a mask of those to drop, or raises.
        labels: The columns, for messages.
        encoding: The encoding of the files; None for any.
        types: Arrow types of text columns, by position.
    """

    bad_rows: Callable[[pa.Array], np.ndarray]
    labels: tuple[Any, ...]
    encoding: str | None
    types: Mapping[int, pa.DataType]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the block without its last column, which marks malformed rows.

        Raises:
            DataError: A row is malformed, or a value is not of its column's dtype.
        """
        marks = batch.column(batch.num_columns - 1)
        if marks.null_count < len(marks):
            keep = np.ones(len(marks), bool)
            places = np.flatnonzero(marks.is_valid())
            keep[places[self.bad_rows(marks.drop_null())]] = False
            batch = batch.filter(pa.array(keep))
        return self.converted(batch)

    def converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that have labels.

        Raises:
            DataError: A value is not of its column's dtype.
        """
        columns = [self._converted(number, batch.column(number)) for number in range(len(self.labels))]
        return pa.RecordBatch.from_arrays(columns, batch.schema.names[: len(columns)])

    def _converted(self, number: int, column: pa.Array) -> pa.Array:
        label = self.labels[number]
        if self.encoding and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            if pc.any(pc.match_substring(column, _NO_TEXT)).as_py():
                raise DataError(
                    f"column {label!r} holds bytes that are not {self.encoding}. Pass encoding='latin-1', or the "
                    "files' own encoding; encoding_errors='replace' keeps such text with marks in it."
                )
        if number not in self.types:
            return column
        try:
            return pc.utf8_trim_whitespace(column).cast(self.types[number])
        except pa.ArrowInvalid as error:
            raise DataError(f"column {label!r} is not all of its dtype: {error}.") from None


@dataclass(frozen=True)
class OpenQuotes:
    """A function that finds the lines that end inside of quotes."""

    separator: str
    quote: str
    escape: str | None
    blanks: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield those lines, of lines with quotes."""
        pattern = self._pattern()
        for batch in batches:
            lines = batch.column(0)
            if not self.escape:
                lines = lines.filter(pc.equal(pc.bit_wise_and(pc.count_substring(lines, self.quote), 1), 1))
            cells = pc.replace_substring(lines, self.separator.encode(), _UNIT.encode())
            yield pa.RecordBatch.from_arrays([lines.filter(pc.match_substring_regex(cells, pattern))], ["line"])

    def _pattern(self) -> str:
        """Return the regular expression of whole cells, then one with an opening quote and no closing one."""
        q, e = re.escape(self.quote), re.escape(self.escape or "")
        blanks, first = (r"[ \t]*", rf"[^{q}{_UNIT} \t]") if self.blanks else ("", f"[^{q}{_UNIT}]")
        # An escape other than the quote: two quotes end a cell as one does.
        inside, after = (f"(?:[^{q}{e}]|{e}.)*", "") if self.escape else (f"(?:[^{q}]|{q}{q})*", f"{q}")
        cell = f"{blanks}{q}{inside}{q}(?:[^{after}{_UNIT}][^{_UNIT}]*)?"
        return f"(?s)^(?:(?:{cell}|{blanks}{first}[^{_UNIT}]*|{blanks}){_UNIT})*{blanks}{q}{inside}$"


@dataclass(frozen=True)
class BadCsvRows:
    """A function that finds rows with too many fields. Rows with too few are filled up, as in pandas."""

    width: int
    separator: str
    quote: str
    escape: str | None
    skip: bool

    def __call__(self, lines: pa.Array) -> np.ndarray:
        """Return a mask of the rows to drop.

        Raises:
            DataError: There are such rows, and `skip` is false.
        """
        separators = pc.count_substring(lines, self.separator).to_numpy(zero_copy_only=False)
        bad = np.zeros(len(lines), bool)
        for number in np.flatnonzero(separators >= self.width):
            line = lines[number].as_py()
            text = line.replace(self.separator, _UNIT)  # csv knows no separator of several characters
            fields = next(csv.reader([text], delimiter=_UNIT, quotechar=self.quote, escapechar=self.escape))
            bad[number] = len(fields) > self.width
            if bad[number] and not self.skip:
                raise DataError(
                    f"Error tokenizing data: expected {self.width} fields, saw {len(fields)} in the line "
                    f"{line[:_EXCERPT]!r}. on_bad_lines='skip' leaves such lines out."
                )
        return bad


def _refuse_json(lines: pa.Array) -> np.ndarray:
    raise DataError(f"no JSON object: {lines[0].as_py()[:_EXCERPT]!r}. {_JSON_LINES}")


@dataclass(frozen=True)
class Finish:
    """A function that sets the labels, dtypes and index of a shard."""

    labels: tuple[Any, ...]
    dtypes: Mapping[Any, Any]
    index: list[Any] = field(default_factory=list)
    squeeze: bool = False

    def __call__(self, shard: pd.DataFrame) -> Any:
        """Return the shard.

        Raises:
            DataError: A column has missing values, which its dtype does not allow.
        """
        shard.columns = list(self.labels)
        for label, dtype in self.dtypes.items():
            try:
                shard[label] = shard[label].astype(dtype)
            except (ValueError, TypeError) as error:
                raise DataError(f"column {label!r} is not all of dtype {dtype}: {error}.") from None
        shard = shard.set_index(self.index) if self.index else shard
        return shard.squeeze(axis=1) if self.squeeze else shard

    def arrow_types(self) -> dict[int, pa.DataType]:
        """Return the types that Arrow converts text to, by position: those of numbers and booleans."""
        types = {}
        for label, dtype in self.dtypes.items():
            try:
                kind = np.dtype(dtype)
            except TypeError:  # one of pandas' own
                continue
            if kind.kind in "biuf":
                types[self.labels.index(label)] = pa.from_numpy_dtype(kind)
        return types
