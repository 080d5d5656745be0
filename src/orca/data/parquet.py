"""Parquet: XShards in a folder, a file for each shard. Owns how arrays and trees of them become columns.

A file can be read by any reader of Parquet. Facts that a table cannot hold (that the shard is an array, a tree; shapes
and types of arrays) are JSON in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orca.data import folders
from orca.data.slices import FRAME, class_name_of
from orca.errors import ArgumentError, DataError
from orca.rows.arrow import to_arrow, to_numpy
from orca.rows.tree import flatten, rows_of, unflatten

if TYPE_CHECKING:
    from pyspark import RDD

_KEY = b"orca"
_SUFFIX = ".parquet"


def save(rdd: RDD[Any], path: str) -> None:
    """Write every shard to a file of a folder; see folders.save."""
    folders.save(rdd, path, files_of, "save_parquet")


def files_at(path: str) -> list[str]:
    """Return the files with the shards of a folder.

    Raises:
        ArgumentError: There are none, or the folder is incomplete.
    """
    files = folders.files_at(path, _SUFFIX)
    if not files:
        raise ArgumentError(f"load_parquet: there are no files of save_parquet at {path}.", code="missing-file")
    return files


def loading() -> Callable[[str], Any]:
    """Return the task that reads the shard of a file."""
    return folders.loading(_read)


def files_of(partition: int, shards: Iterable[Any]) -> Iterator[tuple[str, Callable[[BinaryIO], Any]]]:
    """Yield the file of each shard."""
    for number, shard in enumerate(shards):
        yield f"part-{partition:05d}-{number:05d}{_SUFFIX}", partial(pq.write_table, to_table(shard))


def _read(file: BinaryIO) -> Any:
    return from_table(pq.read_table(file))


def to_table(shard: Any) -> pa.Table:
    """Return a frame, an array or a tree of arrays as a table.

    Raises:
        DataError: It is of another kind, or holds values that Arrow has no type for.
    """
    if class_name_of(shard) == FRAME:
        try:
            return pa.Table.from_pandas(shard)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"save_parquet: a column cannot be stored: {error}. Convert it, or use save_pickle.",
                code="column-without-arrow-type",
            ) from error
    leaves, structure = flatten(shard)
    if not leaves or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise DataError(
            "save_parquet takes shards that are pandas DataFrames, arrays, or dicts, lists and tuples of arrays; got "
            f"{class_name_of(shard)}. Use save_pickle for others.",
            code="shards-not-storable",
        )
    rows_of(shard, "a shard")
    about = {"structure": structure, "arrays": [[leaf.dtype.str, leaf.shape[1:]] for leaf in leaves]}
    columns = {f"{i}": to_arrow(_numbers(leaf)) for i, leaf in enumerate(leaves)}
    if any(column.null_count for column in columns.values()):
        raise DataError("save_parquet: an array holds None. Fill it, or use save_pickle.", code="array-holds-none")
    return pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about).encode()})


def from_table(table: pa.Table) -> Any:
    """Return the shard that a table was made of."""
    about = (table.schema.metadata or {}).get(_KEY)
    if about is None:
        return table.to_pandas()
    layout = json.loads(about)
    arrays = []
    for i, (dtype, shape) in enumerate(layout["arrays"]):
        array = to_numpy(table.column(i), f"array {i}")
        if np.dtype(dtype).kind == "S":
            array = np.ascontiguousarray(array).view(dtype)
        arrays.append(array.reshape(len(array), *shape).astype(dtype, copy=False))
    return unflatten(layout["structure"], arrays)


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return an array that to_numpy would not give back (bytes, durations, dates with NaT) as one of numbers."""
    if array.dtype.kind == "S":
        return np.ascontiguousarray(array)[..., None].view(np.uint8)
    if array.dtype.kind == "m" or (array.dtype.kind == "M" and np.isnat(array).any()):
        return array.astype(np.int64)
    return array
