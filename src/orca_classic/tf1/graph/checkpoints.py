"""Checkpoints of TensorFlow 1: the files of `tf.train.Saver`, at any path. Owns how they get there and back."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orca.errors import ArgumentError
from orca.storage.files import filesystem, is_local
from orca_classic.tf1.graph.program import quiet, tf

_savers: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()


def save_checkpoint(session: Any, path: str, saver: Any = None) -> None:
    """Write the variables of a session as a checkpoint: `<path>.index` and others, or `<path>/model...` for a folder.

    Args:
        session: The session.
        path: Any path of fsspec; a name, or a folder that is there or ends in a slash.
        saver: A tf.train.Saver; one of all variables unless given.
    """
    fs, place = filesystem(path)
    if path.endswith("/") or fs.isdir(place):
        place = f"{place.rstrip('/')}/model"
    folder, name = os.path.split(place)
    fs.makedirs(folder, exist_ok=True) if folder else None
    with tempfile.TemporaryDirectory(prefix="orca-checkpoint-") as draft, quiet(), session.graph.as_default():
        (saver or _saver(session.graph)).save(session, os.path.join(draft, name), write_meta_graph=False)
        for file in sorted(os.listdir(draft)):
            fs.put_file(os.path.join(draft, file), f"{folder}/{file}" if folder else file)


def load_checkpoint(session: Any, path: str, saver: Any = None) -> None:
    """Restore the variables of a session.

    Raises:
        ArgumentError: There is no such checkpoint, or it lacks a variable.
    """
    fs, place = filesystem(path)
    prefix = place if fs.exists(f"{place}.index") else latest(path)
    if prefix is None:
        raise ArgumentError(
            f"there is no checkpoint of TensorFlow at {path}: no {path}.index, and no folder with one. Pass the path "
            "that was given to save."
        )
    try:
        with _here(fs, prefix) as local, quiet(), session.graph.as_default():
            (saver or _saver(session.graph)).restore(session, local)
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError, ValueError) as error:
        raise ArgumentError(f"the checkpoint at {path} does not fit the graph: {str(error)[:600]}") from error


def read_checkpoint(path: str) -> dict[str, Any]:
    """Return the values of a checkpoint's variables, by name.

    Raises:
        ArgumentError: There is no such checkpoint.
    """
    fs, place = filesystem(path)
    prefix = place if fs.exists(f"{place}.index") else latest(path)
    if prefix is None:
        raise ArgumentError(f"there is no checkpoint of TensorFlow at {path}. Pass the path that was given to save.")
    with _here(fs, prefix) as local:
        reader = tf.train.NewCheckpointReader(local)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def latest(folder: str) -> str | None:
    """Return the path, without its ending, of the newest checkpoint in a folder; None where there is none."""
    fs, place = filesystem(folder)
    if not fs.isdir(place):
        return None
    indexes = [entry for entry in fs.ls(place, detail=True, refresh=True) if entry["name"].endswith(".index")]
    newest = max(indexes, key=lambda entry: (_number(entry["name"]), entry["name"]), default=None)
    return None if newest is None else str(newest["name"]).removesuffix(".index")


@contextmanager
def _here(fs: Any, prefix: str) -> Iterator[str]:
    """Give the files of a checkpoint a path of this machine."""
    if is_local(fs):
        yield prefix
        return
    name = os.path.basename(prefix)
    with tempfile.TemporaryDirectory(prefix="orca-checkpoint-") as folder:
        for file in fs.ls(os.path.dirname(prefix), detail=False):
            if os.path.basename(file).startswith(f"{name}."):
                fs.get_file(file, os.path.join(folder, os.path.basename(file)))
        yield os.path.join(folder, name)


def _number(name: str) -> int:
    last = name.removesuffix(".index").rsplit("-", 1)[-1]
    return int(last) if last.isdigit() else -1


def _saver(graph: Any) -> Any:
    """Return a saver of all variables of a graph."""
    with graph.as_default():
        variables = tf.global_variables()
        count, saver = _savers.get(graph, (0, None))
        if count != len(variables):
            saver = tf.train.Saver(variables, save_relative_paths=True)
            _savers[graph] = len(variables), saver
        return saver
