"""Files of any file system: read, listed, and copied to and from this machine. Owns which files a copy may replace.

Paths are those of this machine (`file:` before them or not), `hdfs:`, `s3:` and `s3a:`, `dbfs:`, `memory:`, and any
other that fsspec knows. HDFS needs neither Hadoop's client nor Java: see docs/files.md.

A copy never leaves half a file at its target. Folders are merged: a file that is there already is refused, before
anything is copied, unless `over_write` is true; other files stay. Where files can be renamed, all of a folder
is copied to a draft first, and comes to its place only when it is complete; on object stores file after file is.

Not fsspec's `put(recursive=True)` and `get`: they leave out what is in linked folders, replace files without asking,
leave halves, and copy one file at a time on file systems without asyncio, such as HDFS.
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
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from orca.errors import ArgumentError, DataError, MissingDependency, OrcaError
from orca.storage.files import filesystem, is_leftover, is_local, move, name_of, remove, renames, replaces, replacing

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
_THREADS = 8
_THREAD_SAFE = ("memory", ("hdfs",))  # protocols that threads may share, besides this machine and asynchronous ones
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
        DataError: It is no image, or one of far more pixels than an image has.
        MissingDependency: Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependency.of("pillow", "image", "open_image") from error
    try:
        return Image.open(io.BytesIO(_content(path)))
    except (UnidentifiedImageError, Image.DecompressionBombError, ValueError, SyntaxError) as error:
        raise DataError(
            f"{path} is no image that Pillow reads: {error}. Take it out of the data.", code="not-an-image"
        ) from None


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
    _refuse(fs, place, path, over_write=True)
    fs.makedirs(fs._parent(place), exist_ok=True)
    with replacing(fs, place) as draft:
        fs.pipe_file(draft, text.encode("utf-8"))
    return len(text)


# Looking


def exists(path: Path) -> bool:
    """Say whether there is a file or a folder."""
    fs, place = filesystem(path)
    return bool(fs.exists(place))


def is_file(path: Path) -> bool:
    """Say whether there is a file."""
    fs, place = filesystem(path)
    return bool(fs.isfile(place))


def listdir(path: Path) -> list[str]:
    """Return the names of a folder's entries, in order.

    Raises:
        ArgumentError: There is no such folder.
    """
    fs, place = filesystem(path)
    _require("folder", fs, place, path)
    return sorted(map(name_of, fs.ls(place, detail=False)))


def makedirs(path: Path) -> None:
    """Make a folder and those it is in; one that is there stays as it is.

    Raises:
        ArgumentError: There is a file.
    """
    fs, place = filesystem(path)
    _refuse_file(fs, place, path)
    fs.makedirs(place, exist_ok=True)


def rmdir(path: Path) -> None:
    """Remove a folder with all that is in it.

    Raises:
        ArgumentError: There is no such folder.
    """
    fs, place = filesystem(path)
    _require("folder", fs, place, path)
    remove(os.fspath(path))


# To a file system


def put_local_file_to_remote(
    local_path: Path, remote_path: Path, filemode: int | str | None = None, over_write: bool = False
) -> None:
    """Copy a file of this machine to a path: whole or not at all.

    Args:
        local_path: The file.
        remote_path: The target; into it where there is a folder. Folders above it are made.
        filemode: Its permissions, as 0o644 or "644"; None for the usual ones there.
        over_write: Whether it may replace a file that is there.

    Raises:
        ArgumentError: There is no such file, or one at the target that may not be replaced.
    """
    source, mode = _local(local_path), _mode(filemode)
    if not os.path.isfile(source):
        raise ArgumentError(
            f"there is no file {local_path} on this machine to copy. Check the path.", code="missing-local-file"
        )
    _copy_file(filesystem(remote_path)[0].put_file, source, remote_path, over_write, mode)


def put_local_dir_to_remote(local_dir: Path, remote_dir: Path) -> None:
    """Copy the files of a folder of this machine to a folder; files that are there are replaced.

    Raises:
        ArgumentError: There is no such folder on this machine, or a file where the folder goes.
    """
    put_local_dir_tree_to_remote(local_dir, remote_dir, over_write=True)


def put_local_dir_tree_to_remote(local_dir: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy the files of a folder of this machine, and of the folders in it, to a folder.

    Args:
        local_dir: The folder.
        remote_dir: The folder for its content; made where there is none.
        over_write: Whether files may replace those that are there.

    Raises:
        ArgumentError: There is no such folder on this machine, or files at the target that may not be replaced.
    """
    source = _local(local_dir)
    if not os.path.isdir(source):
        raise ArgumentError(
            f"there is no folder {local_dir} on this machine to copy. Check the path.", code="missing-local-file"
        )
    tree = {os.path.relpath(at, source): names for at, _, names in os.walk(source, followlinks=True)}
    paths = [os.path.normpath(os.path.join(at, name)) for at, names in tree.items() for name in names]
    sources = {path: os.path.join(source, path) for path in paths}
    remote = filesystem(remote_dir)[0]
    _copy_files(remote, remote.put_file, sources, set(tree) - {"."}, remote_dir, over_write)


