"""Files of any file system: read, listed, and copied to and from this machine. Owns what a copy may replace.

Paths are those of this machine (`file:` before them or not), `hdfs:`, `s3:` and `s3a:`, `dbfs:`, `memory:`, and any
other that fsspec knows. HDFS needs neither Hadoop's client nor Java: see docs/files.md.

A copy never leaves half a file at its target. Folders are merged: a file that is there already is refused, before
anything is copied, unless `over_write` is true; what else is there stays. Where files can be renamed, all of a folder
is copied to a draft first, and comes to its place only when it is complete; on object stores file after file is.
"""

from __future__ import annotations

import functools
import glob
import inspect
import io
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orca.core.files import filesystem, is_leftover, is_local, move, remove, renames, replaces, replacing
from orca.errors import ArgumentError, MissingDependency, OrcaError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "enable_multi_fs_load", "enable_multi_fs_load_static", "enable_multi_fs_save", "exists", "get_remote_dir_to_local",
    "get_remote_dir_tree_to_local", "get_remote_file_to_local", "get_remote_files_with_prefix_to_local", "is_file",
    "listdir", "load_numpy", "makedirs", "open_image", "open_text", "put_local_dir_to_remote",
    "put_local_dir_tree_to_remote", "put_local_file_to_remote", "put_local_files_with_prefix_to_remote", "rmdir",
    "write_text",
]  # fmt: skip

Path = str | os.PathLike[str]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Write = Callable[[str], None]  # writes one file to the place it is given
_THREADS = 8
logger = logging.getLogger(__name__)


# Reading and writing


def open_text(path: Path) -> list[str]:
    """Return the lines of a text file (UTF-8), without the white space around them.

    Raises:
        ArgumentError: There is no such file.
    """
    return [line.strip() for line in io.StringIO(_content(path).decode("utf-8"))]


