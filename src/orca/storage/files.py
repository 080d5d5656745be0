"""Files: the file system of a path, and how results reach it, whole or not at all. Owns drafts and markers.

Paths are any that fsspec knows; those of HDFS are opened by storage/hdfs.py.

A folder is complete when its marker is in it, which is written last and removed first. Where a file system shows a file
while it is written, and can rename, a draft is written beside the path and takes its place. An object store cannot
rename, but shows a file only when it is complete.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import fsspec

from orca.errors import ArgumentError, MissingDependency, OrcaError
from orca.storage import hdfs

MARKER = "state.json"
# File systems that show a file while it is written, and can rename, besides this machine's own.
_RENAMING = {"hdfs", "arrow_hdfs", "viewfs", "sftp", "ssh", "smb", "ftp"}
_MOUNT = "/dbfs"
# Bytes, a file of this machine, or a function that writes it to the path of a file of this machine.
Content = bytes | Path | Callable[[str], None]
_LEFTOVER = re.compile(r"(?P<name>.+)\.(?P<kind>draft|old)-[0-9a-f]{8}")


def filesystem(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of fsspec that holds a path, and the path's place in it. Every path is opened by this.

    Args:
        path: A path of this machine, `hdfs://...` (see storage/hdfs.py), `s3a://...` (the same as s3), `dbfs:/...`, or
            any other that fsspec knows.
    """
    text = os.fspath(path)
    scheme, slashes = _scheme(text)
    if scheme in hdfs.SCHEMES and hdfs.owns(text):
        return hdfs.filesystem(text)
    if scheme == "dbfs":
        return _databricks(text)
    if scheme in ("s3a", "s3n"):
        text = "s3" + text[len(scheme) :]
    if scheme == "memory" and slashes == "/":
        text = f"memory:/{text.removeprefix('memory:')}"
    try:
        return fsspec.core.url_to_fs(text)
    except ImportError as error:
        package = re.search(r"install (?:the )?([\w-]+)", str(error))  # fsspec's words, a little different for each
        name = "s3fs" if text.startswith("s3:") else package[1] if package else error.name or scheme
        raise MissingDependency(
            f"{text} needs the package {name!r}, which is not installed. Run: pip install {name}"
        ) from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise ArgumentError(
            f"{text!r} begins with {scheme!r}, which no file system here knows. Use a path of this machine, or one "
            "that begins with file:, hdfs:, s3:, s3a:, gs:, abfs:, dbfs:, memory: or another name that fsspec lists.",
            code="unknown-file-system",
        ) from error


def write(path: str, files: Mapping[str, Content], names: Collection[str] | None, marker: str = MARKER) -> None:
    """Write a folder of these files, or one file (a single entry named ""): whole or not at all.

    Args:
        path: Any path that fsspec knows; its folders are made.
        files: Contents by name.
        names: The entries that a folder may have to be replaced; None replaces no folder.
        marker: The file without which such a folder is incomplete.
    """
    refuse_foreign(path, names)
    fs, place = _at(path)
    with replacing(fs, place) as target:
        if fs.exists(target) and ("" not in files or fs.isdir(target)):  # on an object store: nothing old may stay
            _remove(fs, target, marker)
        try:
            for name in sorted(files, key=lambda name: name == marker):
                _store(fs, f"{target}/{name}" if name else target, files[name])
        except BaseException:
            if "" not in files:  # a file appears when it is complete, as before
                with suppress(Exception):  # the first error is the one to tell
                    _remove(fs, target, marker)
            raise


def put(source: str, path: str, names: Collection[str] | None, marker: str = MARKER) -> None:
    """Copy a file or folder of this machine to a path: whole or not at all. The arguments are those of `write`."""
    root = Path(source)
    inside = {str(file.relative_to(root)): file for file in sorted(root.rglob("*")) if file.is_file()}
    write(path, inside if root.is_dir() else {"": root}, names, marker)


def refuse_foreign(
    path: str, names: Collection[str] | None, what: str = "a saved model", instead: str = "a folder"
) -> None:
    """Refuse a folder that has other entries than these: it would be replaced.

    Args:
        names: The entries that it may have; None refuses every folder.
        what: The words for the new file or folder, for the message.
        instead: Words for another place, for the message.
    """
    fs, place = _at(path)
    if not fs.isdir(place):
        return
    foreign = sorted(set(map(name_of, fs.ls(place, detail=False))) - set(names or ()))
    if foreign or names is None:
        raise ArgumentError(
            f"the folder {path} holds other things than {what}, {(foreign or ['nothing'])[0]!r} for example, and would "
            f"be replaced. Save to {instead} of its own.",
            code="foreign-files-in-folder",
        )


