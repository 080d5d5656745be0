"""Pickles: a file for the shards of each partition, where Spark does not write them. Owns the layout of a folder."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO

from orca.data import folders

_SUFFIX = ".pickle"


def save(rdd: Any, path: str) -> None:
    """Write a file for each partition; see folders.save."""
    folders.save(rdd, path, files_of, "save_pickle")


def path_at(folder: str, partition: int) -> str:
    """Return the file of a partition."""
    return f"{folder.rstrip('/')}/{_name(partition)}"


def files_at(folder: str) -> list[str]:
    """Return the files of all partitions; see folders.files_at."""
    return folders.files_at(folder, _SUFFIX)


def loading() -> Callable[[str], list[Any]]:
    """Return the task that reads the shards of a file."""
    return folders.loading(pickle.load)


def files_of(partition: int, shards: Iterable[Any]) -> Iterator[tuple[str, Callable[[BinaryIO], Any]]]:
    """Yield the file of a partition's shards."""
    yield _name(partition), partial(pickle.dump, list(shards), protocol=pickle.HIGHEST_PROTOCOL)


def _name(partition: int) -> str:
    return f"part-{partition:06d}{_SUFFIX}"