def open_image(path: Path) -> Image:
    """Return the image in a file, as Pillow's Image.

    Raises:
        ArgumentError: There is no such file.
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependency(
            "open_image needs the package 'pillow', which is not installed. Run: pip install pillow"
        ) from error
    return Image.open(io.BytesIO(_content(path)))


def load_numpy(path: Path) -> Any:
    """Return the array of an .npy file, or the arrays of an .npz file; never pickled objects.

    Raises:
        ArgumentError: There is no such file.
    """
    return np.load(io.BytesIO(_content(path)))


def write_text(path: Path, text: str) -> int:
    """Write a text file (UTF-8), in the place of one that is there; its folders are made.

    Returns:
        How many characters were written.
    """
    fs, place = filesystem(path)
    _refuse_folder(fs, place, path)
    fs.makedirs(fs._parent(place), exist_ok=True)
    with replacing(fs, place) as draft:
        fs.pipe_file(draft, text.encode("utf-8"))
    return len(text)


# What is there


def exists(path: Path) -> bool:
    """Say whether there is a file or a folder."""
    fs, place = filesystem(path)
    return bool(fs.exists(place))


def is_file(path: Path) -> bool:
    """Say whether there is a file."""
    fs, place = filesystem(path)
    return bool(fs.isfile(place))


def listdir(path: Path) -> list[str]:
    """Return the names of what is in a folder, in order.

    Raises:
        ArgumentError: There is no such folder.
    """
    fs, place = filesystem(path)
    _require_folder(fs, place, path)
    return sorted(str(name).rstrip("/").rsplit("/", 1)[-1] for name in fs.ls(place, detail=False))


def makedirs(path: Path) -> None:
    """Make a folder and those it is in; one that is there stays as it is.

    Raises:
        ArgumentError: There is a file.
    """
    fs, place = filesystem(path)
    if fs.isfile(place):
        raise ArgumentError(f"{path} is to be a folder, but there is {_told(fs, place)}. Choose another path.")
    fs.makedirs(place, exist_ok=True)


def rmdir(path: Path) -> None:
    """Remove a folder with all that is in it.

    Raises:
        ArgumentError: There is no such folder.
    """
    fs, place = filesystem(path)
    _require_folder(fs, place, path)
    remove(os.fspath(path))


# To a file system


def put_local_file_to_remote(
    local_path: Path, remote_path: Path, filemode: int | str | None = None, over_write: bool = False
) -> None:
    """Copy a file of this machine to a path: whole or not at all.

    Args:
        local_path: The file.
        remote_path: Where it goes; into it where there is a folder. Folders above it are made.
        filemode: Who may do what with it, as 0o644 or "644"; None for what is usual there.
        over_write: Whether it may replace a file that is there.

    Raises:
        ArgumentError: There is no such file, or one at the target that may not be replaced.
    """
    source, mode = _local(local_path), _mode(filemode)
    if not os.path.isfile(source):
        raise ArgumentError(f"there is no file {local_path} on this machine to copy. Check the path.")
    fs, place = filesystem(remote_path)
    if fs.isdir(place):
        place = f"{place.rstrip('/')}/{os.path.basename(source)}"
    _refuse(fs, place, remote_path, over_write)
    fs.makedirs(fs._parent(place), exist_ok=True)
    with replacing(fs, place) as draft:
        fs.put_file(source, draft)
        _set_mode(fs, draft, mode, remote_path)


def put_local_dir_to_remote(local_dir: Path, remote_dir: Path) -> None:
    """Copy what is in a folder of this machine to a folder; files that are there are replaced.

    Raises:
        ArgumentError: There is no such folder on this machine, or a file where the folder goes.
    """
    put_local_dir_tree_to_remote(local_dir, remote_dir, over_write=True)


def put_local_dir_tree_to_remote(local_dir: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy what is in a folder of this machine, and in the folders in it, to a folder.

    Args:
        local_dir: The folder.
        remote_dir: Where its content goes; made where there is none.
        over_write: Whether files may replace those that are there.

    Raises:
        ArgumentError: There is no such folder on this machine, or files at the target that may not be replaced.
    """
    source = _local(local_dir)
    if not os.path.isdir(source):
        raise ArgumentError(f"there is no folder {local_dir} on this machine to copy. Check the path.")
    fs, place = filesystem(remote_dir)
    found = {os.path.relpath(at, source): names for at, _, names in os.walk(source, followlinks=True)}
    writers = {
        os.path.normpath(os.path.join(at, name)): _putting(fs, os.path.join(source, at, name))
        for at, names in found.items()
        for name in names
    }
    _bring(writers, [at for at in found if at != "."], fs, place, remote_dir, over_write, _parallel(fs))


