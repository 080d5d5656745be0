from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orca.sources.parquet import Cursor, Reader, RowGroup, path_of, row_groups
from raised import raises

READER = Reader(("b", "a", "b"), pa.schema({"a": pa.int64(), "b": pa.list_(pa.field("element", pa.float32()))}))


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a file of 100 rows in row groups of 7, with a column that nobody asks for."""
    numbers = pa.array(range(100))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(200, dtype=np.float32)), 2)
    path = tmp_path / "a file.parquet"
    pq.write_table(pa.table({"other": numbers, "b": lists, "a": numbers}), path, row_group_size=7)
    return str(path)


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [number for batch in batches for number in batch.column(1).to_pylist()]


def test_columns_come_in_the_order_and_types_that_are_asked_for(path: str) -> None:
    groups = list(row_groups(path, pq.read_metadata(path)))
    batches = list(READER(groups))
    assert numbers(batches) == list(range(100))
    assert batches[0].schema.names == ["c0", "c1", "c2"]
    assert batches[0].column(0).type == pa.list_(pa.field("element", pa.float32()))
    assert batches[0].column(2).to_pylist() == batches[0].column(0).to_pylist()


def test_stretches_of_row_groups(path: str) -> None:
    assert numbers(list(READER([RowGroup(path, 1, 3, 5), RowGroup(path, 2, 0, 7), RowGroup(path, 14, 1, 2)]))) == [
        *(10, 11),
        *range(14, 21),
        99,
    ]


@pytest.mark.parametrize(
    "rows",
    [range(100), [0], [99], range(3, 90, 11), [5, 6, 7, 40, 41, 98], [50, 51, 2, 3, 99, 0], [9, 9, 8]],
    ids=["all", "first", "last", "sparse", "jumps", "back", "again"],
)
def test_rows_are_found_by_their_numbers(path: str, rows: list[int]) -> None:
    cursor = Cursor(READER, Path(path).as_uri(), 4)
    assert numbers(list(cursor.take(np.array(rows)))) == list(rows)
    assert numbers(list(cursor.take(np.array([1, 60])))) == [1, 60]


def test_rows_that_are_not_there_are_told(path: str) -> None:
    with raises("file-changed"):
        list(Cursor(READER, Path(path).as_uri(), 4).take(np.array([99, 100])))


def test_a_column_that_is_not_there_is_told(path: str) -> None:
    with raises("file-changed"):
        list(Reader(("c",), pa.schema({"c": pa.int64()}))([RowGroup(path, 0, 0, 7)]))


def test_addresses_of_spark_are_paths() -> None:
    assert path_of("file:///tmp/a%20b%25.parquet") == path_of("file:/tmp/a%20b%25.parquet") == "/tmp/a b%.parquet"
