"""Files: images, texts and tables in files as rows, here or in an RDD. Owns the files of a path, and their labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orca.errors import DataError
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of


def is_rdd(rows: Any) -> bool:
    """Recognise rows in an RDD."""
    return any(kind.__name__ == "RDD" for kind in type(rows).__mro__)


def mapped(rows: Any, function: Callable[[Any], Any]) -> Any:
    """Return the results of a function for each row: an RDD, or a list."""
    return rows.map(function) if is_rdd(rows) else [function(row) for row in rows]


def files_at(path: str, endings: Sequence[str] = ()) -> list[str]:
    """Return the files of a folder at any depth, of a pattern, or a file itself; hidden ones are left out."""
    fs, place = filesystem(path)
    places = [place] if fs.exists(place) else fs.glob(place)
    entries = [entry for each in places for entry in (fs.find(each) if fs.isdir(each) else [each])]
    names = [name for name in sorted(entries) if not name_of(name).startswith((".", "_"))]
    paths = [fs.unstrip_protocol(name) for name in names if not endings or name.lower().endswith(tuple(endings))]
    if not paths:
        raise DataError(f"there are no files{f' that end in {endings}' if endings else ''} at {path}.")
    return paths


def folder_of(path: str) -> str:
    """Return the name of the folder of a file."""
    return name_of(os.path.dirname(path))


def classes_of(root: str, paths: Sequence[str], first: int) -> dict[str, int]:
    """Return the number of each folder's name; refuse files next to the folders of classes."""
    names = sorted(set(map(folder_of, paths)))
    fs, place = filesystem(root)
    loose = [path for path in paths if fs.isdir(place) and os.path.dirname(filesystem(path)[1]) == place.rstrip("/")]
    if loose and len(names) > 1:
        raise DataError(f"{loose[0]} lies beside the folders whose names are the labels. Move it into one, or away.")
    return {name: number for number, name in enumerate(names, first)}


@dataclass(frozen=True)
class FileReader:
    """A reader of files as rows, also on workers, which get the address of HDFS."""

    row: Callable[[bytes, int | None, str], Any]  # of the content, the label and the path
    labels: Mapping[str, int] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=hdfs.environment)

    def __call__(self, path: str) -> Any:
        """Read a file, as a row."""
        hdfs.adopt(self.where)
        return self.row(content_of(path), self.labels.get(folder_of(path)), path)

    def all(self, paths: Sequence[str], sc: Any, partitions: int) -> Any:
        """Read files: an RDD with a SparkContext, else a list."""
        return mapped(paths if sc is None else sc.parallelize(paths, max(partitions, 1)), self)


def content_of(path: str) -> bytes:
    """Return the bytes of a file at any fsspec path."""
    fs, place = filesystem(path)
    content: bytes = fs.cat_file(place)
    return content


def lines_of(path: str, sc: Any, partitions: int) -> Any:
    """Return the lines of text files that are not empty: a list, or an RDD with a SparkContext."""
    if sc is not None:
        return sc.textFile(path, max(partitions, 1)).filter(str.strip)
    texts = (content_of(name).decode() for name in files_at(path))
    return [line.rstrip("\r") for text in texts for line in text.split("\n") if line.strip()]


def records_of(path: str, sc: Any, columns: Sequence[str]) -> Any:
    """Return the rows of columns of Parquet files: a list, or an RDD with a SparkContext."""
    if sc is not None:
        from pyspark.sql import SparkSession

        return SparkSession(sc).read.parquet(path).select(*columns).rdd
    import pyarrow.parquet as parquet

    fs, place = filesystem(path)
    rows = parquet.read_table(place, filesystem=fs, columns=list(columns)).to_pylist()
    return [tuple(row[name] for name in columns) for row in rows]
