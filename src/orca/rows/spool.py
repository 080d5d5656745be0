"""Spool: a rank's rows in one local Arrow file, read by row number. Owns how rows lie on disk and how much is mapped.

A row keeps all its numbers side by side (one fixed_size_binary field, laid out by the schema's metadata), so a row
costs one page fault however many columns it has. The file has no name: nothing is left behind, whatever happens.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa

from orca.errors import ArgumentError, DataError, OrcaError
from orca.rows.arrow import to_arrow

if TYPE_CHECKING:
    from typing_extensions import Self

_log = logging.getLogger(__name__)

_LAYOUT = b"orca.columns"  # the schema's metadata: dtype and shape of each column
_FIXED = "biufcmM"  # dtype kinds whose values are all of one size
_TEXT = "OUST"  # dtype kinds that hold str or bytes

# Linux maps the pages around a fault, 64 KB of them, or all of a folio; and a folio of the page cache is as large as
# the write that made it. So the file is written in pieces of 64 KB: then a row taken maps 64 KB, not 2 MB.
_WINDOW = 64 << 10
# Mapped pages count as memory of this process. So many bytes may be mapped at the same time, or this part of what the
# process holds of its own: reading rows whose pages are mapped already is several times faster.
_MAPPED, _PART = 32 << 20, 4
_LONG, _LOCKED = 4 << 10, 500  # see _pieces


@dataclass(frozen=True)
class Column:
    """The kind of one column's rows: a dtype and a shape; text has dtype 'O'."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray) -> Column:
        """Return the column an array's rows belong to."""
        if array.dtype.kind in _TEXT:
            return cls("O", array.shape[1:])
        return cls(array.dtype.str, array.shape[1:])

    def __str__(self) -> str:
        kind = "text" if self.text else str(np.dtype(self.dtype))
        return f"{kind} of shape {self.shape} per row"

    @property
    def text(self) -> bool:
        """Tell whether the values are str or bytes."""
        return self.dtype == "O"

    @property
    def nbytes(self) -> int:
        """Return how many bytes this column takes in the fixed part of a row."""
        return 0 if self.text else np.dtype(self.dtype).itemsize * prod(self.shape)

    def empty(self, rows: int) -> np.ndarray:
        """Return an array for so many rows, not filled."""
        return np.empty((rows, *self.shape), self.dtype)


class SpoolWriter:
    """A writer of a stream of rows into a spool, which holds at most about two chunks of it in memory.

    Args:
        folder: An existing folder on a local disk with room for the whole stream.
        chunk_bytes: How large a record batch of the file is.

    Example:
        >>> with SpoolWriter(Path(tempfile.gettempdir())) as writer:
        ...     writer.append([np.arange(3.0)])
        ...     spool = writer.finish()
        >>> with spool:
        ...     spool.take(np.array([2, 0]))
        [array([2., 0.])]
    """

    def __init__(self, folder: Path, chunk_bytes: int = 32 << 20) -> None:
        self._folder, self._chunk_bytes = Path(folder), chunk_bytes
        self._columns: list[Column] | None = None
        self._rows = 0  # rows appended so far
        self._sink: _Sink | None = None
        self._file: Any = None  # the Arrow writer; pyarrow has no types
        self._chunk: _Chunk | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def append(self, columns: Sequence[np.ndarray]) -> None:
        """Add rows: one array per column, all of the same length, of the dtypes and shapes of the first append.

        Raises:
            DataError: The columns do not fit each other or those before; says which one and how.
            OrcaError: The folder cannot be written to or is full.
        """
        rows = _length(columns)
        kinds = [_supported(position, array) for position, array in enumerate(columns)]
        if rows == 0:  # says nothing for sure: the length of a list is unknown without a row
            self._columns = self._columns or kinds
            return
        if self._rows == 0:
            self._columns = kinds
        _check_same(self._columns or [], kinds, self._rows)
        texts = {position: _text(position, array) for position, array in enumerate(columns) if kinds[position].text}
        chunk = self._chunk or self._open(texts)
        _check_same_text(chunk.schema, texts)
        start = 0
        while start < rows:
            start += chunk.fill(columns, list(texts.values()), start)
            if chunk.full:
                self._file.write_batch(chunk.drain())
        self._rows += rows

    def finish(self) -> Spool:
        """Return the spool of all rows appended; the writer is closed then."""
        chunk = self._chunk or self._open({})
        if chunk.rows:
            self._file.write_batch(chunk.drain())
        self._file.close()
        assert self._sink is not None
        spool = Spool(self._sink.map())
        _log.debug("spooled %d rows, %d bytes", spool.rows, self._sink.written)
        self.close()
        return spool

    def close(self) -> None:
        """Close the file; rows that were not finished are gone."""
        if self._sink is not None:
            self._sink.close()
        self._sink = self._file = self._chunk = None
        self._closed = True

    def _open(self, texts: dict[int, pa.Array]) -> _Chunk:
        if self._closed:
            raise ArgumentError("this spool writer is closed; write to a new one.")
        self._chunk = _Chunk(self._columns or [], texts, self._chunk_bytes)
        self._sink = _Sink(self._folder)
        self._file = pa.ipc.new_file(self._sink, self._chunk.schema)
        return self._chunk


