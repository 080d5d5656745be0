"""CSV read by Arrow: plain files, cut at the ends of lines. Owns the rules by which Arrow reads as Spark does.

Arrow reads many times as fast as Spark's parser, but parses some texts differently: it takes 0x1F for a number, and
needs all fields of every line. So the kinds of columns are guessed from the first lines, and workers check them while
they read. If a guess was wrong, or shards are computed later, workers look at all lines first. Files with anything that
Spark might read differently are read by Spark.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from orca.data.pandas.paths import DataFile, files_at
from orca.errors import DataError, OrcaError
from orca.storage import hdfs
from orca.storage.files import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREADABLE = (OrcaError, OSError, ValueError, ImportError)  # errors of files for Spark; Arrow's are ValueErrors
_BLOCK = 4 << 20  # bytes that are parsed at a time
_LINE = 1 << 16  # spare bytes after a block, for the rest of its last line
_SAMPLE = 1 << 20  # bytes from which the kinds of columns are guessed
_BOM = b"\xef\xbb\xbf"
_ENCODINGS = {"UTF-8": None, "ISO-8859-1": "latin-1"}  # supersets of ASCII
_COMPRESSION = re.compile(r"\.(gz|gzip|bz2|zst|zstd|lz4|snappy|deflate|xz|lzo)$", re.IGNORECASE)
_BLANK = re.compile(rb"(?m)^[\x00-\x09\x0b\x0c\x0e-\x20]+\r?$")  # a line of blanks, which Spark skips

# Kinds of columns. A column with one text is a column of text.
_NOTHING, _INTEGER, _NUMBER, _TIME, _TRUTH, _TEXT, _UNSURE = "nothing integer number time truth text unsure".split()
_TYPES = {
    _NOTHING: pa.string(), _INTEGER: pa.int64(), _NUMBER: pa.float64(), _TIME: pa.timestamp("us"), _TRUTH: pa.bool_(),
    _TEXT: pa.string(),
}  # fmt: skip
_TRUE, _FALSE = (["true", "True", "TRUE"], ["false", "False", "FALSE"])
# Bytes that a column may have, and its kind if Arrow can also read its cells as such.
_ALPHABETS = [
    (b"0123456789- \t", _INTEGER), (b"0123456789-+.eENa \t", _NUMBER), (b"0123456789-:. T", _TIME),
    ("".join(_TRUE + _FALSE).encode(), _TRUTH),
]  # fmt: skip
_FRACTION = r"^[ \t]*-?[0-9]*\.[0-9]+[ \t]*$|^NaN$"  # 1e9 and 99999999999999999999 alone are decimals to Spark
_TIME_LENGTHS = [10, 19, 21, 22, 23, 24, 25, 26]  # dates, seconds, fractions of seconds
_OLD = datetime(1900, 1, 1)  # zones had odd offsets before
_LOOK = 256  # cells of a block that are searched first for a text
# Neither a number, a time nor a boolean to Spark: it begins with a letter (T12:00 is a time), or has no digit.
_WORDS = r"^(?:[^\x00-\x20\pN+\-.:Tt].*|\PN*)$"
_NO_WORDS = r"(?i)^[\x00-\x20]*[+-]?(?:nan|inf|infinity|true|false)[\x00-\x20]*$"


@dataclass(frozen=True)
class LineRange:
    """The lines of a file that begin in the bytes from start to stop."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True)
