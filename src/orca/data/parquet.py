"""Parquet: XShards in a folder, a file for each shard. Owns how arrays and trees of them become columns.

A file can be read by any reader of Parquet. What a table cannot say of a shard (that it is an array, a tree; shapes
and types of arrays) is JSON in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orca.data.slices import FRAME, class_name_of
from orca.errors import ArgumentError, DataError
from orca.rows.arrow import to_arrow, to_numpy
from orca.rows.tree import flatten, rows_of, unflatten
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of, replacing

if TYPE_CHECKING:
    from pyspark import RDD

_KEY = b"orca"
_DONE = "_SUCCESS"
_SUFFIX = ".parquet"


def save(rdd: RDD[Any], path: str) -> None:
    """Write every shard to a file of a folder.

    Raises:
        ArgumentError: The folder is not empty.
    """
    fs, place = filesystem(path)
    if fs.exists(place) and (not fs.isdir(place) or fs.ls(place, detail=False)):
        raise ArgumentError(f"save_parquet: there is something at {path} already. Remove it, or name another folder.")
    fs.makedirs(place, exist_ok=True)
    rdd.mapPartitionsWithIndex(ParquetSaving(path)).collect()
    fs.pipe_file(f"{place}/{_DONE}", b"")


def files_at(path: str) -> list[str]:
    """Return the files with the shards of a folder.

    Raises:
        ArgumentError: There is no such folder, or it is incomplete.
    """
    fs, place = filesystem(path)
    if not fs.isdir(place):
        raise ArgumentError(f"load_parquet: Path does not exist: {path}.")
    names = sorted(map(name_of, fs.ls(place, detail=False)))
    files = [f"{path.rstrip('/')}/{name}" for name in names if name.endswith(_SUFFIX)]
    if _DONE not in names or not files:
        raise ArgumentError(f"load_parquet: {path} holds no XShards, or save_parquet did not end; it has {names[:5]}.")
    return files


@dataclass(frozen=True)
class ParquetSaving:
    """A task that writes the shards of a partition."""

    folder: str
    where: Mapping[str, str] = field(default_factory=hdfs.environment)

    def __call__(self, partition: int, shards: Iterable[Any]) -> Iterator[int]:
        """Yield a number for each shard."""
        hdfs.adopt(self.where)
        fs, place = filesystem(self.folder)
        for number, shard in enumerate(shards):
            table = to_table(shard)
            with (
                replacing(fs, f"{place}/part-{partition:05d}-{number:05d}{_SUFFIX}") as draft,
                fs.open(draft, "wb") as file,
            ):
                pq.write_table(table, file)
            yield number


@dataclass(frozen=True)
class ParquetLoading:
    """A task that reads shards."""

    where: Mapping[str, str] = field(default_factory=hdfs.environment)

    def __call__(self, path: str) -> Any:
        """Return the shard of a file."""
        hdfs.adopt(self.where)
        fs, place = filesystem(path)
        with fs.open(place, "rb") as file:
            return from_table(pq.read_table(file))


def to_table(shard: Any) -> pa.Table:
    """Return a frame, an array or a tree of arrays as a table.

    Raises:
        DataError: It is of another kind, or holds what Arrow has no type for.
    """
    if class_name_of(shard) == FRAME:
        try:
            return pa.Table.from_pandas(shard)
        except (pa.ArrowException, TypeError) as error:
            raise DataError(
                f"save_parquet: a column cannot be stored: {error}. Convert it, or use save_pickle."
            ) from error
    leaves, structure = flatten(shard)
    if not leaves or not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise DataError(
            "save_parquet takes shards that are pandas DataFrames, arrays, or dicts, lists and tuples of arrays; got "
            f"{class_name_of(shard)}. Use save_pickle for others."
        )
    rows_of(shard, "a shard")
    about = {"structure": structure, "arrays": [[leaf.dtype.str, leaf.shape[1:]] for leaf in leaves]}
    columns = {f"{i}": to_arrow(_numbers(leaf)) for i, leaf in enumerate(leaves)}
    if any(column.null_count for column in columns.values()):
        raise DataError("save_parquet: an array holds None. Fill it, or use save_pickle.")
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
    """Return an array of what to_numpy would not give back (bytes, durations, dates with NaT) as one of numbers."""
    if array.dtype.kind == "S":
        return np.ascontiguousarray(array)[..., None].view(np.uint8)
    if array.dtype.kind == "m" or (array.dtype.kind == "M" and np.isnat(array).any()):
        return array.astype(np.int64)
    return array