@contextmanager
def replacing(fs: Any, place: str) -> Iterator[str]:
    """Give a place to write to, which takes the place of `place` when all went well.

    On an object store that is `place` itself.
    """
    if not renames(fs):
        yield place
        return
    draft, old = (f"{place}.{kind}-{uuid.uuid4().hex[:8]}" for kind in ("draft", "old"))
    try:
        yield draft
        if is_local(fs):
            for part in (Path(draft), *Path(draft).rglob("*")):
                _sync(part)
        # A file of this machine, or of HDFS, is replaced at once. All else makes room first.
        if fs.isdir(place) or (fs.exists(place) and (fs.isdir(draft) or not replaces(fs))):
            move(fs, place, old)
        move(fs, draft, place)
        if is_local(fs):
            _sync(os.path.dirname(place))
    except BaseException:
        if fs.exists(old) and not fs.exists(place):
            move(fs, old, place)
        raise
    finally:
        for leftover in (draft, old):
            if fs.exists(leftover):
                fs.rm(leftover, recursive=True)


def make_private(path: str) -> bool:
    """Make a folder that only this user may read, unless there is one; return whether it was made."""
    fs, place = _at(path)
    if fs.exists(place):
        return False
    if is_local(fs):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        try:
            os.mkdir(place, 0o700)
        except FileExistsError:  # of another program that began just now
            return False
    else:
        fs.makedirs(place, exist_ok=True)
        restrict(path)
    return True


def restrict(path: str) -> None:
    """Let only this user read and change a file, or a folder and all in it; object stores have other rules."""
    fs, place = _at(path)
    if is_local(fs):
        for part in (Path(place), *Path(place).rglob("*")):
            part.chmod(0o700 if part.is_dir() else 0o600)
    elif "hdfs" in _protocols(fs):
        for part, about in fs.find(place, withdirs=True, detail=True).items():
            fs.chmod(part, "700" if about["type"] == "directory" else "600")
        if fs.isdir(place):
            fs.chmod(place, "700")


def is_private(path: str) -> bool:
    """Return whether only one user may read and change a folder, as far as its file system knows users."""
    fs, place = _at(path)
    if is_local(fs):
        return os.path.isdir(place) and not os.stat(place).st_mode & 0o077
    return "hdfs" in _protocols(fs) and fs.isdir(place) and str(fs.info(place).get("permission")) == "700"


@contextmanager
def here(fs: Any, place: str) -> Iterator[str]:
    """Give the path of a file on this machine: the file itself, or a copy that is gone afterwards."""
    if is_local(fs):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="orca-") as folder:
        fs.get_file(place, f"{folder}/file")
        yield f"{folder}/file"


def remove(path: str, marker: str = MARKER) -> None:
    """Remove a file or folder so that it never looks complete while half of it is gone."""
    _remove(*_at(path), marker)


def is_leftover(name: str) -> bool:
    """Say whether a name is that of a draft: of a write in progress, or of one that was killed."""
    return _LEFTOVER.fullmatch(name) is not None


def clear_leftovers(folder: str, mine: Callable[[str], bool]) -> None:
    """Remove the remains of killed writes from a folder, and put back files that they had moved aside.

    Args:
        mine: Says by the name that was to be written whether no one else is writing it now.
    """
    fs, place = _at(folder)
    for name in map(name_of, fs.ls(place, detail=False) if fs.isdir(place) else ()):
        match = _LEFTOVER.fullmatch(name)
        if match is None or not mine(match["name"]):
            continue
        if match["kind"] == "old" and not fs.exists(f"{place}/{match['name']}"):
            move(fs, f"{place}/{name}", f"{place}/{match['name']}")
        else:
            fs.rm(f"{place}/{name}", recursive=True)


