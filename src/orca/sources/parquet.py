"""Parquet: rows of files, by their row groups or by their numbers. Owns how many are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from orca.errors import DataError
from orca.rows.arrow import cut_batches, to_arrow

_BLOCK = 4 << 20  # bytes of a record batch, about: it should stay in the processor's cache
_MOST_ROWS = 10_000  # of a record batch
_BUFFER = 1 << 20  # bytes of a column that are read at once


@dataclass(frozen=True)
class RowGroup:
    """Rows of a file that lie together: a row group, or a stretch of it."""

    path: str
    number: int
    start: int
    stop: int
    values: tuple[Any, ...] = ()  # of the columns that the names of its folders are

    @property
    def rows(self) -> int:
        """Return how many rows, before any filter."""
        return self.stop - self.start


def read_row_groups(reader: Reader, path: str, groups: list[RowGroup], multiple: int) -> Iterator[pa.RecordBatch]:
    """Yield the columns that a reader asks for of a Parquet file."""
    with pq.ParquetFile(path, buffer_size=_BUFFER) as file:
        reader.check(path, file.schema_arrow, [_rows(file.metadata, i) for i in range(file.num_row_groups)], groups)
        if reader.skips:
            numbers = set(_matching(path, reader.condition))
            groups = [group for group in groups if group.number in numbers]
        size = batch_rows([_size(file.metadata, group, reader.schema.names) for group in groups[:1]], multiple)
        for whole, some in groupby(groups, key=lambda group: _is_whole(group, file.metadata)):
            for run in [list(some)] if whole else [[group] for group in some]:
                batches = file.iter_batches(
                    size, row_groups=[group.number for group in run], columns=reader.schema.names, use_threads=False
                )
                yield from batches if whole else cut_batches(batches, run[0].start, run[0].stop)


@dataclass(frozen=True)
class Reader:
    """The columns and rows of files that a scan asks for.

    Attributes:
        columns: The column of the files that each column of the scan is.
        schema: The columns to read, those of the condition too, as Spark's types are in Arrow.
        condition: The filter of the rows; None for all.
        skips: Whether row groups may be left out where their footers contradict the condition.
        folders: The columns that are no file's, but in the names of folders: each row group says their values.
    """

    columns: tuple[str, ...]
    schema: pa.Schema
    condition: pc.Expression | None = None
    skips: bool = False
    folders: pa.Schema = field(default_factory=lambda: pa.schema([]))

    @property
    def types(self) -> list[pa.DataType]:
        """Return the types of the columns of the scan."""
        return [self._whole.field(name).type for name in self.columns]

    @property
    def _whole(self) -> pa.Schema:
        return pa.schema([*self.schema, *self.folders])

    def __call__(self, groups: Iterable[RowGroup], multiple: int = 1) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order, in record batches of a multiple of rows where nothing is left out."""
        for path, mine in groupby(groups, key=lambda group: group.path):
            try:
                run = list(mine)
                for batch in read_row_groups(self, path, run, multiple):
                    yield from self._chosen(batch, run[0].values)
            except FileNotFoundError:
                raise DataError(
                    f"the file {path} is not there any more; the DataFrame was made when it was. Make the DataFrame "
                    "anew (spark.read) and use that.",
                    code="file-gone",
                ) from None

    def check(self, path: str, schema: pa.Schema, rows: list[int], groups: Iterable[RowGroup]) -> None:
        """Raise where a file is another one now: its columns and the rows of its groups say so."""
        fits = all(group.number < len(rows) and group.stop <= rows[group.number] for group in groups)
        if not set(schema.names).issuperset(self.schema.names) or not fits:
            raise replaced(path)

    def _chosen(self, batch: pa.RecordBatch, values: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch for which the condition holds, as the columns of the scan."""
        cells = [batch.column(field.name).cast(field.type) for field in self.schema]
        for value, kind in zip(values, self.folders.types, strict=True):
            cells.append(pa.repeat(pa.scalar(value, kind), batch.num_rows))
        whole = pa.RecordBatch.from_arrays(cells, schema=self._whole)
        parts = (
            [whole] if self.condition is None else pa.Table.from_batches([whole]).filter(self.condition).to_batches()
        )
        names = [f"c{i}" for i in range(len(self.columns))]
        for rows in parts:
            yield pa.RecordBatch.from_arrays([rows.column(name) for name in self.columns], names=names)


class Cursor:
    """A place in a file, from which rows are read by their numbers: fast where these grow.

    Args:
        reader: Says which columns.
        address: The file, as Spark writes it.
        multiple: How many rows to read at a time, or several times as many.
    """

    def __init__(self, reader: Reader, address: str, multiple: int) -> None:
        self.address, self._reader, self._multiple = address, reader, multiple
        path = path_of(address)
        self._groups = list(row_groups(path, pq.read_metadata(path)))
        self._starts = np.cumsum([0, *(group.rows for group in self._groups)])
        self._batches = reader(self._groups, multiple)
        self._batch: pa.RecordBatch | None = None
        self._start = self._stop = 0  # of the rows in the batch

    def take(self, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these numbers, in this order.

        Raises:
            DataError: The file has no such rows.
        """
        for piece in np.split(rows, np.flatnonzero(np.diff(rows) <= 0) + 1):  # parts of a file come in any order
            while len(piece):
                batch = self._at(int(piece[0]))
                count = int(np.searchsorted(piece, self._stop))
                inside = piece[:count] - self._start
                dense = inside[-1] - inside[0] == count - 1
                yield batch.slice(inside[0], count) if dense else batch.take(to_arrow(inside))
                piece = piece[count:]

    def _at(self, row: int) -> pa.RecordBatch:
        """Return the batch that has a row; row groups in between are not read."""
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        if row < self._start or self._starts[group] > self._stop:
            self._batches, self._stop = self._reader(self._groups[group:], self._multiple), int(self._starts[group])
        while row >= self._stop:
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise replaced(path_of(self.address))
            self._start, self._stop = self._stop, self._stop + self._batch.num_rows
        assert self._batch is not None
        return self._batch


def path_of(address: str) -> str:
    """Return the path of a file, which Spark writes as a URI."""
    return unquote(urlsplit(address).path)


def row_groups(path: str, footer: pq.FileMetaData) -> Iterator[RowGroup]:
    """Yield the row groups of a file that have rows."""
    for number in range(footer.num_row_groups):
        rows = footer.row_group(number).num_rows
        if rows:
            yield RowGroup(path, number, 0, rows)


def replaced(path: str) -> DataError:
    """Return the error that says that a file is another one now."""
    return DataError(
        f"the file {path} is not the one that was there when the DataFrame was made. Make the DataFrame anew "
        "(spark.read) and use that.",
        code="file-changed",
    )


def _matching(path: str, condition: pc.Expression | None) -> list[int]:
    """Return the row groups that may have rows for which the condition holds."""
    fragment = ds.ParquetFileFormat().make_fragment(path, fs.LocalFileSystem()).subset(condition)
    return [group.id for group in fragment.row_groups]


def batch_rows(sizes: Iterable[tuple[int, int]], multiple: int) -> int:
    """Return how many rows a record batch should have, for the bytes and rows that row groups have."""
    width = sum(size // max(1, rows) for size, rows in sizes)
    rows = min(_MOST_ROWS, _BLOCK // max(1, width))
    return max(1, rows // multiple) * multiple


def _size(footer: pq.FileMetaData, group: RowGroup, names: list[str]) -> tuple[int, int]:
    """Return the bytes of some columns of a row group, and its rows."""
    whole, roots = footer.row_group(group.number), set(names)
    columns = (whole.column(number) for number in range(whole.num_columns))
    size = sum(each.total_uncompressed_size for each in columns if each.path_in_schema.split(".")[0] in roots)
    return size, whole.num_rows


def _rows(footer: pq.FileMetaData, number: int) -> int:
    return int(footer.row_group(number).num_rows)


def _is_whole(group: RowGroup, footer: pq.FileMetaData) -> bool:
    return group.start == 0 and group.stop == _rows(footer, group.number)
