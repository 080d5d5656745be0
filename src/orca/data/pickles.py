"""Pickles: a file for the shards of each partition, where Spark does not write them. Owns the layout of a folder."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orca.errors import ArgumentError
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of, replacing

_SUFFIX = ".pickle"
_DONE = "_SUCCESS"


def save(rdd: Any, path: str) -> None:
    """Write a file for each partition.

    Raises:
        ArgumentError: There is something at the path.
    """
    fs, place = filesystem(path)
    if fs.exists(place):
        raise ArgumentError(f"save_pickle: there is something at {path} already. Remove it, or name another folder.")
    fs.makedirs(place)
    rdd.mapPartitionsWithIndex(PickleSaving(path)).collect()
    fs.pipe_file(f"{place}/{_DONE}", b"")


def path_at(folder: str, partition: int) -> str:
    """Return the file of a partition."""
    return f"{folder.rstrip('/')}/part-{partition:06d}{_SUFFIX}"


def files_at(folder: str) -> list[str]:
    """Return the files of all partitions, in order; none where there is no folder of such.

    Raises:
        ArgumentError: The folder is incomplete.
    """
    fs, place = filesystem(folder)
    names = sorted(map(name_of, fs.ls(place, detail=False))) if fs.isdir(place) else []
    files = [f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(_SUFFIX)]
    if files and _DONE not in names:
        raise ArgumentError(f"load_pickle: save_pickle did not end in {folder}; it has {names[:5]}. Save it anew.")
    return files


@dataclass(frozen=True)
class PickleSaving:
    """A task that writes the shards of a partition."""

    folder: str
    where: Mapping[str, str] = field(default_factory=hdfs.environment)

    def __call__(self, partition: int, shards: Iterable[Any]) -> Iterator[str]:
        """Yield the file."""
        hdfs.adopt(self.where)
        path = path_at(self.folder, partition)
        fs, place = filesystem(path)
        with replacing(fs, place) as draft, fs.open(draft, "wb") as file:
            pickle.dump(list(shards), file, pickle.HIGHEST_PROTOCOL)
        yield path


@dataclass(frozen=True)
class PickleLoading:
    """A task that reads the shards of files."""

    where: Mapping[str, str] = field(default_factory=hdfs.environment)

    def __call__(self, path: str) -> list[Any]:
        """Return the shards of a file."""
        hdfs.adopt(self.where)
        fs, place = filesystem(path)
        with fs.open(place, "rb") as file:
            shards: list[Any] = pickle.load(file)
        return shards