@contextmanager
def probe_file(path: str) -> Iterator[str]:
    """Write a small file into a folder, read it back, give its name, and leave nothing behind."""
    fs, folder = filesystem(path)
    is_new = not fs.exists(folder)
    fs.makedirs(folder, exist_ok=True)
    name = f".orca-probe-{secrets.token_hex(6)}"
    file = f"{folder.rstrip('/')}/{name}"
    try:
        fs.pipe_file(file, b"orca")
        if fs.cat_file(file) != b"orca":
            raise OSError(f"{file} does not hold what was written to it")
        yield name
    finally:
        with suppress(Exception):
            fs.rm_file(file)
        if is_new:
            with suppress(Exception):  # an object store has no empty folder; another rank may use this one
                fs.rmdir(folder)


def name_of(place: str) -> str:
    """Return the last part of a path."""
    return place.rstrip("/").rsplit("/", 1)[-1]


def absolute(name: str, path: str | os.PathLike[str]) -> str:
    """Return a path that means the same in every process of this machine; one with a protocol as it is.

    Args:
        name: The argument's name, for the message.
        path: Any path that fsspec knows.
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"{name} must be a path; got {type(path).__name__}.", code="bad-path")
    text = os.fspath(path)
    if "://" in text or "::" in text:
        return text
    folder = text.endswith("/") or not text
    return os.path.abspath(os.path.expanduser(text)).rstrip("/") + "/" * folder


def is_local(fs: Any) -> bool:
    """Say whether a file system of fsspec is this machine's."""
    return bool(_protocols(fs) & {"file", "local"})


def renames(fs: Any) -> bool:
    """Say whether a file system shows a file while it is written, and can rename it."""
    return is_local(fs) or bool(_protocols(fs) & _RENAMING)


def replaces(fs: Any) -> bool:
    """Say whether a file system puts a file in the place of another by renaming it, at once."""
    return is_local(fs) or "hdfs" in _protocols(fs)


def move(fs: Any, source: str, target: str) -> None:
    """Rename a file or a folder."""
    if is_local(fs):
        os.replace(source, target)
    else:
        fs.mv(source, target, recursive=fs.isdir(source))


def _scheme(path: str) -> tuple[str, str]:
    """Return the scheme of a path and its slashes: ("hdfs", "//"); ("", "") for a path of this machine."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(/{1,2})", path)
    return (match[1], match[2]) if match else ("", "")


def _databricks(path: str) -> tuple[Any, str]:
    """Return the file system of Databricks: mounted on its machines, over its web address elsewhere."""
    place = "/" + path.removeprefix("dbfs:").lstrip("/")
    if os.path.isdir(_MOUNT):
        return fsspec.core.url_to_fs(f"{_MOUNT}{place}")
    host, token = (os.environ.get(f"DATABRICKS_{name}") for name in ("HOST", "TOKEN"))
    if not host or not token:
        raise OrcaError(
            f"{path} cannot be reached: this machine has no {_MOUNT}, as those of Databricks have, and the environment "
            "variables DATABRICKS_HOST and DATABRICKS_TOKEN are not set. Set both, or run it there.",
            code="databricks-not-reachable",
        )
    return fsspec.filesystem("dbfs", instance=host.split("://")[-1].strip("/"), token=token), place


def _store(fs: Any, spot: str, content: Content) -> None:
    fs.makedirs(os.path.dirname(spot), exist_ok=True)
    if isinstance(content, bytes):
        fs.pipe_file(spot, content)
    elif isinstance(content, Path):
        fs.put_file(str(content), spot)
    elif is_local(fs):
        content(spot)
    else:
        with tempfile.TemporaryDirectory(prefix="orca-") as folder:
            content(f"{folder}/file")
            fs.put_file(f"{folder}/file", spot)


def _remove(fs: Any, place: str, marker: str) -> None:
    if fs.exists(f"{place}/{marker}"):
        fs.rm_file(f"{place}/{marker}")
    if fs.exists(place):  # an object store's folder goes with its last file
        fs.rm(place, recursive=True)


def _sync(place: str | Path) -> None:
    """Bring a file or a folder's list of files to the disk: a rename may get there before the content."""
    # Not every file system opens folders, and not every folder that may be written may be read.
    with suppress(OSError) if os.path.isdir(place) else nullcontext():
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _at(path: str) -> tuple[Any, str]:
    fs, place = filesystem(path)
    return fs, place.rstrip("/") or place


def _protocols(fs: Any) -> set[str]:
    return set(fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,))
