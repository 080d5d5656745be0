"""Folders: shards in files of a folder, on any storage. Owns how tasks write and read them, and when one is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO

from orca.errors import ArgumentError
from orca.storage import hdfs
from orca.storage.files import filesystem, name_of, replacing

_DONE = "_SUCCESS"

# (the number of a partition and its shards) -> the name of each file and its writer
Files = Callable[[int, Iterable[Any]], Iterator[tuple[str, Callable[[BinaryIO], Any]]]]


def save(rdd: Any, path: str, files: Files, verb: str) -> None:
    """Write the shards of all partitions to a folder.

    Raises:
        ArgumentError: The folder is not empty.
    """
    fs, place = filesystem(path)
    if fs.exists(place) and (not fs.isdir(place) or fs.ls(place, detail=False)):
        raise ArgumentError(
            f"{verb}: there is something at {path} already. Remove it, or name another folder.", code="folder-not-empty"
        )
    fs.makedirs(place, exist_ok=True)
    rdd.mapPartitionsWithIndex(saving(path, files)).collect()
    fs.pipe_file(f"{place}/{_DONE}", b"")


def files_at(folder: str, suffix: str) -> list[str]:
    """Return the files with shards, in order; none where there is no folder of such.

    Raises:
        ArgumentError: The folder is incomplete.
    """
    fs, place = filesystem(folder)
    names = sorted(map(name_of, fs.ls(place, detail=False))) if fs.isdir(place) else []
    files = [f"{folder.rstrip('/')}/{name}" for name in names if name.endswith(suffix)]
    if files and _DONE not in names:
        raise ArgumentError(
            f"{folder} holds shards, but their saving did not end; it has {names[:5]}. Save them anew.",
            code="incomplete-shards",
        )
    return files


def saving(folder: str, files: Files) -> hdfs.Reaching:
    """Return a task that writes the shards of a partition, and yields the path of each file."""
    return hdfs.Reaching(partial(_saved, folder=folder, files=files))


def loading(reader: Callable[[BinaryIO], Any]) -> hdfs.Reaching:
    """Return a task that reads a file."""
    return hdfs.Reaching(partial(_loaded, reader=reader))


def _saved(partition: int, shards: Iterable[Any], folder: str, files: Files) -> Iterator[str]:
    for name, write in files(partition, shards):
        path = f"{folder.rstrip('/')}/{name}"
        fs, place = filesystem(path)
        with replacing(fs, place) as draft, fs.open(draft, "wb") as file:
            write(file)
        yield path


def _loaded(path: str, reader: Callable[[BinaryIO], Any]) -> Any:
    fs, place = filesystem(path)
    with fs.open(place, "rb") as file:
        return reader(file)
