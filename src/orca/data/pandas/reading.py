"""Reading: read_csv, read_json, read_parquet. Owns the keywords that pandas' readers do not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orca.data.pandas.formats import Format
from orca.data.pandas.partitions import partition_frame
from orca.data.pandas.paths import DataFile, files_at, path_list
from orca.data.pandas.spark_files import loaded, parquet_frame
from orca.data.pandas.tables import Finish, read_tables
from orca.data.spark_frames import frame_shards
from orca.errors import DataError
from orca.storage.files import filesystem

if TYPE_CHECKING:
    import pandas as pd

    from orca.data.ray_shards import RayXShards
    from orca.data.shard import SparkXShards


def read_csv(file_path: Any, **kwargs: Any) -> SparkXShards | RayXShards:
    """Read CSV files into XShards of pandas DataFrames.

    pandas reads them on the workers, large files in ranges of lines. The rows and types are those of
    ``pandas.concat([pandas.read_csv(file, **kwargs) for file in files])``, with one type for a column in all shards:
    the one that pandas infers from the rows of all files. Partition columns (folders such as ``colour=red``) come last.

    Args:
        file_path: A file, a folder, a glob, a list of these, or a comma-separated string; on this machine (all workers
            must see it), or at `hdfs://`, `s3://` and so on.
        kwargs: Keywords of pandas.read_csv, and `squeeze`. Files are read whole, each by one task, if they are
            compressed or in an encoding such as UTF-16, if fields have line breaks, and with keywords such as
            `skipfooter`, `nrows`, `comment`, `converters` or `engine`.

    Returns:
        XShards of DataFrames, or of Series with squeeze=True; on Ray if the program runs on Ray alone.
        ``OrcaContext._shard_size`` is the rows of a shard; unset, each partition is one.

    Raises:
        ArgumentError: A keyword that pandas does not have, or one that asks for parts of a file (`chunksize`).
        DataError: There is nothing at a path, columns do not fit, or pandas refuses a file.

    Example:
        ::

            shards = orca.data.pandas.read_csv("ratings/*.csv", usecols=["user", "item"], dtype={"user": "int32"})
            shards = shards.transform_shard(lambda frame: frame[frame.user > 0])
    """
    files = files_at(path_list(file_path))
    partitions = partition_frame(files, kwargs.get("dtype"))
    squeeze = bool(kwargs.pop("squeeze", False))
    usecols = kwargs.get("usecols")
    if usecols is not None and not callable(usecols):
        chosen = [usecols] if isinstance(usecols, str) else list(usecols)
        kwargs["usecols"] = [one for one in chosen if one not in partitions]
        if not kwargs["usecols"]:
            raise DataError(f"usecols chooses none of the columns in the files; got {usecols!r}.", code="no-columns")
        partitions = partitions[[name for name in partitions if name in chosen]]
    elif usecols is not None:
        partitions = partitions[[name for name in partitions if usecols(name)]]
    form = Format("read_csv", kwargs)
    form.probe(files[0])
    return read_tables(form, Finish(_by_folder(files, partitions), squeeze=squeeze), files)


def read_json(file_path: Any, **kwargs: Any) -> SparkXShards | RayXShards:
    """Read JSON files into XShards of pandas DataFrames.

    Args:
        file_path: As in read_csv.
        kwargs: Keywords of pandas.read_json, and `names`, `usecols`, `index_col` and `squeeze`, which mean what they do
            in read_csv. `lines` is True unless given: each line is an object. For files that begin as one array of
            objects it is False. With lines=False, or with an `orient`, each file is read whole by
            one task. If ``OrcaContext.pandas_read_backend`` is "pandas", `lines` is False
            unless given, as in pandas.

    Returns:
        XShards as read_csv returns.

    Raises:
        ArgumentError: A keyword that pandas does not have, or one that asks for parts of a file (`chunksize`).
        DataError: There is nothing at a path, columns do not fit, or pandas refuses a file.
    """
    from orca.cluster.context import OrcaContext

    files = files_at(path_list(file_path))
    partitions = partition_frame(files, kwargs.get("dtype"))
    own = {name: kwargs.pop(name, None) for name in ("names", "usecols", "index_col")}
    squeeze = bool(kwargs.pop("squeeze", False))
    is_plain = kwargs.get("orient") is None and kwargs.get("typ", "frame") == "frame"
    if "lines" not in kwargs:
        kwargs["lines"] = is_plain and OrcaContext.pandas_read_backend == "spark" and not _is_array(files[0])
    form = Format("read_json", kwargs)
    form.probe(files[0])
    finish = Finish(_by_folder(files, partitions), own["names"], own["usecols"], own["index_col"], squeeze)
    return read_tables(form, finish, files)


def read_parquet(
    file_path: Any, columns: Sequence[str] | None = None, schema: Any = None, **options: Any
) -> SparkXShards:
    """Read Parquet files into XShards of pandas DataFrames, with Spark.

    Columns have the types that fit the values of all files: int32 and int64 become int64, integers and floats float64.
    A column that only some files have is null in the rows of the others.

    Args:
        file_path: As in read_csv.
        columns: The columns to read; all unless given.
        schema: Names and types to read the files with, as Spark's StructType or text ("id bigint, name string").
        options: Options of Spark's reader.

    Returns:
        XShards as read_csv returns; columns of ML vectors become arrays.

    Raises:
        DataError: There is nothing at a path, no column of a name, or files have a column with types such as text and
            numbers.
    """
    paths = path_list(file_path)
    frame = parquet_frame(paths, options) if schema is None else loaded("parquet", paths, options, schema)
    names = frame.columns if columns is None else [columns] if isinstance(columns, str) else list(columns)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise DataError(
            f"there are no columns {missing}; the files have {frame.columns}. Check columns=.", code="missing-column"
        )
    return frame_shards(frame.select(*(f"`{name}`" for name in names)))


def _by_folder(files: Sequence[DataFile], partitions: pd.DataFrame) -> dict[Any, pd.DataFrame]:
    """Return the row of partition columns for the files of each folder."""
    folders = {file.partition: number for number, file in enumerate(files)}
    return {folder: partitions.iloc[[number]] for folder, number in folders.items()} if len(partitions.columns) else {}


def _is_array(file: DataFile) -> bool:
    """Return whether a JSON file begins as an array of objects."""
    fs, place = filesystem(file.path)
    with fs.open(place, "rb", compression="infer") as content:
        return re.match(rb"(\xef\xbb\xbf)?\s*\[\s*\{", content.read(1 << 10)) is not None
