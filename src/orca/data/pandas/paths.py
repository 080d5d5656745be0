"""Paths: the files of a reader. Owns lists, globs, folders, and folders of folders such as `colour=red`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from orca.errors import ArgumentError, DataError
from orca.storage.files import filesystem, name_of

_PARTITION = re.compile(r"(?P<name>[^=]+)=(?P<value>.+)")


@dataclass(frozen=True)
class DataFile:
    """A file.

    Attributes:
        path: Its path.
        size: Its bytes.
        partition: The name and the value of each folder such as `colour=red` between the path that was named and it.
    """

    path: str
    size: int
    partition: tuple[tuple[str, str], ...] = ()


def path_list(file_path: Any) -> list[str]:
    """Return the paths of a path, a comma list of paths, or a list of either; alternatives in braces are expanded.

    Raises:
        ArgumentError: It is something else, or empty.

    Example:
        >>> path_list("a.csv,b-{1,2}.csv")
        ['a.csv', 'b-1.csv', 'b-2.csv']
    """
    if isinstance(file_path, str):
        paths = [path for part in re.split(r",(?![^{]*\})", file_path) for path in _alternatives(part.strip())]
    elif isinstance(file_path, os.PathLike):
        paths = [os.fspath(file_path)]
    elif isinstance(file_path, Iterable):
        paths = [path for part in file_path for path in path_list(part)]
    else:
        raise ArgumentError(
            f"file_path must be a path or a list of paths; got {type(file_path).__name__}.", code="bad-path"
        )
    if not paths or not all(paths):
        raise ArgumentError(f"file_path must be a path or a list of paths; got {file_path!r}.", code="bad-path")
    return paths


def files_at(paths: Iterable[str]) -> list[DataFile]:
    """Return the files at paths, of folders and globs in the order of their names; hidden and empty ones are left out.

    If all are empty, the first is returned: its reader raises the error.

    Raises:
        DataError: There is nothing at a path.
    """
    files = [file for path in paths for file in _files(path)]
    return [file for file in files if file.size] or files[:1]


def _alternatives(path: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", path)
    if match is None:
        return [path]
    before, after = path[: match.start()], path[match.end() :]
    return [whole for word in match[1].split(",") for whole in _alternatives(before + word + after)]


def _files(path: str) -> list[DataFile]:
    fs, place = filesystem(path)
    if fs.isfile(place):
        return [_file(path, fs.info(place))]
    if fs.isdir(place):
        files = _files_in(fs, place, ())
    else:
        entries = fs.glob(place, detail=True) if re.search(r"[*?\[]", place) else {}
        if not entries:
            raise DataError(
                f"No such file or directory: {path!r}. Check the path; workers must reach it too.",
                code="missing-data-file",
            )
        files = []
        for name, entry in sorted(entries.items()):
            files += _files_in(fs, name, ()) if entry["type"] == "directory" else _visible(fs, entry, ())
    if not files:
        raise DataError(
            f"the folder holds no file: {path!r}. Check the path; workers must reach it too.", code="empty-folder"
        )
    return files


def _files_in(fs: Any, folder: str, partition: tuple[tuple[str, str], ...]) -> list[DataFile]:
    files = []
    for entry in sorted(fs.ls(folder, detail=True), key=lambda entry: str(entry["name"])):
        pair = _PARTITION.fullmatch(name_of(entry["name"]))
        if entry["type"] != "directory":
            files += _visible(fs, entry, partition)
        elif pair and not pair["name"].startswith(("_", ".")):
            files += _files_in(fs, entry["name"], (*partition, (unquote(pair["name"]), pair["value"])))
    return files


def _visible(fs: Any, entry: Mapping[str, Any], partition: tuple[tuple[str, str], ...]) -> list[DataFile]:
    """Return the file of an entry, unless it is hidden."""
    is_hidden = name_of(entry["name"]).startswith(("_", "."))
    return [] if is_hidden else [_file(fs.unstrip_protocol(entry["name"]), entry, partition)]


def _file(path: str, info: Mapping[str, Any], partition: tuple[tuple[str, str], ...] = ()) -> DataFile:
    size = info.get("size")
    return DataFile(path, 1 if size is None else int(size), partition)  # some filesystems do not know sizes
