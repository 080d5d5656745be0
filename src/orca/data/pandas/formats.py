"""Formats: CSV and JSON lines as pandas reads them. Owns which files may be read in ranges, and how a range is read.

A range is read by pandas itself, behind the head of its file: the bytes up to the first row. So pandas sees the same
header, the same width of a row and the same form of a date in every range. A range ends at the end of a line. If that
is inside of a quoted field, pandas refuses the range, and the file is read by one task.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, BinaryIO

from fsspec.utils import infer_compression, read_block

from orca.data.pandas.paths import DataFile
from orca.data.pandas.spans import FileRange
from orca.errors import ArgumentError, DataError
from orca.storage.files import filesystem, is_local

if TYPE_CHECKING:
    import pandas as pd

_HEAD_BYTES = 1 << 20  # a file whose first row is not in these is read by one task
# Encodings in which the byte of a line's end is nothing else.
_LINE_SAFE = re.compile(r"(?i)(utf[-_]?8([-_]sig)?|us-ascii|ascii|latin[-_]?1|iso[-_]?8859[-_]\d+|(cp|windows-)?125\d)")
# Keywords whose meaning is the same for every range of a file, behind its head.
_CSV_OF_RANGES = set(
    "sep delimiter delim_whitespace header names usecols dtype true_values false_values skipinitialspace "
    "na_values keep_default_na na_filter skip_blank_lines thousands decimal quotechar quoting doublequote encoding "
    "encoding_errors on_bad_lines low_memory float_precision dtype_backend parse_dates date_format dayfirst "
    "cache_dates compression verbose".split()
)
_JSON_OF_RANGES = set(
    "lines dtype convert_dates keep_default_dates precise_float date_unit encoding encoding_errors dtype_backend "
    "compression".split()
)
_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_NO_RANGES = ("chunksize", "iterator")


class NoFirstRow(ValueError):
    """The first row of a file cannot be told from the others: the file is read by one task."""


@dataclass(frozen=True)
class Format:
    """A reader of pandas with its keywords.

    Args:
        function: "read_csv" or "read_json".
        options: The keywords.
    """

    function: str
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        legal = set(inspect.signature(self._reader).parameters)
        strange = sorted(set(self.options) - legal)
        if strange:
            raise ArgumentError(
                f"{self.function}() got an unexpected keyword argument {strange[0]!r}.", code="unknown-option"
            )
        streaming = [name for name in _NO_RANGES if self.options.get(name)]
        if streaming:
            raise ArgumentError(
                f"{self.function} returns whole shards and cannot take {streaming[0]}. Leave it out; "
                "OrcaContext._shard_size sets the rows of a shard.",
                code="shards-are-whole",
            )

    @cached_property
    def _reader(self) -> Callable[..., Any]:
        import pandas as pd

        return getattr(pd, self.function)  # type: ignore[no-any-return]

    def is_cuttable(self, file: DataFile) -> bool:
        """Return whether a file may be read in ranges."""
        compression = self.options.get("compression", "infer")
        if compression == "infer":
            compression = infer_compression(file.path)
        encoding = str(self.options.get("encoding") or "utf-8")
        return self._has_ranges and compression is None and _LINE_SAFE.fullmatch(encoding) is not None and file.size > 1

    @cached_property
    def _used(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if value is not None}

    @property
    def _has_c_parser(self) -> bool:
        """Whether pandas parses CSV in C, which takes fewer keywords than Python."""
        separator = self._used.get("sep") or self._used.get("delimiter") or ","
        return (
            self._used.get("engine", "c") == "c"
            and (separator == r"\s+" or (isinstance(separator, str) and len(separator.encode()) == 1))
            and isinstance(self._used.get("on_bad_lines", "error"), str)
            and not self._used.get("skipfooter")
        )

    @property
    def _has_ranges(self) -> bool:
        if self.function == "read_json":
            return bool(self._used.get("lines")) and self._used.keys() <= _JSON_OF_RANGES
        dates = self._used.get("parse_dates", False)
        return (
            self._has_c_parser
            and self._used.keys() <= _CSV_OF_RANGES
            and (dates is False or (isinstance(dates, list) and all(isinstance(one, str | int) for one in dates)))
            and isinstance(self._used.get("header", 0), int | str)
        )

    def frame(self, span: FileRange, types: Mapping[Any, Any]) -> Any:
        """Return the rows of a span.

        Args:
            span: The span.
            types: Types of columns; pandas infers those of the others.

        Raises:
            ValueError: pandas cannot read it: the classes of its errors of parsing are ValueErrors.
            DataError: The file has another size than before.
        """
        fs, place = filesystem(span.file.path)
        if span.length is None and is_local(fs):
            return self.parsed(place, types, compression=self.options.get("compression", "infer"))
        with fs.open(place, "rb") as file:
            if span.length is None:
                return self.parsed(file, types, **{"compression": infer_compression(place), **self.options})
            if file.seek(0, 2) != span.file.size:
                raise DataError(f"{span.file.path} has changed while it was read. Read it again.", code="file-changed")
            if not span.start:
                return self._range(read_block(file, 0, span.length, b"\n"), types)
            file.seek(0)
            lead, row = self._head(file)
            start, stop = max(span.start, len(lead) - 1), span.start + span.length
            block = read_block(file, start, stop - start, b"\n") if start < stop else b""
        return self._range(lead + row + block, types, first=1 if row else 0)

    def _range(self, content: bytes, types: Mapping[Any, Any], first: int = 0) -> pd.DataFrame:
        """Return the rows of a range, of which the first may only be there for pandas to see it."""
        frame = self.parsed(BytesIO(content), types)
        if not self.has_fresh_index([frame]):
            raise ValueError("rows have more fields than the header: the first ones are the index.")
        dates = [label for label in self.options.get("parse_dates") or [] if label in frame]
        if first and not self.options.get("date_format") and frame[dates].iloc[:1].isna().any(axis=None):
            raise ValueError("the first row has no date, whose form would be that of all.")
        return frame.iloc[first:].reset_index(drop=True)

    def infers(self, label: Any) -> bool:
        """Return whether pandas infers the type of a column."""
        dtype = self.options.get("dtype")
        is_free = dtype is None or dtype is True or (isinstance(dtype, Mapping) and label not in dtype)
        return is_free and label not in (self.options.get("converters") or ())

    def is_date(self, label: Any) -> bool:
        """Return whether a column is to be read as dates."""
        dates = self.options.get("parse_dates")
        return isinstance(dates, list) and label in dates

    def has_fresh_index(self, frames: Sequence[Any]) -> bool:
        """Return whether the index of frames only counts their rows."""
        import pandas as pd

        if self.function == "read_json":
            return self.options.get("orient") is None
        if self._used.get("index_col", False) is not False:
            return False
        return all(not len(frame) or frame.index.equals(pd.RangeIndex(len(frame))) for frame in frames)

    def explained(self, file: DataFile, error: Exception) -> str:
        """Return the message for an error of pandas at a file."""
        fs, place = filesystem(file.path)
        try:
            start = fs.read_block(place, 0, 4)
        except OSError:
            start = b""
        label = self._misfit(file)
        column = "" if label is None else f" (column {label!r})"
        text = f"{file.path} cannot be read by pandas.{self.function}: {str(error).strip()}{column}"
        return f"{text.rstrip('.')}.{_remedy(error, self.function, start)}"

    def _misfit(self, file: DataFile) -> Any:
        """Return the column that does not have the type that the caller gave it."""
        import pandas as pd

        dtype = self.options.get("dtype")
        if self.function != "read_csv" or dtype is None:
            return None
        try:
            texts = Format(self.function, {**self.options, "dtype": str}).frame(FileRange(file, 0, None), {})
        except (ValueError, TypeError, LookupError, OSError):
            return None
        for label, kind in (dtype if isinstance(dtype, Mapping) else dict.fromkeys(texts.columns, dtype)).items():
            try:
                pd.to_numeric(texts[label]).astype(kind)
            except (ValueError, TypeError):
                return label
            except KeyError:
                continue
        return None

    def plain(self) -> Format:
        """Return the format of small tables from which types are inferred."""
        options: dict[str, Any] = {"lines": True} if self.function == "read_json" else {}
        if "dtype_backend" in self.options:
            options["dtype_backend"] = self.options["dtype_backend"]
        return Format(self.function, options)

    def probe(self, file: DataFile) -> None:
        """Read the first row of a file, if it may be read in ranges: most keywords that do not fit fail here.

        Raises:
            DataError: pandas does not take a keyword, or the row.
        """
        if not self.is_cuttable(file):
            return
        fs, place = filesystem(file.path)
        try:
            with fs.open(place, "rb") as content:
                self.parsed(BytesIO(b"".join(self._head(content))), {})
        except NoFirstRow:
            return
        except (ValueError, TypeError, LookupError) as error:
            raise DataError(self.explained(file, error), code="file-not-readable") from None

    def _head(self, file: BinaryIO) -> tuple[bytes, bytes]:
        """Return the bytes before the first row of a file, and this row; no row if there is none.

        Raises:
            NoFirstRow: It does not end in the first bytes of the file, or not with a line feed.
        """
        start = file.read(_HEAD_BYTES)  # not readline: files of HDFS and object stores read no line of a given size
        is_whole = len(start) < _HEAD_BYTES
        lead, head = b"", b""
        for line in BytesIO(start):
            if not line.endswith(b"\n"):
                if not is_whole:
                    break
                line += b"\n"
            head += line
            try:
                rows = len(self.parsed(BytesIO(head), {}))
            except ValueError:  # the line ends inside of a quoted field, or is blank
                continue
            if rows > 1:
                raise NoFirstRow("lines end with carriage returns alone.")
            if rows:
                return lead, head[len(lead) :]
            lead = head
        if is_whole:
            return head, b""
        raise NoFirstRow(f"there is no row in the first {_HEAD_BYTES} bytes.")

    def parsed(self, source: Any, types: Mapping[Any, Any], **more: Any) -> Any:
        """Return what pandas reads from a path or a file; the types are those of `frame`."""
        with_types = self._json_types(types) if self.function == "read_json" else self._csv_types(types)
        return self._reader(source, **{**self.options, **with_types, **more})

    def _csv_types(self, types: Mapping[Any, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._has_c_parser:
            options["low_memory"] = False  # else pandas infers the types of parts of a file
        dates, dtype = self.options.get("parse_dates"), self.options.get("dtype")
        if types and (dtype is None or isinstance(dtype, Mapping)):
            exact = {label: kind for label, kind in types.items() if _is_parsed(kind)}
            for label in [label for label in types if label not in exact]:
                # pandas gives the type of a column to those of the same name, whose labels end in a number.
                first = re.sub(r"\.\d+$", "", label) if isinstance(label, str) else label
                if exact.pop(first, None) is str:
                    raise ValueError(f"{first!r} is text, {label!r}, of the same name, is not: rename one of them.")
            options["dtype"] = {**exact, **(dtype or {})}
        if isinstance(dates, list):
            options["parse_dates"] = [one for one in dates if types.get(one) is not str]
        return options

    def _json_types(self, types: Mapping[Any, Any]) -> dict[str, Any]:
        dtype = self.options.get("dtype")
        if not types or not (dtype is None or dtype is True or isinstance(dtype, Mapping)):
            return {}
        dates = [label for label, kind in types.items() if getattr(kind, "kind", "O") == "M"]
        exact = {
            label: object if kind is str or not _is_parsed(kind) else kind
            for label, kind in types.items()
            if label not in dates
        }
        user = dtype if isinstance(dtype, Mapping) else {}
        return {"dtype": {**exact, **user}, "convert_dates": dates or False, "keep_default_dates": False}


def _remedy(error: Exception, function: str, start: bytes) -> str:
    mark = next((name for bytes_, name in _MARKS.items() if start.startswith(bytes_)), None)
    if isinstance(error, UnicodeError) and mark:
        return f" The file begins with the mark of {mark}: pass encoding='{mark}'."
    if isinstance(error, UnicodeError):
        return (
            " Pass the encoding of the file, such as encoding='latin-1'; encoding_errors='replace' reads such text "
            "with marks in it."
        )
    if "Error tokenizing" in str(error):
        return " on_bad_lines='skip' leaves such lines out."
    if function == "read_json":
        return " Each line must be an object; pass lines=False for files that are one array of objects."
    return ""


def _is_parsed(kind: Any) -> bool:
    """Return whether pandas parses texts as this type: not dates, and not objects, which are cast."""
    return kind is str or (str(kind) != "object" and getattr(kind, "kind", "O") not in "mM")
