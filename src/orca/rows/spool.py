"""Spool: a rank's rows in local files, read by row number. Owns how rows lie on disk and how much is mapped.

A row keeps all its numbers side by side, so that it costs one page fault however many columns it has. Texts lie in a
second file, and the row says where. The files have no names: nothing is left behind, whatever happens.

Not `datasets.Dataset.from_spark` or Lance: the first writes to a shared folder, the second is a format, not a cache
that follows a running job.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import psutil

from orca.errors import ArgumentError, DataError, OrcaError

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

_FIXED = "biufcmM"  # dtype kinds whose values are all of one size
_TEXT = "OUST"  # dtype kinds that hold str or bytes
_TEXTS: dict[type, str] = {str: "text", bytes: "bytes"}
_SPAN = np.dtype("i8")  # in the place of a text: where it begins and ends in the other file

# Linux maps the pages around a fault, 64 KB of them, or all of a folio; and a folio of the page cache is as large as
# the write that made it. So the files are written in pieces of 64 KB: then a row taken maps 64 KB, not 2 MB.
_WINDOW = 64 << 10
# Mapped pages count as memory of this process. So many bytes may be mapped at the same time, or this part of what the
# process holds of its own: reading rows whose pages are mapped already is several times faster.
_MAPPED, _PART = 32 << 20, 4
_LONG, _LOCKED = 4 << 10, 500  # see _pieces
_AT_ONCE = 4096  # rows that are written at once: their texts may be long


@dataclass(frozen=True)
class Column:
    """The kind of one column's rows: a shape and a dtype, or "text" or "bytes" in its place."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, position: int, array: np.ndarray) -> Column:
        """Return the column that an array's rows belong to, or refuse an array of other things."""
        if array.dtype.kind in _FIXED:
            return cls(array.dtype.str, array.shape[1:])
        if array.dtype.kind not in _TEXT:
            raise DataError(
                f"column {position} is of dtype {array.dtype}, which is neither numbers, dates nor text. Cast it.",
                code="bad-column-type",
            )
        if len(array) and not prod(array.shape[1:]):
            raise DataError(
                f"column {position} is text of shape {array.shape[1:]} per row: it holds nothing. Leave it out.",
                code="empty-texts",
            )
        return cls(_kind_of_texts(position, array), array.shape[1:])

    def __str__(self) -> str:
        return f"{self.dtype if self.text else np.dtype(self.dtype)} of shape {self.shape} per row"

    @property
    def text(self) -> bool:
        """Say whether the values are str or bytes."""
        return self.dtype in _TEXTS.values()

    @property
    def field(self) -> tuple[np.dtype, tuple[int, ...]]:
        """Return the dtype and the shape of this column in a record."""
        return (_SPAN, (*self.shape, 2)) if self.text else (np.dtype(self.dtype), self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of this column in a record."""
        dtype, shape = self.field
        return dtype.itemsize * prod(shape)

    def empty(self, rows: int) -> np.ndarray:
        """Return an array for so many rows, not filled."""
        return np.empty((rows, *self.shape), object if self.text else self.dtype)


def spool_folder(others: Iterable[str] = ()) -> Path:
    """Return the folder of this machine for spools: of the cluster's local disks the one with the most room.

    Those are the folders that Spark and YARN name to their workers. Folders in memory are left out if there are others.

    Args:
        others: Further folders of the cluster.
    """
    names = [*others, *os.environ.get("SPARK_LOCAL_DIRS", "").split(","), *os.environ.get("LOCAL_DIRS", "").split(",")]
    local = [name for name in names if name and os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK)]
    temporary = tempfile.gettempdir()
    on_disk = [name for name in local if not _is_in_memory(name)]
    if not on_disk:
        return Path(temporary)
    return Path(max(on_disk, key=lambda name: shutil.disk_usage(name).free))


def _is_in_memory(folder: str) -> bool:
    """Return whether a folder lies in memory, which its files would take from training."""
    real = os.path.realpath(folder)
    mounts = [part for part in psutil.disk_partitions(all=True) if Path(real).is_relative_to(part.mountpoint)]
    return bool(mounts) and max(mounts, key=lambda part: len(part.mountpoint)).fstype in ("tmpfs", "ramfs")


class SpoolWriter:
    """A writer of a stream of rows into a spool, which holds at most about a chunk of it in memory.

    Args:
        folder: An existing folder on a local disk with room for the whole stream.
        chunk_bytes: How many bytes of rows are written at once.

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
        self._columns: list[Column] = []
        self._record = _record([])
        self._rows = 0  # rows appended so far
        self._files: tuple[_File, _File] | None = None  # records, and texts
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def append(self, columns: Sequence[np.ndarray]) -> None:
        """Add rows: one array per column, all of the same length, of the dtypes and shapes of the first append.

        Raises:
            DataError: The columns do not fit each other or those before; says which one and how.
            OrcaError: The folder cannot be written to or is full.
        """
        rows = _length(columns)
        kinds = [Column.of(position, array) for position, array in enumerate(columns)]
        if rows == 0:  # says nothing for sure: the length of a list is unknown without a row
            self._columns = self._columns or kinds
            return
        if self._rows == 0:
            self._columns, self._record = kinds, _record(kinds)
        _check_same(self._columns, kinds, self._rows)
        step = min(_AT_ONCE, max(1, self._chunk_bytes // self._record.itemsize))
        for start in range(0, rows, step):
            self._write([array[start : start + step] for array in columns])
        self._rows += rows

    def finish(self) -> Spool:
        """Return the spool of all rows appended; the writer is closed then."""
        records, texts = self._open()
        spool = Spool(self._columns, self._rows, records.map(), texts.map())
        _log.debug("spooled %d rows, %d bytes", self._rows, records.size + texts.size)
        self.close()
        return spool

    def close(self) -> None:
        """Close the files; rows that were not finished are gone."""
        for file in self._files or ():
            file.close()
        self._files, self._closed = None, True

    def _open(self) -> tuple[_File, _File]:
        if self._closed:
            raise ArgumentError("this spool writer is closed; write to a new one.", code="spool-closed")
        self._files = self._files or (_File(self._folder), _File(self._folder))
        return self._files

    def _write(self, columns: Sequence[np.ndarray]) -> None:
        file, texts = self._open()
        records = np.empty(len(columns[0]), self._record)
        for name in records.dtype.names or ():
            column, array = self._columns[int(name)], columns[int(name)]
            records[name] = _write_texts(texts, array) if column.text else array
        file.write(records.view(np.uint8))


class Spool:
    """Rows by their number, in any order; made by `SpoolWriter.finish`.

    Args:
        columns: The kind of each column.
        rows: How many rows there are.
        records: The rows, memory-mapped; empty where there are none.
        texts: All texts, memory-mapped; empty where there are none.
    """

    def __init__(self, columns: list[Column], rows: int, records: mmap.mmap | bytes, texts: mmap.mmap | bytes) -> None:
        self.rows = rows
        self._columns, self._texts = columns, texts
        self._files: list[mmap.mmap] | None = [file for file in (records, texts) if isinstance(file, mmap.mmap)]
        self._width = _record(columns).itemsize
        self._regions = _regions(records, columns) if rows else []
        self._page_bytes, self._limit = 0, _MAPPED
        self._bytes = len(records) + len(texts)
        self.row_bytes = self._bytes / rows if rows else 1.0  # a mean: texts have any length
        self._row_fault = _WINDOW * (1 + sum(column.text for column in columns)) + int(self.row_bytes)
        self._forget_pages()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
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
        """Unmap the files; having no names, they are gone from the disk then."""
        self._regions, self._texts = [], b""
        for file in self._files or ():
            # A traceback in flight may still hold a view: then the memory is unmapped when the traceback goes.
            with contextlib.suppress(BufferError):
                file.close()
        self._files = None

    def _checked(self, index: np.ndarray) -> np.ndarray:
        if self._files is None:
            raise ArgumentError("this spool is closed; take from it before its with block ends.", code="spool-closed")
        index = np.asarray(index)
        if len(index) and (index.dtype.kind not in "iu" or index.ndim != 1):
            raise ArgumentError(
                f"take needs a 1-D array of row numbers; got {index.dtype} of shape {index.shape}.",
                code="bad-row-numbers",
            )
        return index.astype(np.int64, copy=False)

    def _pages_of(self, index: np.ndarray) -> int:
        """Return the most bytes of the files that taking these rows can map."""
        low, high = int(index.min()), int(index.max())
        if low < 0 or high >= self.rows:
            raise ArgumentError(
                f"take needs row numbers from 0 to {self.rows - 1}; got some from {low} to {high}.",
                code="bad-row-numbers",
            )
        dense = int((high - low + 1) * self.row_bytes) + 4 * _WINDOW
        return min(len(index) * self._row_fault, dense, self._bytes)

    def _gather(self, index: np.ndarray, cost: int) -> list[np.ndarray]:
        self._touch(cost)
        places = index * self._width
        arrays = []
        for column, region in zip(self._columns, self._regions, strict=True):
            values = _take(region, *column.field, places)
            arrays.append(_read_texts(self._texts, values, column) if column.text else values)
        return arrays

    def _touch(self, cost: int) -> None:
        """Count bytes that are about to be mapped; where they are too many, forget those mapped before."""
        total = min(self._page_bytes + cost, self._bytes)
        if total > self._limit:
            self._limit = max(_MAPPED, _held() // _PART)
        if total > self._limit:
            self._forget_pages()
            total = cost
        self._page_bytes = total

    def _forget_pages(self) -> None:
        # The pages stay in the page cache; they only leave this process' memory (RSS).
        for file in self._files or () if hasattr(mmap, "MADV_DONTNEED") else ():
            file.madvise(mmap.MADV_DONTNEED)
        self._page_bytes = 0


class _File:
    """A file without a name, written in small pieces; its error names the remedy when the disk is full."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.size = folder, 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see close()
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        place = 0
        try:
            while place < len(view):
                room = _WINDOW - self.size % _WINDOW  # a folio is no larger than its alignment
                count = self._file.write(view[place : place + room])
                place, self.size = place + count, self.size + count
        except OSError as error:
            raise self._unwritable(error) from error

    def map(self) -> mmap.mmap | bytes:
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _unwritable(self, error: OSError) -> OrcaError:
        free = shutil.disk_usage(self._folder).free if self._folder.is_dir() else 0
        return OrcaError(
            f"cannot write a worker's rows to {self._folder} on {socket.gethostname()}: {error}, after {self.size} "
            f"bytes, with {free} free. Make room there, or set a folder on a larger local disk: spark.local.dir on "
            "Spark, yarn.nodemanager.local-dirs on YARN, object_spilling_directory on Ray, TMPDIR elsewhere.",
            code="no-room-for-rows",
        )


def _held() -> int:
    """Return the bytes of this process's own memory, without files that are mapped."""
    info = psutil.Process().memory_info()
    own: int = info.rss - getattr(info, "shared", 0)
    return own


def _length(columns: Sequence[np.ndarray]) -> int:
    if not columns:
        raise DataError("a spool needs at least one column; got none. Name the columns to read.", code="no-columns")
    for position, array in enumerate(columns):
        if array.ndim == 0 or len(array) != len(columns[0]):
            count = "no rows dimension" if array.ndim == 0 else f"{len(array)} rows"
            words = f"{len(columns[0])} rows" if columns[0].ndim else "rows"
            raise DataError(
                f"column {position} has {count}, expected {words}. Give every column the same rows.",
                code="row-counts-differ",
            )
    return len(columns[0])


def _check_same(columns: list[Column], kinds: list[Column], rows: int) -> None:
    if len(kinds) != len(columns):
        raise DataError(
            f"expected {len(columns)} columns as in the {rows} rows before, got {len(kinds)}. "
            "Give every part of the data the same columns.",
            code="columns-differ",
        )
    for position, (want, kind) in enumerate(zip(columns, kinds, strict=True)):
        if want != kind:
            raise DataError(
                f"column {position} changed after {rows} rows: expected {want}, got {kind}. "
                "Cast, pad or reshape it so that every part of the data gives the same.",
                code="column-types-differ",
            )


def _kind_of_texts(position: int, array: np.ndarray) -> str:
    values = array.reshape(-1).tolist()
    kinds = {next((base for base in _TEXTS if issubclass(kind, base)), kind) for kind in set(map(type, values))}
    if nulls := sum(value is None for value in values):
        raise DataError(
            f"column {position} holds {nulls} null(s). Fill or drop them (fillna, dropna).", code="null-values"
        )
    if len(kinds) > 1 or kinds - _TEXTS.keys():
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"column {position} must hold numbers, or str or bytes alone; got objects of {names}. Cast it.",
            code="mixed-objects",
        )
    return _TEXTS[kinds.pop()] if kinds else "text"


def _record(columns: list[Column]) -> np.dtype:
    """Return the structured dtype of a row: a field per column, named by its position."""
    sizes = [column.nbytes for column in columns]
    fields = [position for position, size in enumerate(sizes) if size]
    return np.dtype(
        {
            "names": [str(position) for position in fields],
            "formats": [columns[position].field for position in fields],
            "offsets": [sum(sizes[:position]) for position in fields],
            "itemsize": max(1, sum(sizes)),
        }
    )


def _regions(records: mmap.mmap | bytes, columns: list[Column]) -> list[np.ndarray]:
    """Return, for each column, the bytes of the records from the column's first value on."""
    sizes = [column.nbytes for column in columns]
    return [np.frombuffer(records, np.uint8, offset=sum(sizes[:position])) for position in range(len(sizes))]


def _take(region: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], places: np.ndarray) -> np.ndarray:
    """Gather the values that begin at these places of a region.

    The region is seen as an array whose element k is the value at byte k: its elements overlap, a byte apart. One plain
    indexing operation then gathers the rows as fast as from an array in memory: an element is copied as a whole.
    """
    size, count = dtype.itemsize * prod(shape), len(places)
    if size == 0:
        return np.empty((count, *shape), dtype)
    if (pieces := _pieces(size, count)) > 1:
        places = (places[:, None] + np.arange(0, size, size // pieces)).reshape(-1)
        size //= pieces
    values = np.ndarray((len(region) - size + 1,), f"V{size}", region, 0, (1,))
    return values[places].view(np.uint8).view(dtype).reshape(count, *shape)


def _pieces(size: int, count: int) -> int:
    """Return how many pieces a value is gathered in: several for few and long ones.

    numpy keeps Python's lock while it gathers up to 500 elements, however long they are, and all threads would wait.
    """
    if size < _LONG or count > _LOCKED:
        return 1
    return next((n for n in range(_LOCKED // count + 1, _LOCKED + 2) if size % n == 0), 1)


def _write_texts(file: _File, array: np.ndarray) -> np.ndarray:
    """Write texts to a file; return the start and the end of each there."""
    texts = array.reshape(-1).tolist()
    data = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
    lengths = np.array([len(each) for each in data], _SPAN)
    ends = file.size + np.cumsum(lengths)
    file.write(b"".join(data))
    return np.stack([ends - lengths, ends], axis=-1).reshape(*array.shape, 2)


def _read_texts(file: mmap.mmap | bytes, spans: np.ndarray, column: Column) -> np.ndarray:
    data = [file[start:end] for start, end in spans.reshape(-1, 2).tolist()]
    texts = [each.decode("utf-8", "surrogatepass") for each in data] if column.dtype == "text" else data
    output = column.empty(len(spans))
    output.reshape(-1)[:] = texts
    return output
