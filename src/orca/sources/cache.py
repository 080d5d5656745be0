"""Cache: DataFrames that Spark keeps between calls (cache=True). Owns how many, and when their files have changed.

Spark keeps the rows itself: in the memory that its executors have for storage, and on their disks beyond that. So they
end with the Spark application, however that ends, and a lost executor's part is computed anew. Spark knows a kept
DataFrame by its plan, but takes files for the same whose content has changed. So the plan is marked with their sizes
and times: rows of files that are other ones now are never found, and other queries of the program do not see them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from orca.errors import ArgumentError
from orca.sources.parquet import path_of

MOST = 4  # DataFrames that are kept

_MARK = "orca_cached"
_RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"

_views: list[tuple[DataFrame, DataFrame]] = []  # a DataFrame and its cached columns; the one used last is the last


def cached(frame: DataFrame) -> DataFrame:
    """Return a DataFrame of the same rows and columns, which Spark computes once and keeps.

    Where it would be one too many, the one that was used longest ago is let go.

    Raises:
        ArgumentError: The DataFrame is a stream, or one of Spark Connect, which does not tell its plan.
    """
    if not hasattr(frame, "_jdf") or frame.isStreaming:
        kind = "a streaming DataFrame" if frame.isStreaming else "a DataFrame of Spark Connect"
        raise ArgumentError(
            f"cache=True keeps DataFrames of classic Spark that have an end; got {kind}. Leave cache out"
            + ("." if frame.isStreaming else ", and keep the rows with df.persist() where they do not change.")
        )
    view = frame.select("*", F.lit(_contents(frame)).alias(_MARK))
    stale = [pair for pair in _views if not is_alive(pair[0]) or pair[0].sameSemantics(frame)]
    for pair in stale:
        _views.remove(pair)
        if is_alive(pair[0]) and not pair[1].sameSemantics(view):  # its files were others
            pair[1].unpersist()
    if view.storageLevel == StorageLevel.NONE:  # new, or let go by the program: spark.catalog.clearCache()
        view.persist(StorageLevel.MEMORY_AND_DISK)
    _views.append((frame, view))
    if len(_views) > MOST:
        _views.pop(0)[1].unpersist()
    return view.drop(_MARK)


def is_alive(frame: DataFrame) -> bool:
    """Say whether the Spark that a DataFrame belongs to, classic or Connect, has not been stopped."""
    session: Any = frame.sparkSession
    context = getattr(session, "_sc", None)
    return getattr(session, "is_stopped", False) is not True and (context is None or context._jsc is not None)


def _contents(frame: DataFrame) -> str:
    """Return a digest that differs where a file that the DataFrame reads is another one."""
    digest = hashlib.sha256()
    for address in sorted(set(_addresses(frame))):
        digest.update(f"{address} {_state(frame, address)}\n".encode())
    return digest.hexdigest()


def _addresses(frame: DataFrame) -> Iterator[str]:
    """Yield the addresses of the files that a DataFrame reads, subqueries included."""
    whole = frame._jdf.queryExecution().analyzed()
    java: Any = frame.sparkSession._jvm
    for plan in [whole, *_items(whole.subqueriesAll())]:
        for leaf in _items(plan.collectLeaves()):
            if leaf.getClass().getName() == _RELATION and leaf.relation().getClass().getName() == _FILES:
                files = java.scala.runtime.ScalaRunTime.stringOf(leaf.relation().location().inputFiles())
                yield from filter(None, files.removeprefix("Array(").removesuffix(")").split(", "))


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _state(frame: DataFrame, address: str) -> str:
    """Return the size of a file and when it was written; nothing where it is not there any more."""
    if address.startswith("file:"):
        try:
            status = os.stat(path_of(address))
        except OSError:
            return ""
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    session: Any = frame.sparkSession
    path = session._jvm.org.apache.hadoop.fs.Path(session._jvm.java.net.URI(address))
    try:
        status = path.getFileSystem(session._jsc.hadoopConfiguration()).getFileStatus(path)
    except Exception as error:
        if re.search("FileNotFoundException", str(error)):
            return ""
        raise
    return f"{status.getLen()} {status.getModificationTime()}"