def put_local_files_with_prefix_to_remote(local_path_prefix: Path, remote_dir: Path, over_write: bool = False) -> None:
    """Copy the files of this machine whose paths begin so to a folder.

    Args:
        local_path_prefix: How the paths begin: `model/ckpt-3` for ckpt-3.index and ckpt-3.data.
        remote_dir: Their folder; made where there is none.
        over_write: Whether they may replace files that are there.

    Raises:
        ArgumentError: There are no such files, or some at the target that may not be replaced.
    """
    prefix = _local(local_path_prefix)
    paths = [path for path in glob.glob(glob.escape(prefix) + "*") if os.path.isfile(path)]
    if not paths:
        raise ArgumentError(
            f"no file on this machine begins with {local_path_prefix}. Check the path.", code="missing-local-file"
        )
    remote = filesystem(remote_dir)[0]
    sources = {os.path.basename(path): path for path in paths}
    _copy_files(remote, remote.put_file, sources, (), remote_dir, over_write)


# To this machine


def get_remote_file_to_local(remote_path: Path, local_path: Path, over_write: bool = False) -> None:
    """Copy a file to this machine: whole or not at all.

    Args:
        remote_path: The file.
        local_path: The target; into it where there is a folder. Folders above it are made.
        over_write: Whether it may replace a file that is there.

    Raises:
        ArgumentError: There is no such file, or one at the target that may not be replaced.
    """
    fs, place = filesystem(remote_path)
    _require("file", fs, place, remote_path)
    _copy_file(fs.get_file, place, _local(local_path), over_write)


def get_remote_dir_to_local(remote_dir: Path, local_dir: Path, over_write: bool = False) -> None:
    """Copy the files of a folder, and of the folders in it, to a folder of this machine.

    Args:
        remote_dir: The folder.
        local_dir: The folder for its content; made where there is none.
        over_write: Whether files may replace those that are there.

    Raises:
        ArgumentError: There is no such folder, or files at the target that may not be replaced.
    """
    fs, place = filesystem(remote_dir)
    _require("folder", fs, place, remote_dir)
    sources, folders, root = {}, set(), place.rstrip("/")
    for name, info in fs.find(place, withdirs=True, detail=True).items():
        inside = str(name).rstrip("/").removeprefix(root).lstrip("/")
        if ".." in inside.split("/"):
            raise ArgumentError(
                f"{remote_dir} holds {inside!r}, which would leave the folder {local_dir}.", code="path-leaves-folder"
            )
        if info["type"] != "directory":
            sources[inside] = str(name)
        elif inside:
            folders.add(inside)
    _copy_files(fs, fs.get_file, sources, folders, _local(local_dir), over_write)


def get_remote_dir_tree_to_local(remote_dir: Path, local_dir: Path, over_write: bool = False) -> None:
    """Do the same as get_remote_dir_to_local: both copy the folders in the folder too."""
    get_remote_dir_to_local(remote_dir, local_dir, over_write)


