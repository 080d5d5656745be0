"""Files that Spark reads: Parquet, and bytes for images. Owns how Parquet files of several schemas are read as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from orca.data.pandas.paths import DataFile, files_at
from orca.data.spark_frames import refused
from orca.errors import DataError, MissingDependency
from orca.storage import hdfs
from orca.storage.files import filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def parquet_frame(paths: list[str], options: Mapping[str, Any]) -> DataFrame:
    """Return Parquet files as one DataFrame, with the types that fit the values of all files.

    Spark itself takes the types of one file for those of all.

    Raises:
        DataError: There is nothing at a path, or no type fits a column in all files.
    """
    groups = _by_schema(paths)
    if len({schema for _, schema in groups}) < 2:
        return loaded("parquet", paths, options)
    common = _common_schema({schema: files[0].path for (_, schema), files in groups.items()})
    frames = [_cast(root, schema, common, files, options) for (root, schema), files in groups.items()]
    frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    partitions = [name for name in frame.columns if name not in common.names]
    return frame.select(*(f"`{name}`" for name in [*common.names, *partitions]))


def _by_schema(paths: list[str]) -> dict[tuple[str, pa.Schema], list[DataFile]]:
    """Return the files of each folder above partitions and each schema; nothing if they cannot be opened here."""
    from orca.cluster.context import OrcaContext

    try:
        files = [file for path in paths for file in files_at([path])]
    except (DataError, MissingDependency):  # Spark may know the path
        return {}
    if len(files) < 2:
        return {}
    with refused():
        rdd = OrcaContext.get_spark_context().parallelize(files, min(len(files), 32))
        schemas = rdd.mapPartitions(hdfs.Reaching(_schemas)).collect()
    groups: dict[tuple[str, pa.Schema], list[DataFile]] = {}
    for file, schema in zip(files, schemas, strict=True):
        root = file.path.rsplit("/", len(file.partition) + 1)[0]
        groups.setdefault((root if file.partition else "", schema), []).append(file)
    return groups


def _schemas(files: Iterable[DataFile]) -> Iterable[pa.Schema]:
    for file in files:
        fs, place = filesystem(file.path)
        with fs.open(place, "rb") as content:
            try:
                schema = pq.read_schema(content)
            except pa.ArrowInvalid as error:
                raise DataError(f"{file.path} is no Parquet file: {error}", code="not-parquet") from None
        # Categories are texts to Spark.
        kinds = [one.type.value_type if pa.types.is_dictionary(one.type) else one.type for one in schema]
        yield pa.schema([pa.field(name, kind) for name, kind in zip(schema.names, kinds, strict=True)])


def _common_schema(paths: Mapping[pa.Schema, str]) -> pa.Schema:
    common = pa.schema([])
    for schema, path in paths.items():
        try:
            common = pa.unify_schemas([common, schema], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(
                f"no type fits a column in all files: {error}. {path} differs from {next(iter(paths.values()))}. Read "
                "these files apart, or name the other columns: schema='id bigint, name string'.",
                code="column-types-differ",
            ) from None
    return common


def _cast(
    root: str, schema: pa.Schema, common: pa.Schema, files: list[DataFile], options: Mapping[str, Any]
) -> DataFrame:
    """Return files of one schema, with the types of the common one."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    base = {"basePath": root} if root else {}
    frame = loaded("parquet", [file.path for file in files], {**base, **options})
    kinds = {name: common.field(name).type for name in schema.names}
    casts = {
        name: F.col(f"`{name}`").cast(from_arrow_type(kind))
        for name, kind in kinds.items()
        if kind != schema.field(name).type
    }
    return frame.withColumns(casts) if casts else frame


def loaded(kind: str, paths: list[str], options: Mapping[str, Any], schema: Any = None) -> DataFrame:
    """Return files as Spark reads them.

    Raises:
        DataError: There is nothing at a path, or no column in the files.
    """
    from pyspark.errors import AnalysisException

    from orca.cluster.context import OrcaContext

    settings = {name: value for name, value in options.items() if value is not None}
    session = OrcaContext.get_spark_session()
    reader = session.read.format(kind).options(**settings)
    places = ["s3a" + path[2:] if path.startswith("s3:") else path for path in paths]  # Hadoop's name for it
    places = _looked_up(session, places[0]) if len(places) == 1 else places
    try:
        frame = (reader if schema is None else reader.schema(schema)).load(places)
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):
            raise _no_path(paths) from None
        if "UNABLE_TO_INFER_SCHEMA" in str(error):
            raise _no_columns(paths) from None
        raise
    if not frame.columns:
        raise _no_columns(paths)
    return frame


def _looked_up(session: Any, path: str) -> list[str]:
    """Return the paths that one path or glob matches: Spark itself would log a stack trace for a glob or missing file.

    Raises:
        DataError: There is nothing, or Spark has no client for such paths.
    """
    from py4j.protocol import Py4JJavaError

    place = session._jvm.org.apache.hadoop.fs.Path(path)
    try:
        files = place.getFileSystem(session._jsc.hadoopConfiguration())
        if files.exists(place):
            return [path]
        matches = files.globStatus(place)
    except Py4JJavaError as error:
        raise DataError(
            f"Spark cannot open {path}: {error.java_exception.toString()}. Copy the files to a file system of Spark, "
            "or add its client to spark.jars.",
            code="path-unknown-to-spark",
        ) from None
    if not matches:
        raise _no_path([path])
    return [str(match.getPath().toString()) for match in matches]


def _no_path(paths: list[str]) -> DataError:
    return DataError(
        f"Path does not exist: {', '.join(paths)}. Check the path; workers must reach it too.", code="missing-data-file"
    )


def _no_columns(paths: list[str]) -> DataError:
    return DataError(
        f"No columns to parse from file: there is no content at {', '.join(paths)}. Check the path.", code="empty-file"
    )