class CsvForm:
    """The form of CSV lines.

    Attributes:
        separator: One byte.
        quote: One byte.
        encoding: Python's name where it is not UTF-8.
        header: The fields of the first line of every file; None where that is a row.
        exact: Whether all files must have this header.
        width: The fields of a line.
        null: The text of a missing value, besides the empty one.
    """

    separator: str
    quote: str
    encoding: str | None
    header: tuple[str, ...] | None
    exact: bool
    width: int
    null: str | None

    def rows(self, span: LineRange, columns: Mapping[int, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Yield columns, by position, of the lines of a range, a block at a time.

        Args:
            span: The range.
            columns: Types of columns.

        Raises:
            DataError: Arrow might read something differently from Spark.
        """
        integers = pa.int64() in columns.values()
        for block in self._blocks(span):
            cells = np.frombuffer(block, np.uint8)
            self._check(block)
            if integers and _has_hexadecimals(block):
                raise DataError("there may be hexadecimal numbers")
            if not bytes(block[:_LOOK]).isspace() or not bytes(block).isspace():
                batch = self._parsed(block, columns)
                self._check_rows(cells, batch.num_rows)
                yield batch

    def sample(self, path: str) -> pa.RecordBatch:
        """Return the first rows of a file, as text."""
        for batch in self.rows(LineRange(path, 0, _SAMPLE), dict.fromkeys(range(self.width), pa.string())):
            return batch
        return pa.RecordBatch.from_pydict({str(number): pa.array([], pa.string()) for number in range(self.width)})

    def _blocks(self, span: LineRange) -> Iterator[memoryview]:
        fs, place = filesystem(span.path)
        with fs.open(place, "rb") as file:
            begin = 0
            if span.start:
                file.seek(span.start - 1)
                begin = span.start - 1 + len(file.readline())
            elif self.header is not None:
                line = file.readline()
                begin = len(line)
                if self.fields(line) != self.header and self.exact:  # a blank line is refused in any case
                    raise DataError(f"the header of {span.path} differs")
            buffer = bytearray(min(_BLOCK, span.stop - begin) + _LINE if begin < span.stop else 0)
            while begin < span.stop:
                size = file.readinto(memoryview(buffer)[: min(_BLOCK, span.stop - begin)])
                if not size:
                    return
                rest = b"" if buffer[size - 1] == ord("\n") else file.readline()
                first, begin = begin == 0, begin + size + len(rest)
                if len(rest) <= _LINE:
                    buffer[size : size + len(rest)] = rest
                    block = memoryview(buffer)[: size + len(rest)]
                else:
                    block = memoryview(bytes(buffer[:size]) + rest)
                if block[: len(_BOM)] == _BOM and not first:
                    raise DataError("a line begins with a byte order mark")  # which Arrow strips from a block
                if self.encoding is not None:
                    block = memoryview(bytes(block).removeprefix(_BOM).decode(self.encoding).encode())
                yield block  # the next one overwrites it

    def fields(self, line: bytes) -> tuple[str, ...]:
        """Return the fields of the first line of a file.

        Raises:
            DataError: It is blank, or quotes are misplaced.
        """
        text = line.removeprefix(_BOM).rstrip(b"\r\n").decode(self.encoding or "utf-8")
        self._check(text.encode())
        if not text.strip() or "\r" in text:
            raise DataError("the first line is blank")
        return tuple(next(csv.reader([text], delimiter=self.separator, quotechar=self.quote)))

    def labels(self) -> list[Any]:
        """Return the names of columns as pandas makes them from a header; numbers without a header."""
        return list(range(self.width)) if self.header is None else labels_of(self.header)

    def _check(self, block: bytes | memoryview) -> None:
        """Refuse quotes inside of cells, cells of several lines, and lines of blanks."""
        if self.width == 1 or self.separator.isspace():
            if _BLANK.search(block):
                raise DataError("there are lines of blanks")
        cells = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(cells == ord(self.quote))
        if not len(quotes):
            return
        if self.null is not None:
            raise DataError("cells are quoted, and missing values have a text")
        if len(quotes) % 2:
            raise DataError("a quote is not closed")
        opening, closing = quotes[::2], quotes[1::2]
        # An opening quote follows a border, or a closing quote (two quotes are one escaped); and vice versa.
        beside = np.diff(quotes)[1::2] == 1
        opens = self._borders(cells[opening - 1]) | (opening == 0) | np.r_[False, beside]
        last = len(cells) - 1
        closes = self._borders(cells[np.minimum(closing + 1, last)]) | (closing == last) | np.r_[beside, False]
        if not opens.all() or not closes.all():
            raise DataError("quotes are inside of cells")

    def _borders(self, cells: np.ndarray) -> np.ndarray:
        return (cells == ord(self.separator)) | (cells == 10) | (cells == 13)

    def _check_rows(self, cells: np.ndarray, rows: int) -> None:
        """Refuse cells of several lines."""
        if rows != np.count_nonzero(cells == 10) + (cells[-1] != 10):
            ends = np.flatnonzero((cells == 10) | (cells == 13))  # some lines may be empty
            if (np.searchsorted(np.flatnonzero(cells == ord(self.quote)), ends) % 2).any():
                raise DataError("quotes are around several lines")

    def _parsed(self, block: memoryview, columns: Mapping[int, pa.DataType]) -> pa.RecordBatch:
        nulls = ["", *([] if self.null is None else [self.null])]
        try:
            table = pa.csv.read_csv(
                pa.BufferReader(block),
                pa.csv.ReadOptions(
                    use_threads=False, block_size=len(block) + 1, column_names=list(map(str, range(self.width)))
                ),
                pa.csv.ParseOptions(delimiter=self.separator, quote_char=self.quote),
                pa.csv.ConvertOptions(
                    include_columns=list(map(str, columns)),
                    column_types={str(number): kind for number, kind in columns.items()},
                    null_values=nulls,
                    strings_can_be_null=True,
                    true_values=_TRUE,
                    false_values=_FALSE,
                ),
                memory_pool=pa.system_memory_pool(),  # Arrow's own pools give pages back, only to ask for new ones
            )
        except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
            raise DataError(str(error)) from None
        (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        return batch


@dataclass(frozen=True)
class CsvPlan:
    """CSV files that Arrow reads: the lines of each task, and the kinds of the columns in use.

    Attributes:
        form: The form of lines.
        groups: The lines of each task.
        kinds: Kinds of columns by position.
        zone: The time zone in which times must exist.
        known: Whether all lines have been checked.
    """

    form: CsvForm
    groups: list[list[LineRange]]
    kinds: Mapping[int, str]
    zone: str
    known: bool

    def schema(self) -> pa.Schema:
        """Return the schema of `batches`, whose names are positions."""
        return pa.schema([(str(number), _TYPES[kind]) for number, kind in self.kinds.items()])

    def batches(self, group: Iterable[LineRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        Raises:
            DataError: The guess of the columns was wrong, or a file has changed.
        """
        # Times are cast after a look at their texts.
        columns = {n: pa.string() if kind == _TIME else _TYPES[kind] for n, kind in self.kinds.items()}
        for batch in itertools.chain.from_iterable(self.form.rows(span, columns) for span in group):
            cells = [self._checked(kind, cells) for kind, cells in zip(self.kinds.values(), batch.columns, strict=True)]
            yield pa.RecordBatch.from_arrays(cells, schema=self.schema())

    def _checked(self, kind: str, cells: pa.Array) -> pa.Array:
        if kind == _TIME:
            values = _cast(cells, kind) if self.known else _values(cells, kind, self.zone)
            if values is None:
                raise DataError("a column does not hold times alone")
            return values
        if not self.known:
            if kind == _NOTHING and cells.null_count < len(cells):
                raise DataError("a column holds values after many lines without any")
            if kind == _NUMBER and not pc.all(pc.is_finite(cells)).as_py():
                raise DataError("there are numbers that are not finite")
        return cells


def labels_of(header: Iterable[str]) -> list[Any]:
    """Return the names that pandas gives to the columns of a header, of which some may be equal or empty.

    Example:
        >>> labels_of(["a", "", "a"])
        ['a', 'Unnamed: 1', 'a.1']
    """
    labels: dict[Any, None] = {}
    for number, name in enumerate(header):
        label = f"Unnamed: {number}" if name == "" else name
        copies = (f"{label}.{copy}" for copy in itertools.count(1))
        labels[label if label not in labels else next(text for text in copies if text not in labels)] = None
    return list(labels)


def read_form(
    paths: list[str], separator: str, quote: str, charset: str | None, first: bool, exact: bool, null: str | None
) -> tuple[CsvForm, list[DataFile]]:
    """Return the form of the lines of files, and the files.

    Raises:
        DataError: Arrow cannot read them as Spark does.
        OSError: They cannot be read here.
    """
    encoding = _ENCODINGS.get(charset or "UTF-8", "")
    if encoding == "" or len(separator) != 1 or len(quote) != 1 or not (separator + quote).isascii():
        raise DataError("the encoding, the separator or the quote is not a byte for Arrow")
    if separator in "\r\n" or separator == quote:
        raise DataError("separator and quote are the same")
    files = files_at(paths)
    if any(_COMPRESSION.search(file.path) for file in files) or _has_folders(paths):
        raise DataError("files are compressed, or in folders of a folder")
    form = CsvForm(separator, quote, encoding, None, exact, 2, null)
    fs, place = filesystem(files[0].path)
    with fs.open(place, "rb") as file:
        fields = form.fields(file.readline())
    return CsvForm(separator, quote, encoding, fields if first else None, exact, len(fields), null), files


def guess(session: SparkSession, form: CsvForm, files: list[DataFile], columns: Mapping[int, bool]) -> CsvPlan:
    """Return a plan for files whose lines are all like the first ones.

    Args:
        session: The session, whose settings limit the size of a task.
        form: The form of lines.
        files: The files.
        columns: Positions of the columns in use, and whether each is read as text.

    Raises:
        DataError: The first lines do not determine the kinds of columns.
    """
    groups, zone = _groups(session, files), _zone(session)
    sample = form.sample(files[0].path)
    kinds = {n: _TEXT if as_text else _kind_of(sample.column(n), zone) for n, as_text in columns.items()}
    if _UNSURE in kinds.values():
        raise DataError("the first lines do not determine the kinds of columns")
    return CsvPlan(form, groups, kinds, zone, known=False)


def study(session: SparkSession, form: CsvForm, files: list[DataFile], columns: Mapping[int, bool]) -> CsvPlan:
    """Return a plan for files, after workers have looked at all lines. The arguments are those of `guess`.

    Raises:
        DataError: Arrow cannot read them as Spark does.
    """
    groups, zone = _groups(session, files), _zone(session)
    look = ColumnLook(form, dict(columns), zone)
    findings = session.sparkContext.parallelize(groups, len(groups)).mapPartitions(hdfs.Reaching(look)).collect()
    problems = [problem for problem, _ in findings if problem]
    if problems:
        raise DataError(problems[0])
    kinds = [reduce(_merged, column) for column in zip(*(kinds for _, kinds in findings), strict=True)]
    if _UNSURE in kinds:
        raise DataError(f"column {list(columns)[kinds.index(_UNSURE)]} holds values of several kinds, or of rare forms")
    return CsvPlan(form, groups, dict(zip(columns, kinds, strict=True)), zone, known=True)


def _groups(session: SparkSession, files: list[DataFile]) -> list[list[LineRange]]:
    names = {"spark.sql.files.maxPartitionBytes": "128MB", "spark.sql.files.openCostInBytes": "4MB"}
    to_bytes = session._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes  # type: ignore[union-attr]
    largest, opening = (int(to_bytes(session.conf.get(name, usual))) for name, usual in names.items())
    return line_ranges(files, session.sparkContext.defaultParallelism, largest, opening)


def _zone(session: SparkSession) -> str:
    return str(session.conf.get("spark.sql.session.timeZone"))


def line_ranges(files: Sequence[DataFile], tasks: int, largest: int, opening: int) -> list[list[LineRange]]:
    """Return the ranges of lines that each task reads, in the order of the files; sizes are chosen as Spark does.

    Files of more than one round of tasks are read in rounds of one size, so that no core waits in the last one.

    Args:
        files: The files.
        tasks: How many run at a time.
        largest: The most bytes of a task.
        opening: The cost of opening a file, in bytes.

    Example:
        >>> groups = line_ranges([DataFile("a", 5), DataFile("b", 2), DataFile("c", 1)], 2, 100, 0)
        >>> [[(span.path, span.start, span.stop) for span in group] for group in groups]
        [[('a', 0, 4)], [('a', 4, 5), ('b', 0, 2), ('c', 0, 1)]]
    """
    size = sum(file.size for file in files)
    rounds = max(1, -(-size // (tasks * largest)))
    most = min(largest, max(opening, -(-(size + opening * len(files)) // (tasks * rounds)), 1))
    groups: list[list[LineRange]] = [[]]
    have = 0
    for file in files:
        for start in range(0, file.size, most):
            stop = min(file.size, start + most)
            if have and have + stop - start > most:
                groups.append([])
                have = 0
            groups[-1].append(LineRange(file.path, start, stop))
            have += stop - start + opening
    return groups


@dataclass(frozen=True)
class ColumnLook:
    """The survey of a task's lines: (the reason why Arrow must not read them or None, the kind of each column)."""

    form: CsvForm
    columns: Mapping[int, bool]
    zone: str

    def __call__(self, groups: Iterable[list[LineRange]]) -> Iterator[tuple[str | None, list[str]]]:
        """Yield one pair for each group."""
        types = dict.fromkeys(self.columns, pa.string())
        for group in groups:
            kinds = [_TEXT if as_text else _NOTHING for as_text in self.columns.values()]
            try:
                for batch in itertools.chain.from_iterable(self.form.rows(span, types) for span in group):
                    kinds = [self._kind(kind, cells) for kind, cells in zip(kinds, batch.columns, strict=True)]
            except UNREADABLE as error:
                yield str(error), kinds
            else:
                yield None, kinds

    def _kind(self, before: str, cells: pa.Array) -> str:
        return before if before == _TEXT else _merged(before, _kind_of(cells, self.zone))


def _kind_of(cells: pa.Array, zone: str) -> str:
    if cells.null_count == len(cells):
        return _NOTHING
    if _has_words(cells[:_LOOK]):
        return _TEXT
    characters = set(np.flatnonzero(np.bincount(_characters(cells), minlength=256)).tolist())
    for alphabet, kind in _ALPHABETS:
        if characters <= set(alphabet) and _values(cells, kind, zone) is not None:
            return kind
    return _TEXT if _has_words(cells) else _UNSURE


def _values(cells: pa.Array, kind: str, zone: str) -> pa.Array | None:
    """Return cells as values of a kind; None if Spark would not read all of them as such."""
    if kind == _TRUTH:
        return cells if _all_in(cells, _TRUE + _FALSE) else None
    try:
        values = _cast(cells if kind == _TIME else pc.utf8_trim(cells, " \t"), kind)
        if kind == _TIME:
            if zone != "UTC":
                pc.assume_timezone(values, zone, ambiguous="earliest", nonexistent="raise")
            lengths = pc.binary_length(cells)
            ends = {each.as_py() for each in pc.min_max(lengths).values()}
            usual = ends <= {*_TIME_LENGTHS, None} if len(ends) == 1 else _all_in(lengths, _TIME_LENGTHS)
            oldest = pc.min(values).as_py()
            return values if usual and (oldest is None or oldest >= _OLD) else None
    except (pa.ArrowException, ValueError):  # the zone may be one that Arrow does not know
        return None
    sure = kind == _INTEGER or _matches(cells[:_LOOK], _FRACTION) or _matches(cells, _FRACTION)
    return values if sure else None


def _cast(cells: pa.Array, kind: str) -> pa.Array:
    return cells.cast(_TYPES[kind], memory_pool=pa.system_memory_pool())


def _merged(one: str, two: str) -> str:
    """Return the kind of a column whose cells are of two kinds."""
    kinds = {one, two} - {_NOTHING}
    if len(kinds) < 2:
        return kinds.pop() if kinds else _NOTHING
    if _TEXT in kinds:
        return _TEXT
    if _UNSURE in kinds or _TIME in kinds:
        return _UNSURE
    return _TEXT if _TRUTH in kinds else _NUMBER


def _has_words(cells: pa.Array) -> bool:
    return _matches(cells.filter(pc.invert(pc.match_substring_regex(cells, _NO_WORDS))), _WORDS)


def _matches(cells: pa.Array, pattern: str) -> bool:
    """Say whether any cell matches a pattern."""
    return bool(pc.any(pc.match_substring_regex(cells, pattern)).as_py())


def _all_in(values: pa.Array, choices: list[Any]) -> bool:
    return bool(pc.all(pc.is_in(values.drop_null(), pa.array(choices, values.type))).as_py())


def _has_hexadecimals(block: memoryview) -> bool:
    """Say whether a block contains 0x. Most contain no x at all, which is found out fast."""
    if all(block.obj.find(letter, 0, len(block)) < 0 for letter in (b"x", b"X")):  # type: ignore[attr-defined]
        return False
    cells = np.frombuffer(block, np.uint8)
    return bool((cells[np.flatnonzero(np.bitwise_or(cells, 32) == ord("x")) - 1] == ord("0")).any())


def _characters(cells: pa.Array) -> np.ndarray:
    """Return the bytes of all cells."""
    _, offsets, data = cells.buffers()
    ends = np.frombuffer(offsets, np.int32)[cells.offset : cells.offset + len(cells) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data else np.zeros(0, np.uint8)


def _has_folders(paths: list[str]) -> bool:
    """Say whether there are folders in which Spark might look for files or partition columns."""
    for path in paths:
        fs, place = filesystem(path)
        if fs.isfile(place):
            continue
        entries = fs.ls(place, detail=True) if fs.isdir(place) else fs.glob(place, detail=True).values()
        if any(entry["type"] == "directory" for entry in entries):
            return True
    return False