class Spool:
    """Rows by their number, in any order; made by `SpoolWriter.finish`.

    Args:
        mapped: The memory-mapped Arrow file.
    """

    rows: int
    row_bytes: float  # a mean of the file: texts have any length

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped: mmap.mmap | None = mapped
        buffer = pa.py_buffer(mapped)
        reader = pa.ipc.open_file(buffer)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        lengths = np.array([0, *(batch.num_rows for batch in batches)], np.int64)
        starts = np.cumsum(lengths)
        self.rows = int(starts[-1])
        self._columns = _columns_of(reader.schema)
        self._width = _record(self._columns).itemsize
        self._starts = starts[:-1]
        # Row r of the chunk that starts with row s lies at the chunk's address + (r - s) * width.
        addresses = [batch.column(0).buffers()[1].address - buffer.address for batch in batches]
        self._origins = np.array(addresses, np.int64) - self._starts * self._width
        self._regions = _regions(mapped, self._columns) if self.rows else []
        self._texts = [
            [batch.column(1 + text) for batch in batches]
            for text in range(sum(column.text for column in self._columns))
        ]
        self._touched, self._limit = 0, _MAPPED
        self._bytes = len(mapped)
        self.row_bytes = self._bytes / max(self.rows, 1)
        self._row_fault = _WINDOW * (1 + 2 * len(self._texts)) + self._width
        self._forget_pages()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def take(self, index: np.ndarray) -> list[np.ndarray]:
        """Return the rows of these numbers, in this order: a fresh array per column.

        Args:
            index: Row numbers from 0 to rows - 1, in any order, repeated if wanted.

        Raises:
            ArgumentError: A number is outside the spool, or the spool is closed.
        """
        index = self._checked(index)
        if len(index) == 0:
            return [column.empty(0) for column in self._columns]
        cost = self._pages_of(index)
        if cost <= self._limit:
            return self._gather(index, cost)
        # More than may be mapped at once: piece by piece.
        arrays, step = [column.empty(len(index)) for column in self._columns], max(1, self._limit // self._row_fault)
        for start in range(0, len(index), step):
            piece = index[start : start + step]
            for whole, part in zip(arrays, self._gather(piece, self._pages_of(piece)), strict=True):
                whole[start : start + step] = part
        return arrays

    def close(self) -> None:
        """Unmap the file; having no name, it is gone from the disk then."""
        self._regions, self._texts = [], []
        if self._mapped is not None:
            # A traceback in flight may still hold a view: then the memory is unmapped when the traceback goes.
            with contextlib.suppress(BufferError):
                self._mapped.close()
        self._mapped = None

    def _checked(self, index: np.ndarray) -> np.ndarray:
        if self._mapped is None:
            raise ArgumentError("this spool is closed; take from it before its with block ends.")
        index = np.asarray(index)
        if len(index) and (index.dtype.kind not in "iu" or index.ndim != 1):
            raise ArgumentError(f"take needs a 1-D array of row numbers; got {index.dtype} of shape {index.shape}.")
        return index.astype(np.int64, copy=False)

    def _pages_of(self, index: np.ndarray) -> int:
        """Return the most bytes of the file that taking these rows can map."""
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= self.rows:
            raise ArgumentError(f"take needs row numbers from 0 to {self.rows - 1}; got some from {low} to {high}.")
        dense = int((high - low + 1) * self.row_bytes) + 2 * _WINDOW
        return min(len(index) * self._row_fault, dense, self._bytes)

    def _gather(self, index: np.ndarray, cost: int) -> list[np.ndarray]:
        self._touch(cost)
        chunks = np.searchsorted(self._starts, index, side="right") - 1
        places = index * self._width + self._origins[chunks]
        texts, regions = iter(self._texts), iter(self._regions)
        return [
            _take_text(next(texts), column, chunks, index - self._starts[chunks])
            if column.text
            else _take_fixed(next(regions), column, places)
            for column in self._columns
        ]

    def _touch(self, cost: int) -> None:
        """Count bytes that are about to be mapped; where they are too many, forget those mapped before."""
        touched = min(self._touched + cost, self._bytes)
        if touched > self._limit:
            self._limit = max(_MAPPED, _held() // _PART)
        if touched > self._limit:
            self._forget_pages()
            touched = cost
        self._touched = touched

    def _forget_pages(self) -> None:
        # The pages stay in the page cache; they only leave this process' memory (RSS).
        if self._mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)
        self._touched = 0


class _Chunk:
    """Rows that will make a record batch."""

    def __init__(self, columns: list[Column], texts: dict[int, pa.Array], chunk_bytes: int) -> None:
        record = _record(columns)
        text_bytes = sum(text.nbytes // len(text) for text in texts.values())
        self.rows = 0
        self.schema = _schema(columns, record, texts)
        self._chunk_bytes, self._text_bytes = chunk_bytes, 0
        self._records = np.empty(max(1, chunk_bytes // (record.itemsize + text_bytes)), record)
        self._texts: list[list[Any]] = [[] for _ in texts]

    @property
    def full(self) -> bool:
        return self.rows == len(self._records) or self._text_bytes >= self._chunk_bytes

    def fill(self, columns: Sequence[np.ndarray], texts: Sequence[Any], start: int) -> int:
        """Take rows from start on, as many as there is room for, and return how many."""
        count = min(len(self._records) - self.rows, len(columns[0]) - start)
        for name in self._records.dtype.names or ():
            self._records[name][self.rows : self.rows + count] = columns[int(name)][start : start + count]
        for collected, text in zip(self._texts, texts, strict=True):
            # A copy, since a slice would keep all of a large append in memory.
            piece = pa.concat_arrays([text.slice(start, count)])
            collected.append(piece)
            self._text_bytes += piece.nbytes
        self.rows += count
        return count

    def drain(self) -> pa.RecordBatch:
        """Return the rows as a record batch, over this chunk's memory, and start anew."""
        kind = pa.binary(self._records.itemsize)
        raw = pa.py_buffer(self._records[: self.rows].view(np.uint8))
        records = pa.Array.from_buffers(kind, self.rows, [None, raw])
        texts = [pa.concat_arrays(collected) for collected in self._texts]
        self.rows, self._text_bytes, self._texts = 0, 0, [[] for _ in texts]
        return pa.RecordBatch.from_arrays([records, *texts], schema=self.schema)


class _Sink:
    """The file that Arrow writes to: nameless, written in small pieces, clear when the disk is full."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.written = folder, 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close()
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        place = 0
        try:
            while place < len(view):
                room = _WINDOW - (self.written + place) % _WINDOW  # a folio is no larger than its alignment
                place += self._file.write(view[place : place + room])
        except OSError as error:
            raise self._unwritable(error, place) from error
        self.written += place
        return place

    def flush(self) -> None:
        pass

    @property
    def closed(self) -> bool:
        return self._file.closed

    def map(self) -> mmap.mmap:
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _unwritable(self, error: OSError, more: int = 0) -> OrcaError:
        return OrcaError(
            f"cannot write the spool in {self._folder} after {self.written + more} bytes: {error}. "
            "Make room there, or choose a folder on a local disk that is writable and has room (TMPDIR, if not set)."
        )


def _held() -> int:
    """Return the bytes of this process's own memory, without files that are mapped."""
    info = psutil.Process().memory_info()
    own: int = info.rss - getattr(info, "shared", 0)
    return own


def _length(columns: Sequence[np.ndarray]) -> int:
    if not columns:
        raise DataError("a spool needs at least one column; got none. Name the columns to read.")
    for position, array in enumerate(columns):
        if array.ndim == 0 or len(array) != len(columns[0]):
            count = "no rows dimension" if array.ndim == 0 else f"{len(array)} rows"
            expected = f"{len(columns[0])} rows" if columns[0].ndim else "rows"
            raise DataError(f"column {position} has {count}, expected {expected}. Give every column the same rows.")
    return len(columns[0])


def _supported(position: int, array: np.ndarray) -> Column:
    if array.dtype.kind not in _FIXED + _TEXT:
        raise DataError(
            f"column {position} is of dtype {array.dtype}, which is neither numbers, dates nor text. Cast it."
        )
    return Column.of(array)


def _check_same(expected: list[Column], kinds: list[Column], rows: int) -> None:
    if len(kinds) != len(expected):
        raise DataError(
            f"expected {len(expected)} columns as in the {rows} rows before, got {len(kinds)}. "
            "Give every part of the data the same columns."
        )
    for position, (want, kind) in enumerate(zip(expected, kinds, strict=True)):
        if want != kind:
            raise DataError(
                f"column {position} changed after {rows} rows: expected {want}, got {kind}. "
                "Cast, pad or reshape it so that every part of the data gives the same."
            )


def _text(position: int, array: np.ndarray) -> pa.Array:
    """Return a column of text, a list of fixed length in each row where a row has several."""
    each = prod(array.shape[1:])
    if not each:
        raise DataError(
            f"column {position} is text of shape {array.shape[1:]} per row: it holds nothing. Leave it out."
        )
    text = _flat_text(position, array.reshape(-1))
    return text if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(text, each)


def _flat_text(position: int, array: np.ndarray) -> pa.Array:
    # As a list: given an array, pa.array would import pandas.
    try:
        text = pa.array(array.tolist())
    except pa.ArrowException as error:
        raise DataError(f"column {position} must hold str or bytes, one kind only; {error}. Cast it.") from error
    if text.null_count:
        raise DataError(f"column {position} holds {text.null_count} null(s). Fill or drop them (fillna, dropna).")
    if text.type == pa.string():
        return text.cast(pa.large_string())
    if text.type == pa.binary():
        return text.cast(pa.large_binary())
    raise DataError(f"column {position} must hold numbers, str or bytes; got objects of type {text.type}. Cast it.")


def _check_same_text(schema: pa.Schema, texts: dict[int, pa.Array]) -> None:
    for position, text in texts.items():
        expected = schema.field(str(position)).type
        if text.type != expected:
            raise DataError(f"column {position} changed: expected {expected}, got {text.type}. Give str or bytes only.")


def _record(columns: list[Column]) -> np.dtype:
    """Return the structured dtype of a row's fixed part: a field per column, named by its position."""
    sizes = [column.nbytes for column in columns]
    fixed = [position for position, size in enumerate(sizes) if size]
    return np.dtype(
        {
            "names": [str(position) for position in fixed],
            "formats": [(np.dtype(columns[position].dtype), columns[position].shape) for position in fixed],
            "offsets": [sum(sizes[:position]) for position in fixed],
            "itemsize": max(1, sum(sizes)),
        }
    )


def _schema(columns: list[Column], record: np.dtype, texts: dict[int, pa.Array]) -> pa.Schema:
    fields = [pa.field("rows", pa.binary(record.itemsize))]
    fields += [pa.field(str(position), text.type) for position, text in texts.items()]
    return pa.schema(fields, {_LAYOUT: json.dumps([asdict(column) for column in columns]).encode()})


def _columns_of(schema: pa.Schema) -> list[Column]:
    return [Column(each["dtype"], tuple(each["shape"])) for each in json.loads(schema.metadata[_LAYOUT])]


def _regions(mapped: mmap.mmap, columns: list[Column]) -> list[np.ndarray]:
    """Return, for each fixed column, the bytes of the file from the column's first value on."""
    regions, offset = [], 0
    for column in columns:
        if not column.text:
            regions.append(np.frombuffer(mapped, np.uint8, offset=offset))
        offset += column.nbytes
    return regions


def _take_fixed(region: np.ndarray, column: Column, places: np.ndarray) -> np.ndarray:
    """Gather the values that begin at these places of a region.

    The region is seen as an array whose element k is the value at byte k: its elements overlap, a byte apart. One plain
    indexing operation then gathers rows from all chunks, as fast as from an array in memory: an element is copied as a
    whole, and the chunks need not be looked at one by one.
    """
    size, count = column.nbytes, len(places)
    if size == 0:
        return column.empty(count)
    pieces = _pieces(size, count)
    if pieces > 1:
        size //= pieces
        places = (places[:, None] + np.arange(0, column.nbytes, size)).reshape(-1)
    values = np.ndarray((len(region) - size + 1,), f"V{size}", region, 0, (1,))
    return values[places].view(np.uint8).view(column.dtype).reshape(count, *column.shape)


def _pieces(size: int, count: int) -> int:
    """Return how many pieces a value is gathered in: several for few and long ones.

    numpy keeps Python's lock while it gathers up to 500 elements, however long they are, and all threads would wait.
    """
    if size < _LONG or count > _LOCKED:
        return 1
    return next((n for n in range(_LOCKED // count + 1, _LOCKED + 2) if size % n == 0), 1)


def _take_text(chunks: list[pa.Array], column: Column, chunk_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    output, each = column.empty(len(rows)), prod(column.shape)
    for number in np.unique(chunk_of):
        here = np.flatnonzero(chunk_of == number)
        chunk, places = chunks[number], rows[here]
        if column.shape:  # the texts of a row lie side by side
            chunk, places = chunk.values, (places[:, None] * each + np.arange(each)).reshape(-1)
        texts = chunk.take(to_arrow(places)).to_numpy(zero_copy_only=False)
        output[here] = texts.reshape(len(here), *column.shape)
    return output
