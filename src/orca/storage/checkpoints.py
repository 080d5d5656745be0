"""Checkpoints: the versions of a training state in a folder. Owns their names, how many stay, and background writing.

A version is `<folder>/<prefix>.<steps>`: a file, or a folder that is complete when its marker (see storage/files.py) is
in it, on every storage. Fits in the manner of BigDL have folders named by the time, in which a version is
`model.<steps>`, with `optimMethod-<name>.<steps>` beside it.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Any, TypeVar

from orca.errors import ArgumentError, OrcaError
from orca.monitor.heartbeat import waiting_for_storage
from orca.storage.files import (
    MARKER,
    clear_leftovers,
    filesystem,
    is_leftover,
    is_local,
    is_private,
    make_private,
    name_of,
    remove,
    renames,
    restrict,
)
from orca.storage.retries import STORAGE_TIMEOUT, cause_of, is_of_storage, may_pass, retried
from orca.storage.state import State

PREFIX, DATED_PREFIX, METHOD = "orca", "model", "optimMethod-"
_SAVED_MODEL = "saved_model.pb"  # in the folder of a SavedModel of TensorFlow
_NUMBER = r"(0|[1-9]\d*)"
_RUN = re.compile(r"run-(\d+)-[0-9a-f]+")
_TIME = "%Y-%m-%d_%H-%M-%S"
_DATED = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(-[0-9a-f]+)?")
logger = logging.getLogger(__name__)
T = TypeVar("T")


def versions(folder: str, prefix: str | None = PREFIX) -> list[int]:
    """Return the complete checkpoints of a folder, oldest first: by the training steps behind them.

    Args:
        folder: Any path that fsspec knows; where there is nothing, there are no versions.
        prefix: The first part of their names; None takes the one prefix that is there.

    Raises:
        ArgumentError: The prefix is None, and there are several.
    """
    return _named(folder, prefix)[1]


def path_of(folder: str, version: int | None = None, prefix: str | None = PREFIX) -> str:
    """Return the path of a checkpoint.

    Args:
        folder: Any path that fsspec knows.
        version: The training steps behind it; None for the newest.
        prefix: The first part of its name; None takes the one prefix that is there.
    """
    name, numbers = _named(folder, prefix)
    if not numbers:
        fs, place = filesystem(folder)
        if not fs.exists(place):
            raise ArgumentError(
                f"there are no checkpoints: the folder {folder} does not exist. Check the path.",
                code="missing-checkpoint",
            )
        others = sorted({other for other, _, complete in _entries(folder) if complete})
        hint = f" There are some with the prefix {', '.join(map(repr, others))}." if others else ""
        raise ArgumentError(
            f"the folder {folder} holds no complete checkpoint{f' {name}.<steps>' if name else ''}.{hint} "
            "Check the path and the prefix.",
            code="missing-checkpoint",
        )
    if version is not None and version not in numbers:
        raise ArgumentError(
            f"there is no checkpoint {version} in {folder}; there are {', '.join(f'{name}.{n}' for n in numbers)}. "
            "Pass one of these numbers, or None for the newest.",
            code="missing-checkpoint",
        )
    return _inside(folder, f"{name}.{numbers[-1] if version is None else version}")


def new_run(folder: str, dated: bool = False) -> str:
    """Claim a folder for the checkpoints of one fit; its number is higher than those of the fits before.

    Where the outer folder is made for it, only this user can read both, and the checkpoints of this and later fits.

    The name ends in random digits, so that two fits that begin together never share a folder: not every storage can
    make a folder, or a file, for just one of two that ask for it.

    Args:
        folder: Any path that fsspec knows.
        dated: Whether the folder is named by the time instead, which is later than those of the fits before; random
            digits follow only where the storage cannot make a folder for just one of two.
    """
    private = False
    with suppress(OSError):  # only the workers may be allowed to write there
        private = make_private(folder)
    names = _runs(folder)
    private = private or any(is_private(_inside(folder, name)) for name in filter(_is_run, names))
    path = _new_dated_run(folder, names) if dated else _new_numbered_run(folder, names)
    if private:
        with suppress(OSError):
            restrict(path)
    return path


def _new_numbered_run(folder: str, names: list[str]) -> str:
    number = 1 + max(map(_number, names), default=0)
    return _claimed(folder, f"run-{number:06d}-{secrets.token_hex(8)}")


def _new_dated_run(folder: str, names: list[str]) -> str:
    times = [datetime.strptime(match[1], _TIME) for match in map(_DATED.fullmatch, names) if match]
    start = max([datetime.now(), *(time + timedelta(seconds=1) for time in times)])
    fs, _ = filesystem(folder)
    while is_local(fs):
        path = _inside(folder, start.strftime(_TIME))
        try:
            fs.makedirs(filesystem(path)[1], exist_ok=False)
            return path
        except FileExistsError:  # of another fit that began just now
            start += timedelta(seconds=1)
        except OSError:  # only the workers may be allowed to write there
            break
    return _claimed(folder, f"{start.strftime(_TIME)}-{secrets.token_hex(8)}")


def _claimed(folder: str, name: str) -> str:
    path = _inside(folder, name)
    with suppress(OSError):  # only the workers may be allowed to write there
        fs, place = filesystem(path)
        fs.makedirs(place, exist_ok=True)
        if not fs.isdir(place):  # an object store: the next fit must see that this name is taken
            fs.pipe_file(f"{place}/begun", b"")
    return path


def prefix_in(folder: str) -> str:
    """Return the prefix of the versions that a fit keeps in its folder."""
    return DATED_PREFIX if _DATED.fullmatch(name_of(folder)) else PREFIX


def newest_whole(
    folder: str, read: Callable[[str], T], prefix: str | None = PREFIX, storage_timeout: float = STORAGE_TIMEOUT
) -> tuple[int, T] | None:
    """Return the newest checkpoint of a fit that can be read, and what `read` returned; None if it kept none.

    Those that cannot be read are named in warnings.

    Args:
        folder: The folder of one fit.
        read: Reads a checkpoint at its path; it raises where the checkpoint is damaged.
        prefix: The first part of the names; None takes the one prefix that is there.
        storage_timeout: Seconds for which reading is tried again where storage does not respond.

    Raises:
        ArgumentError: There are checkpoints, and none can be read.
    """
    chosen, _ = retried(lambda: _named(folder, prefix), f"{folder} cannot be read", storage_timeout, may_pass)
    entries = sorted(_entries(folder, chosen), key=lambda entry: -entry[1])
    if not (any(complete for *_, complete in entries) or (entries and _leaves_none_half_written(folder))):
        return None
    paths = [_inside(folder, f"{name}.{number}") for name, number, _ in entries]
    half = {path for path, (*_, complete) in zip(paths, entries, strict=True) if not complete}

    def read_complete(path: str) -> T:
        if path in half:
            raise ArgumentError(f"there is no {MARKER} in it", code="incomplete-checkpoint")
        return read(path)

    path, state = first_whole(folder, paths, read_complete, storage_timeout)
    return entries[paths.index(path)][1], state


def first_whole(
    folder: str, paths: Sequence[str], read: Callable[[str], T], storage_timeout: float = STORAGE_TIMEOUT
) -> tuple[str, T]:
    """Return the first of these checkpoints that can be read, and what `read` returned; see newest_whole.

    Raises:
        ArgumentError: None can be read.
    """
    first = ""
    for path in paths:
        try:
            return path, retried(partial(read, path), f"{path} cannot be read", storage_timeout, may_pass)
        except Exception as error:
            if may_pass(error):
                raise OrcaError(
                    f"the checkpoint {path} cannot be read: {cause_of(error)}", code="checkpoint-unreadable"
                ) from error
            first = first or f"{path}: {error if isinstance(error, OrcaError) else cause_of(error)}"
            logger.warning("the checkpoint %s cannot be read and is left out: %s", path, cause_of(error))
    raise ArgumentError(
        f"none of the {len(paths)} checkpoint(s) in {folder} can be read. The newest is {first.rstrip('.')}. Nothing "
        "was trained. Bring a copy of one back, or pass another model_dir to begin again.",
        code="checkpoints-unreadable",
    )


def read_version(path: str, read: Callable[[str], T], storage_timeout: float = STORAGE_TIMEOUT) -> T:
    """Return what `read` returned for the path of a checkpoint that the user has chosen.

    Raises:
        ArgumentError: It cannot be read.
    """
    try:
        return retried(partial(read, path), f"{path} cannot be read", storage_timeout, may_pass)
    except OrcaError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"the checkpoint {path} cannot be read: {cause_of(error)}.", code="damaged-checkpoint"
        ) from error


def _leaves_none_half_written(folder: str) -> bool:
    """Return whether a version without its marker is damaged: where drafts are renamed, no killed write leaves one."""
    return renames(filesystem(folder)[0])


def newest_run(folder: str, prefix: str | None = PREFIX, damaged: bool = False) -> str | None:
    """Return the folder of the newest fit that kept a complete checkpoint: this one, or one in it; None without.

    Args:
        folder: Any path that fsspec knows.
        prefix: The first part of the names of checkpoints.
        damaged: Whether a fit counts whose checkpoints have all lost their markers.
    """

    def last_of(run: str) -> str | None:
        damages = damaged and _leaves_none_half_written(run)
        entries = [(number, name) for name, number, complete in _entries(run, prefix) if complete or damages]
        return _inside(run, "{1}.{0}".format(*max(entries))) if entries else None

    if last_of(folder):
        return folder
    names = sorted(_runs(folder), key=lambda name: (_number(name), name), reverse=True)
    newest: list[tuple[str, str]] = []
    for by_number in (True, False):  # of either kind the newest, by its number or by the time in its name
        runs = (_inside(folder, name) for name in names if bool(_number(name)) is by_number)
        newest += islice(((run, last) for run in runs if (last := last_of(run))), 1)
    if len(newest) < 2:
        return newest[0][0] if newest else None
    return max(newest, key=lambda each: _written(each[1]))[0]


def latest_checkpoint(folder: str) -> str | None:
    """Return the newest entry of a folder that holds a model's weights; None when there is none.

    That is a checkpoint of save_checkpoint, the last one of a fit that kept some, a `.keras` or `.h5` file, a
    SavedModel, or the prefix of a TensorFlow checkpoint.
    """
    return next(iter(latest_checkpoints(folder)), None)


def latest_checkpoints(folder: str) -> list[str]:
    """Return all such entries of a folder, newest first."""
    fs, place = filesystem(folder)
    if not fs.isdir(place):
        return []
    models = []
    for entry in fs.ls(place, detail=True):
        name = name_of(entry["name"])
        if is_leftover(name):
            continue  # of a save that did not end
        if entry["type"] == "directory":
            inside = f"{folder.rstrip('/')}/{name}"
            mark = next((mark for mark in (MARKER, _SAVED_MODEL) if fs.exists(f"{entry['name']}/{mark}")), None)
            if mark:
                models.append((_age(fs, f"{entry['name']}/{mark}"), in_order(name), name))
                continue
            for number in versions(inside):
                version = f"{prefix_in(inside)}.{number}"
                when = _age(fs, f"{entry['name']}/{version}/{MARKER}")
                models.append((when, in_order(f"{name}/{version}"), f"{name}/{version}"))
        elif name.endswith((".keras", ".h5", ".hdf5", ".index")):
            models.append((_age(fs, entry["name"]), in_order(name), name.removesuffix(".index")))
    return [f"{folder.rstrip('/')}/{name}" for *_, name in sorted(models, reverse=True)]


def in_order(name: str) -> list[tuple[int, int, str]]:
    """Return a key by which step-9 comes before step-10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class _Write:
    """A state on its way to a name in the folder; `version` is None for a name of the caller's."""

    state: State
    name: str
    version: int | None

    def follows(self, former: _Write | None) -> bool:
        """Return whether this one may take the place of the one that waits."""
        return former is None or former.name == self.name or None not in (former.version, self.version)


