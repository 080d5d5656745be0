"""Reading: read_csv, read_json, read_parquet. Owns the choice of Spark or pandas (OrcaContext.pandas_read_backend)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orca.data.pandas.files import shards_by_pandas
from orca.data.pandas.paths import path_list
from orca.data.pandas.table import loaded, shards_of_csv, shards_of_json
from orca.data.spark_frames import frame_shards
from orca.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from orca.data.shard import SparkXShards


def read_csv(file_path: Any, **kwargs: Any) -> SparkXShards:
    """Read CSV files into XShards of pandas DataFrames.

    Args:
        file_path: A file, a folder, a glob, a list of these, or a comma-separated string; on this machine (all workers
            must see it), or at `hdfs://`, `s3://` and so on.
        kwargs: Keywords of pandas.read_csv. Spark, the usual backend, takes header, names, usecols, dtype, squeeze,
            index_col, sep, delimiter, quotechar, escapechar, comment, skipinitialspace, na_values (one text), encoding,
            encoding_errors ("strict", "replace") and on_bad_lines ("error", "skip"). With
            ``OrcaContext.pandas_read_backend = "pandas"`` pandas reads whole files on the workers, with any keyword.

    Returns:
        XShards of DataFrames, or of Series with squeeze=True. ``OrcaContext._shard_size`` is the rows of a shard;
        unset, each partition is one.

    Raises:
        ArgumentError: A keyword that the backend does not take.
        DataError: There is nothing at a path, columns do not fit, or rows are malformed.

    Example:
        ::

            shards = orca.data.pandas.read_csv("ratings/*.csv", usecols=["user", "item"], dtype={"user": "int32"})
            shards = shards.transform_shard(lambda frame: frame[frame.user > 0])
    """
    return _read("read_csv", shards_of_csv, file_path, kwargs)


def read_json(file_path: Any, **kwargs: Any) -> SparkXShards:
    """Read JSON files into XShards of pandas DataFrames.

    Args:
        file_path: As in read_csv.
        kwargs: Spark takes names, usecols, dtype, squeeze, index_col, encoding and lines (True, one object a line;
            False, each file an array of objects). The pandas backend takes all of pandas.read_json.

    Returns:
        XShards as read_csv returns.

    Raises:
        ArgumentError: A keyword that the backend does not take.
        DataError: There is nothing at a path, columns do not fit, or rows are malformed.
    """
    return _read("read_json", shards_of_json, file_path, kwargs)


def read_parquet(
    file_path: Any, columns: Sequence[str] | None = None, schema: Any = None, **options: Any
) -> SparkXShards:
    """Read Parquet files into XShards of pandas DataFrames, with Spark.

    Args:
        file_path: As in read_csv.
        columns: The columns to read; all unless given.
        schema: Names and types to read the files with, as Spark's StructType or text ("id bigint, name string").
        options: Options of Spark's reader, such as mergeSchema=True.

    Returns:
        XShards as read_csv returns; columns of ML vectors become arrays.

    Raises:
        DataError: There is nothing at a path, or no column of a name.
    """
    frame = loaded("parquet", path_list(file_path), options, schema)
    names = frame.columns if columns is None else [columns] if isinstance(columns, str) else list(columns)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(f"there are no columns {missing}; the files have {frame.columns}. Check columns=.")
    return frame_shards(frame.select(*(f"`{name}`" for name in names)))


def _read(name: str, by_spark: Callable[..., SparkXShards], file_path: Any, kwargs: Mapping[str, Any]) -> SparkXShards:
    from orca.cluster.context import OrcaContext

    paths = path_list(file_path)
    if OrcaContext.pandas_read_backend == "pandas":
        return shards_by_pandas(name, paths, kwargs)
    parameters = list(inspect.signature(by_spark).parameters)[1:]
    strange = sorted(set(kwargs) - set(parameters))
    if strange:
        raise ArgumentError(
            f"{name} by Spark does not take {', '.join(strange)}; it takes {', '.join(parameters)}. pandas takes all "
            "of its own: OrcaContext.pandas_read_backend = 'pandas'."
        )
    return by_spark(paths, **kwargs)