def get_remote_files_with_prefix_to_local(remote_path_prefix: Path, local_dir: Path, over_write: bool = False) -> str:
    """Copy the files whose paths begin so to a folder of this machine.

    Args:
        remote_path_prefix: How the paths begin: `hdfs://host/model/ckpt-3` for ckpt-3.index and ckpt-3.data.
        local_dir: Their folder; made where there is none.
        over_write: Whether they may replace files that are there.

    Returns:
        How the paths of the copies begin.

    Raises:
        ArgumentError: There are no such files, or some at the target that may not be replaced.
    """
    fs, place = filesystem(remote_path_prefix)
    folder = fs._parent(place)
    entries = fs.ls(folder, detail=True) if fs.isdir(folder) else []
    paths = [str(entry["name"]) for entry in entries if entry["type"] != "directory"]
    sources = {name_of(path): path for path in paths if path.startswith(place) and not is_leftover(name_of(path))}
    if not sources:
        raise ArgumentError(f"no file begins with {remote_path_prefix}. Check the path.", code="missing-file")
    folder = _copy_files(fs, fs.get_file, sources, (), _local(local_dir), over_write)
    return os.path.join(folder, name_of(place))


# Functions that know this machine's files only


def enable_multi_fs_save(save_func: _Function) -> _Function:
    """Let a method that saves to a path of this machine, its first argument, save to any path.

    It writes to a temporary folder, from where all it wrote is copied: a file, a folder, or several files whose names
    begin alike. Files that are there are replaced, unless the method has an `overwrite` that is false.
    """
    return _rerouted(save_func, 1, saves=True)


def enable_multi_fs_load(load_func: _Function) -> _Function:
    """Let a method that loads from a path of this machine, its first argument, load from any path.

    The file or folder, or else all files whose names begin so, are copied to a temporary folder for as long as the
    method runs.
    """
    return _rerouted(load_func, 1, saves=False)


def enable_multi_fs_load_static(load_func: _Function) -> _Function:
    """Do the same as enable_multi_fs_load, for a function or static method, whose very first argument is the path."""
    return _rerouted(load_func, 0, saves=False)