class CheckpointWriter:
    """The writer of states to a folder, in the background of training: on rank 0, called from one thread.

    A version that a killed writer left half-written or half-removed is never listed, and the next one removes it. A
    folder has one writer of a prefix at a time.

    While storage fails, a write is tried again and training goes on: the newest version waits in memory, and the ones
    between are skipped.

    Args:
        folder: Any path that fsspec knows; it is made.
        write: Writes a state to a path, whole or not at all.
        prefix: The first part of the names of checkpoints.
        keep: How many of the newest versions stay; None for all.
        storage_timeout: Seconds for which a write that fails is tried again.

    Raises:
        ArgumentError: The prefix is no name, or keep is below 1.
    """

    def __init__(
        self,
        folder: str,
        write: Callable[[State, str], None],
        prefix: str = PREFIX,
        keep: int | None = None,
        storage_timeout: float = STORAGE_TIMEOUT,
    ) -> None:
        if not prefix or "/" in prefix:
            raise ArgumentError(
                f"prefix must be the beginning of a file name; got {prefix!r}. Pass 'orca', perhaps.", code="bad-prefix"
            )
        if keep is not None and keep < 1:
            raise ArgumentError(
                f"keep must be the number of checkpoints that stay, 1 or more, or None; got {keep}.", code="bad-keep"
            )
        self.folder, self.write, self.prefix, self.limit = folder, write, prefix, keep
        self.storage_timeout = storage_timeout
        self._thread: Thread | None = None
        self._clean = self._has_written = False
        self._over = Event()  # nothing is tried again: the run has failed
        self._changed = Condition()  # of what follows
        self._pending: _Write | None = None
        self._writing = self._troubled = False
        self._failure: tuple[str, BaseException] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._over.set()
        try:
            self.close()
        except OrcaError as failure:
            if error is None:
                raise
            logger.warning("%s", failure)  # the caller hears of the first error

    def keep(self, state: State, name: str | None = None) -> None:
        """Begin to write a state and return at once.

        Wait first while the former one is being written, unless storage fails: then a version waits in memory, in the
        place of the version that waited before.

        Args:
            state: A state that nobody changes any more, in this machine's memory.
            name: Its name in the folder, instead of prefix and steps; such a file is no version and stays.

        Raises:
            OrcaError: The former state could not be written; this one is not written either.
        """
        write = _Write(state, name or f"{self.prefix}.{state.steps}", state.steps if name is None else None)
        self._wait(lambda: not self._writing or (self._troubled and write.follows(self._pending)))
        self._raise_failure()
        with self._changed:
            if self._pending is not None:
                logger.warning("checkpoint %s is skipped: %s takes its place", self._pending.name, write.name)
            self._pending = write
            if self._writing:
                return
            self._writing = True
        self._thread = Thread(target=self._run, name="orca-checkpoint", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is being written, or for so many seconds; return whether nothing is."""
        if not self._wait(lambda: not self._writing, seconds):
            return False
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_failure()
        return True

    def close(self, wait: bool = True) -> None:
        """End: wait for the last write, or leave it to itself, where it ends with this process at the latest.

        Raises:
            OrcaError: The last state could not be written; said once.
        """
        if wait or not self._writing:
            self.wait()

    def _wait(self, is_over: Callable[[], bool], seconds: float | None = None) -> bool:
        with self._changed:
            if is_over():
                return True
            with waiting_for_storage(f"a checkpoint is being written to {self.folder}"):
                return self._changed.wait_for(is_over, seconds)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is None:
            return
        path, error = failure
        tries = f" in {self.storage_timeout:g} s (storage_timeout)" if is_of_storage(error) else ""
        raise OrcaError(
            f"the checkpoint {path} could not be written{tries}: {cause_of(error)}. Checkpoints that were "
            f"written before are still there. See that {self.folder} can be written to and has room, or choose "
            "another folder, and resume from the newest one.",
            code="checkpoint-not-written",
        ) from error

    def _run(self) -> None:
        while (write := self._next()) is not None:
            path = _inside(self.folder, write.name)
            try:
                retried(
                    partial(self._write_one, write, path),
                    f"checkpoint {path} could not be written",
                    self.storage_timeout,
                    is_of_storage if self._has_written else may_pass,  # a first path may be wrong, and stays so
                    over=self._over,
                    troubled=self._note_trouble,
                )
            except BaseException as error:  # anything: it is for the caller's thread
                with self._changed:
                    self._failure, self._pending = (path, error), None
                continue
            if write.version is not None and self.limit is not None:
                self._forget(write.version)

    def _next(self) -> _Write | None:
        """Return what to write now; None, and the thread ends, if nothing waits."""
        with self._changed:
            write, self._pending, self._troubled = self._pending, None, False
            self._writing = write is not None
            self._changed.notify_all()
        return write

    def _note_trouble(self) -> None:
        with self._changed:
            self._troubled = True
            self._changed.notify_all()

    def _write_one(self, write: _Write, path: str) -> None:
        self._clear(write.name, write.version)
        self.write(write.state, path)
        self._has_written = True
        if _is_run(name_of(self.folder)) and is_private(self.folder):
            restrict(path)

    def _clear(self, name: str, version: int | None) -> None:
        """Remove the remains of killed writes and removals."""
        ours = re.compile(rf"{re.escape(self.prefix)}\.{_NUMBER}|{re.escape(name)}")
        clear_leftovers(self.folder, lambda name: ours.fullmatch(name) is not None)
        if version is None or self._clean:  # in a folder for files of any name there may be others' folders
            return
        for prefix, number, complete in _entries(self.folder, self.prefix):
            if not complete:
                remove(_inside(self.folder, f"{prefix}.{number}"))
        self._clean = True

    def _forget(self, newest: int) -> None:
        """Remove all but the newest versions. The one just written stays, even where an older run went further."""
        numbers = [number for number in versions(self.folder, self.prefix) if number != newest]
        for number in numbers[: max(0, len(numbers) - ((self.limit or 1) - 1))]:
            path = _inside(self.folder, f"{self.prefix}.{number}")
            try:
                remove(path)
                for name in self._methods(number):
                    remove(_inside(self.folder, name))
            except Exception as error:  # training need not end because too much is kept
                logger.warning("the old checkpoint %s could not be removed: %s", path, error)

    def _methods(self, number: int) -> list[str]:
        """Return the names of the optim methods beside a version."""
        names = [name_of(entry["name"]) for entry in _listing(self.folder)[1]]
        return [name for name in names if name.startswith(METHOD) and name.endswith(f".{number}")]


def _runs(folder: str) -> list[str]:
    """Return the names of the folders in a folder."""
    return [name_of(entry["name"]) for entry in _listing(folder)[1] if entry["type"] == "directory"]


def _is_run(name: str) -> bool:
    return bool(_RUN.fullmatch(name) or _DATED.fullmatch(name))


def _number(name: str) -> int:
    match = _RUN.fullmatch(name)
    return int(match[1]) if match else 0


def _named(folder: str, prefix: str | None) -> tuple[str | None, list[int]]:
    """Return the prefix and the numbers of complete checkpoints, in order."""
    entries = [(name, number) for name, number, complete in _entries(folder, prefix) if complete]
    prefixes = sorted({name for name, _ in entries})
    if len(prefixes) > 1:
        raise ArgumentError(
            f"the folder {folder} holds checkpoints of several prefixes: {', '.join(map(repr, prefixes))}. "
            "Pass the prefix of those you mean.",
            code="several-prefixes",
        )
    return (prefixes[0] if prefixes else prefix), sorted(number for _, number in entries)


def _entries(folder: str, prefix: str | None = None) -> list[tuple[str, int, bool]]:
    """Return prefix, number and completeness of each entry with the name of a checkpoint."""
    if prefix is not None and (prefix == PREFIX or prefix.startswith(METHOD)) and prefix_in(folder) == DATED_PREFIX:
        prefix = DATED_PREFIX
    # Any prefix has no dots: rotated logs and TensorBoard's events have.
    names = rf"(?!{METHOD})[^.]+" if prefix is None else re.escape(prefix)
    pattern = re.compile(rf"({names})\.{_NUMBER}")
    fs, listing = _listing(folder)
    matches = ((pattern.fullmatch(name_of(entry["name"])), entry) for entry in listing)
    return [(match[1], int(match[2]), _complete(fs, entry)) for match, entry in matches if match]


def _complete(fs: Any, entry: dict[str, Any]) -> bool:
    place = str(entry["name"]).rstrip("/")  # a link's type is "other"
    return entry["type"] == "file" or bool(fs.isfile(place) or fs.exists(f"{place}/{MARKER}"))


def _listing(folder: str) -> tuple[Any, list[dict[str, Any]]]:
    fs, place = filesystem(folder)
    fs.invalidate_cache(place)  # others write to it
    return fs, fs.ls(place, detail=True) if fs.isdir(place) else []


def _inside(folder: str, name: str) -> str:
    return f"{folder}{name}" if not folder or folder.endswith("/") else f"{folder}/{name}"


def _written(path: str) -> float:
    """Return when a version was written."""
    fs, place = filesystem(path)
    return _age(fs, f"{place}/{MARKER}" if fs.exists(f"{place}/{MARKER}") else place)


def _age(fs: Any, place: str) -> float:
    """Return when a file was written last, in seconds."""
    info = fs.info(place)
    for key in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
        when = info.get(key)
        if when is not None:
            return float(
                when.timestamp() if hasattr(when, "timestamp") else when if isinstance(when, float | int) else 0
            )
    return 0.0
