"""TensorBoard: a run for TensorBoard. Owns event files, their folders and tags, and how they are read back.

Files are written at any fsspec path, by the record format of tensorboard and without TensorFlow, which its own file
writer would load where it is installed. Summaries are written on the driver, after a fit, as one complete file a part.

Not tensorboardX, which writes to local folders only, or torch's SummaryWriter, which imports all of TensorFlow if it
is installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from orca.core import metrics as known_metrics
from orca.core.trace import Epochs, Trace, rows_a_second, steps_of, with_traces
from orca.errors import ArgumentError, MissingDependency
from orca.storage.files import filesystem, is_local

TRAIN, VALIDATION = "train", "validation"
TRAIN_TAGS = ("LearningRate", "Loss", "Throughput")
_HEADER, _CHECK = struct.Struct("<Q4x"), 4  # length and its checksum; the checksum after the data

_numbers = itertools.count()

Point = tuple[int, float, dict[str, float]]  # step, time, value of each tag


class Summaries:
    """The summaries of a run under `<log_dir>/<app_name>/train` and `/validation`.

    Args:
        log_dir: A folder at any fsspec path; `tensorboard --logdir` takes it.
        app_name: Name of the run.

    Raises:
        ArgumentError: One of them is no text, or empty.
    """

    def __init__(self, log_dir: str | os.PathLike[str], app_name: str) -> None:
        for name, value in (("log_dir", log_dir), ("app_name", app_name)):
            if not isinstance(value, str | os.PathLike) or not os.fspath(value):
                raise ArgumentError(
                    f"{name} must be the name of a folder; got {value!r}. Pass a text.", code="bad-path"
                )
        self.log_dir, self.app_name = os.fspath(log_dir), os.fspath(app_name)

    def write(
        self, lines: Sequence[dict[str, Any]], traces: Sequence[Trace], first_step: int, metrics: Iterable[str] = ()
    ) -> None:
        """Write the results of a fit.

        Loss and LearningRate are written for every step (Loss for every epoch where the framework tells no more),
        Throughput (rows a second) for every epoch, at its last step, each validation at the step after which it was
        made. The points of an earlier run in this folder, for these steps and later ones, are no longer shown.

        Args:
            lines: A dict of statistics an epoch.
            traces: The traces of its last epochs: of all, unless the fit was resumed.
            first_step: The number of the fit's first step; 1 for a model that was never trained.
            metrics: Names of metrics in their true spelling; the lines have them in lower case.

        Raises:
            MissingDependency: tensorboard is not installed.
        """
        epochs = with_traces(lines, traces)
        steps = sum(steps_of(line, None) for line, trace in epochs if trace is None)  # written by an earlier run
        self._write(TRAIN, _training(epochs, first_step), first_step + steps)
        self._write(VALIDATION, _validation(epochs, first_step, _spellings(metrics)), first_step)

    def read(self, part: str, tag: str | None) -> list[list[float]] | None:
        """Return the points under a tag, in order: [step, value, seconds since 1970] of each.

        Args:
            part: "train" or "validation".
            tag: "Loss", "LearningRate" or "Throughput"; for the validation "Loss" or the name of a metric. Upper and
                lower case count as equal where that leaves no doubt.

        Returns:
            The points, or None where nothing was written yet.
        """
        if part not in (TRAIN, VALIDATION):
            raise ArgumentError(
                f"a summary has the parts 'train' and 'validation'; got {part!r}. Pass one of them.",
                code="unknown-summary",
            )
        points = self._read(part)
        tags = sorted(points) or (list(TRAIN_TAGS) if part == TRAIN else [])
        name = _spelled(tag, tags)
        if name is None and (tags or not isinstance(tag, str)):
            raise ArgumentError(
                f"the {part} summary has no tag {tag!r}. Pass one of: {', '.join(tags) or 'Loss, or a metric'}.",
                code="unknown-tag",
            )
        return points.get(name or "")

    def folder(self, part: str) -> str:
        """Return the folder of the event files of a part."""
        return f"{self.log_dir.rstrip('/')}/{self.app_name}/{part}"

    def _write(self, part: str, points: Iterable[Point], first_step: int) -> None:
        events = EventFiles(self.folder(part), first_step, grows=False)
        for step, seconds, values in points:
            events.add(step, values, seconds)
        events.close()

    def _read(self, part: str) -> dict[str, list[list[float]]]:
        fs, place = filesystem(self.folder(part))
        if not fs.isdir(place):
            return {}
        points: dict[str, list[list[float]]] = {}
        for name in sorted(name for name in fs.ls(place, detail=False, refresh=True) if "tfevents" in name):
            for event in _events(fs.cat_file(name)):
                if event.session_log.status == event.session_log.START:
                    for tag, rows in points.items():
                        points[tag] = [row for row in rows if row[0] < event.step]
                for value in event.summary.value:
                    points.setdefault(value.tag, []).append([event.step, value.simple_value, event.wall_time])
        return {tag: rows for tag, rows in points.items() if rows}


class SummaryPair:
    """The summaries of training and validation, in folders that may differ.

    Args:
        summaries: Things with a log_dir and an app_name, as TrainSummary and ValidationSummary are; or None.
    """

    def __init__(self, *summaries: Any) -> None:
        places = dict.fromkeys((each.log_dir, each.app_name) for each in summaries if each is not None)
        self.members = [Summaries(*place) for place in places]

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Write the results of a fit."""
        for member in self.members:
            member.write(*args, **kwargs)

    def read(self, part: str, tag: str | None) -> Any:
        """Return the points under a tag; None where no summary was given."""
        return self.members[0].read(part, tag) if self.members else None