def put_local_files_with_prefix_to_remote(local_path_prefix: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy the files of this machine whose paths begin so to a folder.

    Args:
        local_path_prefix: How the paths begin: `model/ckpt-3` for ckpt-3.index and ckpt-3.data.
        remote_dir: Where they go; made where there is none.
        over_write: Whether they may replace files that are there.

    Raises:
        ArgumentError: There are no such files, or some at the target that may not be replaced.
    """
    prefix = _local(local_path_prefix)
    found = [path for path in sorted(glob.glob(glob.escape(prefix) + "*")) if os.path.isfile(path)]
    if not found:
        raise ArgumentError(f"no file on this machine begins with {local_path_prefix}. Check the path.")
    fs, place = filesystem(remote_dir)
    writers = {os.path.basename(path): _putting(fs, path) for path in found}
    _bring(writers, [], fs, place, remote_dir, over_write, _parallel(fs))


# To this machine


def get_remote_file_to_local(remote_path: Path, local_path: Path, over_write: bool = False) -> None:
    """Copy a file to this machine: whole or not at all.

    Args:
        remote_path: The file.
        local_path: Where it goes; into it where there is a folder. Folders above it are made.
        over_write: Whether it may replace a file that is there.

    Raises:
        ArgumentError: There is no such file, or one at the target that may not be replaced.
    """
    fs, place = filesystem(remote_path)
    _require_file(fs, place, remote_path)
    here, target = filesystem(_local(local_path))
    if os.path.isdir(target):
        target = os.path.join(target, os.path.basename(place))
    _refuse(here, target, local_path, over_write)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with replacing(here, target) as draft:
        fs.get_file(place, draft)


def get_remote_dir_to_local(remote_dir: Path, local_dir: Path, over_write: bool = False) -> None:
    """Copy what is in a folder, and in the folders in it, to a folder of this machine.

    Args:
        remote_dir: The folder.
        local_dir: Where its content goes; made where there is none.
        over_write: Whether files may replace those that are there.

    Raises:
        ArgumentError: There is no such folder, or files at the target that may not be replaced.
    """
    fs, place = filesystem(remote_dir)
    _require_folder(fs, place, remote_dir)
    writers, folders, root = {}, [], place.rstrip("/")
    for name, info in fs.find(place, withdirs=True, detail=True).items():
        inside = str(name).rstrip("/").removeprefix(root).lstrip("/")
        if ".." in inside.split("/"):
            raise ArgumentError(f"{remote_dir} holds {inside!r}, which would leave the folder {local_dir}.")
        if info["type"] == "directory":
            folders += [inside] if inside else []
        else:
            writers[inside] = _getting(fs, str(name))
    here, target = filesystem(_local(local_dir))
    _bring(writers, folders, here, target, local_dir, over_write, _parallel(fs))


def get_remote_dir_tree_to_local(remote_dir: Path, local_dir: Path, over_write: bool = False) -> None:
    """Do what get_remote_dir_to_local does: both copy the folders in the folder too."""
    get_remote_dir_to_local(remote_dir, local_dir, over_write)


def get_remote_files_with_prefix_to_local(remote_path_prefix: Path, local_dir: Path, over_write: bool = False) -> str:
    """Copy the files whose paths begin so to a folder of this machine.

    Args:
        remote_path_prefix: How the paths begin: `hdfs://host/model/ckpt-3` for ckpt-3.index and ckpt-3.data.
        local_dir: Where they go; made where there is none.
        over_write: Whether they may replace files that are there.

    Returns:
        How the paths of the copies begin.

    Raises:
        ArgumentError: There are no such files, or some at the target that may not be replaced.
    """
    fs, place = filesystem(remote_path_prefix)
    found = _with_prefix(fs, place)
    if not found:
        raise ArgumentError(f"no file begins with {remote_path_prefix}. Check the path.")
    here, target = filesystem(_local(local_dir))
    writers = {_name(path): _getting(fs, path) for path in found}
    _bring(writers, [], here, target, local_dir, over_write, _parallel(fs))
    return os.path.join(target, _name(place))


# Functions that know this machine's files only


def enable_multi_fs_save(save_func: _Function) -> _Function:
    """Let a method that saves to a path of this machine, its first argument, save to any path.

    It writes to a temporary folder, from where all it wrote is copied: a file, a folder, or several files whose names
    begin alike. Files that are there are replaced, unless the method has an `overwrite` that is false.
    """

    def save(path: Path, call: Callable[[str], Any], arguments: Mapping[str, Any]) -> Any:
        fs, place = filesystem(path)
        if is_local(fs):
            return call(_local(path))
        replaced = all(arguments.get(word) is not False for word in ("overwrite", "over_write"))
        with tempfile.TemporaryDirectory(prefix="orca-") as folder:
            result = call(os.path.join(folder, _name(place)))
            if not os.listdir(folder):
                raise OrcaError(f"{save_func.__name__} wrote nothing that could be copied to {path}.")
            put_local_dir_tree_to_remote(folder, _above(path), over_write=replaced)
        return result

    return _rerouted(save_func, 1, save)


def enable_multi_fs_load(load_func: _Function) -> _Function:
    """Let a method that loads from a path of this machine, its first argument, load from any path.

    The file or folder, or else all files whose names begin so, are copied to a temporary folder for as long as the
    method runs.
    """
    return _rerouted(load_func, 1, _load)


def enable_multi_fs_load_static(load_func: _Function) -> _Function:
    """Do what enable_multi_fs_load does, for a function or static method, whose very first argument is the path."""
    return _rerouted(load_func, 0, _load)


def _load(path: Path, call: Callable[[str], Any], arguments: Mapping[str, Any]) -> Any:
    fs, place = filesystem(path)
    if is_local(fs):
        return call(_local(path))
    with tempfile.TemporaryDirectory(prefix="orca-") as folder:
        copy = os.path.join(folder, _name(place))
        if fs.isdir(place):
            get_remote_dir_to_local(path, copy)
        elif fs.isfile(place):
            get_remote_file_to_local(path, copy)
        else:
            get_remote_files_with_prefix_to_local(path, folder)
        return call(copy)


def _rerouted(
    function: _Function, position: int, run: Callable[[Path, Callable[[str], Any], Mapping[str, Any]], Any]
) -> _Function:
    """Return a function that hands the path among its arguments to `run`, with a way to call it with another."""
    signature = inspect.signature(function)
    name = list(signature.parameters)[position]

    @functools.wraps(function)
    def rerouted(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        if not isinstance(given.arguments.get(name), str | os.PathLike):
            return function(*args, **kwargs)

        def call(path: str) -> Any:
            given.arguments[name] = path
            return function(*given.args, **given.kwargs)

        named = {**given.arguments, **given.arguments.get("kwargs", {})}
        return run(given.arguments[name], call, named)

    return rerouted  # type: ignore[return-value]


# Copying


def _bring(
    writers: Mapping[str, _Write],
    folders: Collection[str],
    fs: Any,
    place: str,
    path: Path,
    over_write: bool,
    parallel: bool,
) -> None:
    """Write files into a folder, by their paths in it; where they can be renamed, none before all are complete."""
    place = place.rstrip("/")
    if fs.isfile(place):
        raise ArgumentError(f"{path} is to be a folder, but there is {_told(fs, place)}. Choose another path.")
    there = bool(fs.isdir(place))
    if there:
        _refuse_any(fs, place, path, writers, over_write)
    if not renames(fs):
        fs.makedirs(place, exist_ok=True)
        _write_all(writers, folders, fs, place, parallel)
        return
    # Beside a new folder; in one that is there, as the one above it may be closed to us.
    mark = uuid.uuid4().hex[:8]
    draft = f"{place}/_orca.draft-{mark}" if there else f"{place}.draft-{mark}"
    try:
        fs.makedirs(draft, exist_ok=True)
        _write_all(writers, folders, fs, draft, parallel)
        if not there:
            move(fs, draft, place)
            return
        for folder in {*folders, *(os.path.dirname(name) for name in writers)} - {""}:
            fs.makedirs(f"{place}/{folder}", exist_ok=True)
        for name in writers:
            if not replaces(fs) and fs.exists(f"{place}/{name}"):
                fs.rm_file(f"{place}/{name}")
            move(fs, f"{draft}/{name}", f"{place}/{name}")
    finally:
        if fs.exists(draft):
            fs.rm(draft, recursive=True)


def _write_all(writers: Mapping[str, _Write], folders: Collection[str], fs: Any, target: str, parallel: bool) -> None:
    for folder in sorted({*folders, *(os.path.dirname(name) for name in writers)} - {""}):
        fs.makedirs(f"{target}/{folder}", exist_ok=True)
    if not parallel or len(writers) < 2:
        for name, write in writers.items():
            write(f"{target}/{name}")
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="orca-files") as threads:
        running = [threads.submit(write, f"{target}/{name}") for name, write in writers.items()]
        try:
            for one in running:
                one.result()
        except BaseException:
            threads.shutdown(wait=True, cancel_futures=True)
            raise


def _parallel(fs: Any) -> bool:
    """Say whether several threads may use a file system at once."""
    return bool(fs.async_impl or is_local(fs) or {"hdfs", "memory"} & set(_listed(fs.protocol)))


def _putting(fs: Any, source: str) -> _Write:
    return lambda spot: fs.put_file(source, spot)


def _getting(fs: Any, source: str) -> _Write:
    return lambda spot: fs.get_file(source, spot)


def _with_prefix(fs: Any, place: str) -> list[str]:
    """Return the files of a folder whose paths begin so."""
    folder = fs._parent(place)
    if not fs.isdir(folder):
        return []
    entries = (entry for entry in fs.ls(folder, detail=True) if entry["type"] != "directory")
    names = (str(entry["name"]) for entry in entries)
    return sorted(name for name in names if name.startswith(place) and not is_leftover(_name(name)))


# Checks


def _content(path: Path) -> bytes:
    fs, place = filesystem(path)
    _require_file(fs, place, path)
    return bytes(fs.cat_file(place))


def _require_file(fs: Any, place: str, path: Path) -> None:
    if not fs.isfile(place):
        got = _told(fs, place) if fs.exists(place) else "nothing"
        raise ArgumentError(f"{path} is to be a file, but there is {got}. Check the path.")


def _require_folder(fs: Any, place: str, path: Path) -> None:
    if not fs.isdir(place):
        got = _told(fs, place) if fs.exists(place) else "nothing"
        raise ArgumentError(f"{path} is to be a folder, but there is {got}. Check the path.")


def _refuse_folder(fs: Any, place: str, path: Path) -> None:
    if fs.isdir(place):
        raise ArgumentError(f"{path} is to be a file, but there is a folder. Choose another path.")


def _refuse(fs: Any, place: str, path: Path, over_write: bool) -> None:
    """Refuse to write a file where a folder is, or a file that may not be replaced."""
    _refuse_folder(fs, place, path)
    if not over_write and fs.exists(place):
        raise ArgumentError(f"at {path} there is {_told(fs, place)} already. Pass over_write=True to replace it.")


def _refuse_any(fs: Any, place: str, path: Path, names: Iterable[str], over_write: bool) -> None:
    """Refuse to write files into a folder where folders of these names are, or files that may not be replaced."""
    taken = {name: fs.isdir(f"{place}/{name}") for name in names if fs.exists(f"{place}/{name}")}
    folders = [name for name, folder in taken.items() if folder]
    if folders:
        raise ArgumentError(f"{path}/{folders[0]} is to be a file, but there is a folder. Choose another path.")
    if taken and not over_write:
        first = min(taken)
        raise ArgumentError(
            f"{len(taken)} of the files are in {path} already, {first!r} for example: {_told(fs, f'{place}/{first}')}. "
            "Pass over_write=True to replace them."
        )


def _told(fs: Any, place: str) -> str:
    """Return what is at a place, in words."""
    info = fs.info(place)
    if info["type"] == "directory":
        return "a folder"
    when = info.get("mtime")
    written = f", written {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(when))}" if when else ""
    return f"a file of {info.get('size')} bytes{written}"


def _mode(filemode: int | str | None) -> int | None:
    if filemode is None:
        return None
    try:
        mode = int(filemode, 8) if isinstance(filemode, str) else int(filemode)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o1777:
        raise ArgumentError(f"filemode must be a mode of files, like 0o644 or '644'; got {filemode!r}.")
    return mode


def _set_mode(fs: Any, place: str, mode: int | None, path: Path) -> None:
    if mode is None:
        return
    if is_local(fs):
        os.chmod(place, mode)
    elif hasattr(fs, "chmod"):
        fs.chmod(place, f"{mode:o}")
    else:
        logger.warning("%s is on a file system whose files have no mode: filemode is left out", path)


# Paths


def _local(path: Path) -> str:
    """Return a path of this machine without `file:`."""
    text = os.fspath(path)
    if not text.startswith(("file:", "local:")):
        fs = filesystem(text)[0] if "://" in text else None
        if fs is not None and not is_local(fs):
            raise ArgumentError(f"{text} is to be a path of this machine. The other argument is the remote one.")
        return text
    return str(filesystem(text)[1])


def _name(place: str) -> str:
    return place.rstrip("/").rsplit("/", 1)[-1]


def _above(path: Path) -> str:
    """Return the folder a path is in."""
    return os.fspath(path).rstrip("/").rsplit("/", 1)[0] + "/"


def _listed(protocol: Any) -> list[str]:
    return [protocol] if isinstance(protocol, str) else list(protocol)