def _rerouted(function: _Function, position: int, saves: bool) -> _Function:
    """Return a function that calls this one with a path of this machine, from or to which files are copied."""
    signature = inspect.signature(function)
    name = list(signature.parameters)[position]

    @functools.wraps(function)
    def rerouted(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        path = call.arguments.get(name)
        if not isinstance(path, str | os.PathLike):
            return function(*args, **kwargs)
        fs, place = filesystem(path)
        if is_local(fs):
            call.arguments[name] = _local(path)
            return function(*call.args, **call.kwargs)
        options = {**call.arguments, **call.arguments.get("kwargs", {})}
        with tempfile.TemporaryDirectory(prefix="orca-") as folder:
            copy = call.arguments[name] = os.path.join(folder, name_of(place))
            if not saves:
                _fetch(fs, place, path, copy)
            result = function(*call.args, **call.kwargs)
            if saves and not os.listdir(folder):
                raise OrcaError(
                    f"{function.__name__} wrote nothing that could be copied to {path}.", code="nothing-written"
                )
            if saves:
                overwrites = all(options.get(word) is not False for word in ("overwrite", "over_write"))
                above = os.fspath(path).rstrip("/").rsplit("/", 1)[0] + "/"
                put_local_dir_tree_to_remote(folder, above, over_write=overwrites)
            return result

    return rerouted  # type: ignore[return-value]


def _fetch(fs: Any, place: str, path: Path, copy: str) -> None:
    if fs.isdir(place):
        get_remote_dir_to_local(path, copy)
    elif fs.isfile(place):
        get_remote_file_to_local(path, copy)
    else:
        get_remote_files_with_prefix_to_local(path, os.path.dirname(copy))


# Copying


def _copy_file(
    copy: Callable[[str, str], None], source: str, path: Path, over_write: bool, mode: int | None = None
) -> None:
    """Copy a file to a path, or into the folder that is there."""
    fs, place = filesystem(path)
    if fs.isdir(place):
        place = f"{place.rstrip('/')}/{name_of(source)}"
    _refuse(fs, place, path, over_write)
    fs.makedirs(fs._parent(place), exist_ok=True)
    with replacing(fs, place) as draft:
        copy(source, draft)
        _set_mode(fs, draft, mode, path)


def _copy_files(
    remote: Any,
    copy: Callable[[str, str], None],
    sources: Mapping[str, str],
    folders: Collection[str],
    path: Path,
    over_write: bool,
) -> str:
    """Copy files into a folder; where they can be renamed, none appears before all are complete.

    `copy` is put_file or get_file of `remote`, the side that is not this machine. `sources` are places by their paths
    in the folder. The place of the folder is returned.
    """
    fs, place = filesystem(path)
    place = place.rstrip("/")
    _refuse_file(fs, place, path)
    merged = bool(fs.isdir(place))
    if merged:
        _refuse_any(fs, place, path, sources, over_write)
    # The draft is beside a new folder, but in one that is there, as the one above it may be closed to us.
    draft = f"{place}{'/_orca' if merged else ''}.draft-{uuid.uuid4().hex[:8]}" if renames(fs) else place
    folders = sorted({"", *folders, *map(os.path.dirname, sources)})
    try:
        for folder in folders:
            fs.makedirs(f"{draft}/{folder}".rstrip("/"), exist_ok=True)
        parallel = remote.async_impl or is_local(remote) or remote.protocol in _THREAD_SAFE
        with ThreadPoolExecutor(_THREADS if parallel else 1, thread_name_prefix="orca-files") as threads:
            list(threads.map(lambda name: copy(sources[name], f"{draft}/{name}"), sources))
        if draft != place and merged:
            _merge(fs, draft, place, folders[1:], sources)
        elif draft != place:
            move(fs, draft, place)
    finally:
        if draft != place and fs.exists(draft):
            fs.rm(draft, recursive=True)
    return place


def _merge(fs: Any, draft: str, place: str, folders: Collection[str], names: Collection[str]) -> None:
    for folder in folders:
        fs.makedirs(f"{place}/{folder}", exist_ok=True)
    for name in names:
        if not replaces(fs) and fs.exists(f"{place}/{name}"):
            fs.rm_file(f"{place}/{name}")
        move(fs, f"{draft}/{name}", f"{place}/{name}")


# Checks


def _content(path: Path) -> bytes:
    fs, place = filesystem(path)
    _require("file", fs, place, path)
    return bytes(fs.cat_file(place))


def _require(kind: str, fs: Any, place: str, path: Path) -> None:
    if not (fs.isfile(place) if kind == "file" else fs.isdir(place)):
        thing = _described(fs, place) if fs.exists(place) else "nothing"
        raise ArgumentError(
            f"{path} is to be a {kind}, but there is {thing}. Check the path.", code="wrong-kind-of-path"
        )


def _refuse_file(fs: Any, place: str, path: Path) -> None:
    if fs.isfile(place):
        raise ArgumentError(
            f"{path} is to be a folder, but there is {_described(fs, place)}. Choose another path.", code="path-is-file"
        )


def _refuse(fs: Any, place: str, path: Path, over_write: bool) -> None:
    """Refuse to write a file where a folder is, or a file that may not be replaced."""
    if fs.isdir(place):
        raise ArgumentError(
            f"{path} is to be a file, but there is a folder. Choose another path.", code="path-is-folder"
        )
    if not over_write and fs.exists(place):
        raise ArgumentError(
            f"at {path} there is {_described(fs, place)} already. Pass over_write=True to replace it.",
            code="file-exists",
        )


def _refuse_any(fs: Any, place: str, path: Path, names: Collection[str], over_write: bool) -> None:
    """Refuse to write files into a folder where folders of these names are, or files that may not be replaced."""
    clashes = [name for name in names if fs.exists(f"{place}/{name}")]
    for name in clashes:
        _refuse(fs, f"{place}/{name}", f"{path}/{name}", over_write=True)
    if clashes and not over_write:
        first = min(clashes)
        raise ArgumentError(
            f"{len(clashes)} of the files are in {path} already, {first!r} for example: "
            f"{_described(fs, f'{place}/{first}')}. Pass over_write=True to replace them.",
            code="file-exists",
        )


def _described(fs: Any, place: str) -> str:
    """Describe the file or folder at a place."""
    info = fs.info(place)
    if info["type"] == "directory":
        return "a folder"
    when = info.get("mtime")
    date = f", written {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(when))}" if when else ""
    return f"a file of {info.get('size')} bytes{date}"


def _mode(filemode: int | str | None) -> int | None:
    if filemode is None:
        return None
    try:
        mode = int(filemode, 8) if isinstance(filemode, str) else int(filemode)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o1777:
        raise ArgumentError(
            f"filemode must be a mode of files, like 0o644 or '644'; got {filemode!r}.", code="bad-file-mode"
        )
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
            raise ArgumentError(
                f"{text} is to be a path of this machine. The other argument is the remote one.", code="path-not-local"
            )
        return text
    return str(filesystem(text)[1])