def can_write() -> bool:
    """Say whether tensorboard, whose record format event files have, is installed."""
    return importlib.util.find_spec("tensorboard") is not None


def _training(epochs: Epochs, first_step: int) -> Iterator[Point]:
    end = first_step - 1
    for line, trace in epochs:
        end += steps_of(line, trace)
        if trace is None:
            continue
        count = max(len(trace.losses), len(trace.rates))
        for at in range(count):
            values = {
                tag: float(series[at])
                for tag, series in (("Loss", trace.losses), ("LearningRate", trace.rates))
                if at < len(series)
            }
            # When each step ended was not kept: they are spread evenly.
            yield end - count + 1 + at, trace.ended - trace.seconds * (count - 1 - at) / count, values
        whole = {"Throughput": rows_a_second(line, trace)}
        if not len(trace.losses):  # a framework that tells of its epochs alone
            whole["Loss"] = line.get("train_loss")
        if values := {tag: float(value) for tag, value in whole.items() if value is not None}:
            yield end, trace.ended, values


def _validation(epochs: Epochs, first_step: int, spellings: dict[str, str]) -> Iterator[Point]:
    start = next((trace.ended - trace.seconds for _, trace in epochs if trace), time.time())
    end = first_step - 1
    for line, trace in epochs:
        end += steps_of(line, trace)
        for stats in line.get("validations") or [line]:
            values = {
                spellings.get(key.removeprefix("val_"), key.removeprefix("val_")): float(value)
                for key, value in stats.items()
                if key.startswith("val_") and key != "val_num_samples" and isinstance(value, int | float | np.number)
            }
            if values:
                yield stats.get("step", end), trace.ended if trace else start, values


class EventFiles:
    """The event files of a folder: one that grows, or one a flush.

    Args:
        folder: Any fsspec path.
        first_step: Readers drop the values of earlier files from this step on; None drops nothing.
        suffix: The end of the files' names.
        grows: Whether the file shows new values at once, where the folder is on this machine.
    """

    def __init__(self, folder: str, first_step: int | None, suffix: str = "", grows: bool = True) -> None:
        self.fs, self.place = filesystem(folder)
        self.first_step, self.suffix = first_step, suffix
        self.grows = grows and is_local(self.fs)
        self._sink: Any = None
        self._path = ""

    def add(self, step: int, values: dict[str, float], seconds: float | None = None) -> None:
        """Write the values of a step, each under its tag, as of a time in seconds since 1970: now unless given."""
        if self._sink is None:
            self._begin(seconds)
        summary = {"value": [{"tag": tag, "simple_value": value} for tag, value in values.items()]}
        self._write(seconds, step=step, summary=summary)
        if self.grows:
            self._sink.flush()

    def add_graph(self, nodes: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        """Write a graph that TensorBoard draws: the name, the kind and the names of the inputs of each node."""
        if self._sink is None:
            self._begin(None)
        from tensorboard.compat.proto.graph_pb2 import GraphDef

        graph = GraphDef()
        for name, kind, inputs in nodes:
            graph.node.add(name=name, op=kind, input=inputs)
        self._write(None, graph_def=graph.SerializeToString())

    def flush(self) -> None:
        """Bring the events to the folder."""
        if self._sink is not None and not self.grows:
            self.fs.pipe_file(self._path, self._sink.getvalue())
            self._sink = None

    def close(self) -> None:
        """End."""
        self.flush()
        if self._sink is not None:
            self._sink.close()
            self._sink = None

    def _begin(self, seconds: float | None) -> None:
        self.fs.makedirs(self.place, exist_ok=True)
        # TensorBoard knows event files by these words and reads them in the order of their names.
        at, maker = time.time_ns() // 1000, f"{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        name = f"events.out.tfevents.{at // 10**6:010d}.{at % 10**6:06d}.{maker}{self.suffix}"
        first, self._path = not self._path, f"{self.place.rstrip('/')}/{name}"
        self._sink = self.fs.open(self._path, "wb") if self.grows else BytesIO()
        self._write(seconds, file_version="brain.Event:2")
        if self.first_step is not None and first:
            self._write(seconds, step=self.first_step, session_log={"status": "START"})

    def _write(self, seconds: float | None, **event: Any) -> None:
        Event, RecordWriter = _tensorboard()
        when = time.time() if seconds is None else seconds
        RecordWriter(self._sink).write(Event(wall_time=when, **event).SerializeToString())


def _events(data: bytes) -> Iterator[Any]:
    """Yield the events of a file; one that is still being written ends early."""
    Event, _ = _tensorboard()
    at = 0
    while at + _HEADER.size <= len(data):
        (length,) = _HEADER.unpack_from(data, at)
        begin, at = at + _HEADER.size, at + _HEADER.size + length + _CHECK
        if at > len(data):
            return
        yield Event.FromString(data[begin : begin + length])


def _spellings(metrics: Iterable[str]) -> dict[str, str]:
    """Return the names of metrics by how the lines spell them."""
    ours = [name for name in known_metrics.__all__ if isinstance(getattr(known_metrics, name), type)]
    return {name.lower(): name for name in (*ours, "Loss", *metrics)}


def _spelled(tag: Any, tags: Sequence[str]) -> str | None:
    """Return the tag as it is spelled among the tags."""
    if tag in tags:
        return str(tag)
    matches = [name for name in tags if isinstance(tag, str) and name.lower() == tag.lower()]
    return matches[0] if len(matches) == 1 else None


def _tensorboard() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "tensorboard":
            raise
        raise MissingDependency.of("tensorboard", "tensorboard", "writing or reading summaries") from error
    return Event, RecordWriter
