"""Paths: the files of a reader. Owns lists, globs and folders, and how files are distributed over tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orca.errors import ArgumentError, DataError
from orca.storage.files import filesystem, name_of

_TASK_BYTES = 128 << 20  # as in Spark


@dataclass(frozen=True)
class DataFile:
    """A file and its size."""

    path: str
    size: int


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
        raise ArgumentError(f"file_path must be a path or a list of paths; got {type(file_path).__name__}.")
    if not paths or not all(paths):
        raise ArgumentError(f"file_path must be a path or a list of paths; got {file_path!r}.")
    return paths


def files_at(paths: Iterable[str]) -> list[DataFile]:
    """Return the files at paths, of folders and globs in the order of their names; hidden and empty ones are left out.

    If all are empty, the first is returned: its reader raises the error.

    Raises:
        DataError: There is nothing at a path.
    """
    files = [file for path in paths for file in _files(path)]
    return [file for file in files if file.size] or files[:1]


def dealt(files: list[DataFile], tasks: int) -> list[list[DataFile]]:
    """Return the files in groups of about equal size, in their order: one for each task, more if files are large.

    Example:
        >>> files = [DataFile("a", 5), DataFile("b", 1), DataFile("c", 4)]
        >>> [[file.path for file in group] for group in dealt(files, 2)]
        [['a'], ['b', 'c']]
    """
    total = sum(file.size for file in files)
    count = min(len(files), max(tasks, -(-total // _TASK_BYTES)))
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    before = 0
    for file in files:  # each goes to the group of its middle byte; empty files count as one byte
        middle = before + (file.size + 1) / 2
        groups[min(count - 1, int(middle * count / (total + len(files))))].append(file)
        before += file.size + 1
    return [group for group in groups if group]


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
        entries = {str(entry["name"]): entry for entry in fs.ls(place, detail=True)}
    else:
        entries = fs.glob(place, detail=True) if re.search(r"[*?\[]", place) else {}
    if not entries:
        what = "the folder holds no file" if fs.exists(place) else "No such file or directory"
        raise DataError(f"{what}: {path!r}. Check the path; workers must reach it too.")
    files = []
    for name, entry in sorted(entries.items()):
        if entry["type"] == "directory" and not fs.isdir(place):  # a glob of folders
            files += _files(fs.unstrip_protocol(name))
        elif entry["type"] != "directory" and not name_of(name).startswith(("_", ".")):
            files.append(_file(fs.unstrip_protocol(name), entry))
    if not files:
        raise DataError(f"the folder holds no file: {path!r}. Check the path.")
    return files


def _file(path: str, info: Mapping[str, Any]) -> DataFile:
    size = info.get("size")
    return DataFile(path, 1 if size is None else int(size))  # some filesystems do not know sizes
