"""Export: rows of Spark as Arrow, for engines that are not Spark's. Owns the place where executors put them, so that
every rank can read them, and that nothing of them is left after the run.

The place is, in this order: the setting spark.orca.staging; a temporary folder, where all of Spark is on the
driver's machine; the user's folder on the HDFS of Hadoop's settings; files on the driver's machine, to which the rows
travel through the driver ("driver" in the setting). Files on the driver's machine say so (`here`): an engine whose
ranks are elsewhere carries their rows itself.
"""

from __future__ import annotations

import logging
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from orca.core.source import Items
from orca.core.units import size_of
from orca.errors import DataError
from orca.storage import hdfs
from orca.storage.files import filesystem, is_local, make_private, name_of

STAGING = "spark.orca.staging"
DRIVER = "driver"
LIMIT = "spark.orca.staging.limit"
DEFAULT_LIMIT = "2g"
STALE = 3 * 86400.0  # seconds after which no run reads staged rows any more: it does so when it begins
# Spark brings partition by partition to the driver, whole: they are cut smaller than a rank's share.
_CUTS = 8
_LOOPBACK = re.compile(r"127\.[\d.]+|localhost|::1|\[::1\]")

logger = logging.getLogger(__name__)


class Staging:
    """A folder that Spark's executors and other workers share, and its removal.

    Args:
        name: How the names of its folders begin.
    """

    def __init__(self, name: str = "orca-rows") -> None:
        self._name, self._files = name, ExitStack()
        self.release = self._files.close  # removes them; more than once is fine

    def folder(self, session: SparkSession) -> tuple[str | None, bool]:
        """Make a folder, and say whether it is on the driver's machine; None where nothing but the driver is shared."""
        setting = session.conf.get(STAGING, None)
        if setting and setting != DRIVER:
            return self._fresh(setting), False
        if not setting and is_here(session):
            return self.temporary(), True
        return None if setting else self._on_hdfs(), False

    def temporary(self) -> str:
        """Make a folder on this machine."""
        folder = tempfile.mkdtemp(prefix=f"{self._name}-")
        self._files.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _fresh(self, base: str) -> str:
        """Make a folder in a shared one."""
        self._purge(base)
        folder = f"{base.rstrip('/')}/{self._name}-{uuid.uuid4().hex}"
        make_private(folder)
        self._files.callback(_remove_all, *filesystem(folder))
        return folder

    def _purge(self, base: str) -> None:
        """Remove the folders of programs that were killed long ago."""
        fs, place = filesystem(base)
        old = re.compile(rf"{self._name}-[0-9a-f]{{32}}")
        with suppress(Exception):  # others' folders, say
            for entry in fs.ls(place, detail=True) if fs.isdir(place) else ():
                if old.fullmatch(name_of(entry["name"])) and time.time() - entry.get("mtime", time.time()) > STALE:
                    _remove_all(fs, entry["name"])

    def _on_hdfs(self) -> str | None:
        """Make a folder on the cluster's HDFS; None where there is none, or it cannot be written to."""
        try:
            settings = hdfs.properties()
            service = settings.get("fs.defaultFS") or settings.get("fs.default.name") or ""
            # Executors and ranks have no ticket to show.
            if not service.startswith("hdfs:") or settings.get("hadoop.security.authentication") == "kerberos":
                return None
            return self._fresh(f"{service.rstrip('/')}/user/{hdfs.user_name()}/.orca")
        except Exception as error:
            logger.warning("the rows go through the driver, as HDFS does not take them: %s", error)
            return None


class Export:
    """Rows written to Arrow files when called, and removed when released.

    Args:
        deal: Returns the frame whose rows lie evenly in as many partitions as asked for.
        ranks: How many ranks will read.
    """

    def __init__(self, deal: Callable[[int], DataFrame], ranks: int) -> None:
        self._deal, self._ranks = deal, ranks
        self._staging = Staging()
        self.release = self._staging.release

    def __call__(self) -> list[Callable[[], Items]]:
        """Write the rows; return a reader of each file, in the order of the partitions.

        Raises:
            ArgumentError: A setting is wrong.
            DataError: The rows would have to travel through the driver, and are too many for that.
        """
        frame = self._deal(self._ranks)
        session = frame.sparkSession
        folder, here = self._staging.folder(session)
        if folder is not None:
            return self._written(frame, folder, here)
        return self._fetched(self._deal(_CUTS * self._ranks), _limit(session))

    def _written(self, frame: DataFrame, folder: str, here: bool) -> list[Callable[[], Items]]:
        """Let the executors write."""
        rows = frame.mapInArrow(hdfs.Reaching(ExportTask(folder)), "path string").collect()
        return [ArrowFile(row.path, here) for row in sorted(rows)]

    def _fetched(self, frame: DataFrame, limit: int) -> list[Callable[[], Items]]:
        """Bring the rows here and write them."""
        folder, files, total = Path(self._staging.temporary()), list[Callable[[], Items]](), 0
        last = -1
        with ExitStack() as file:
            for row in frame.mapInArrow(PackTask(), PackTask.SCHEMA).toLocalIterator():
                total += len(row.batch)
                if total > limit:
                    raise DataError(
                        f"the rows are more than {limit} bytes, too many to travel through the driver, and Spark's "
                        "executors and the workers share no folder that is known. Pass "
                        f"conf={{'{STAGING}': 'hdfs://...'}} to init_orca_context, with a folder that all of them "
                        f"reach, train with backend='spark', or raise {LIMIT}.",
                        code="rows-too-large-for-driver",
                    )
                reader = pa.ipc.open_stream(pa.py_buffer(row.batch))
                if row.partition != last:
                    file.close()
                    path, last = str(folder / f"{row.partition:06d}.arrow"), row.partition
                    writer = file.enter_context(pa.ipc.new_stream(path, reader.schema))
                    files.append(ArrowFile(path, here=True))
                for batch in reader:
                    writer.write_batch(batch)
        return files


@dataclass(frozen=True)
class ExportTask:
    """A task that writes record batches to a file of a folder.

    Attributes:
        folder: A path that `orca.storage.files.filesystem` knows.
    """

    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the path of the partition's file, if it has rows."""
        fs, place = filesystem(self.folder)
        # Sorted by name the files are in the partitions' order; a second try of a task writes a file of its own.
        name = f"{_partition():06d}-{uuid.uuid4().hex}.arrow"
        writer = None
        with ExitStack() as files:
            for batch in batches:
                if writer is None:
                    fs.makedirs(place, exist_ok=True)
                    out = pa.OSFile(f"{place}/{name}", "wb") if is_local(fs) else fs.open(f"{place}/{name}", "wb")
                    writer = files.enter_context(pa.ipc.new_stream(files.enter_context(out), batch.schema))
                writer.write_batch(batch)
        if writer is not None:
            yield pa.RecordBatch.from_arrays([pa.array([f"{self.folder}/{name}"])], names=["path"])


@dataclass(frozen=True)
class PackTask:
    """A task that turns record batches into rows that the driver can collect."""

    SCHEMA = "partition int, batch binary"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch as bytes, with the number of its partition."""
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            cells = [pa.array([_partition()], pa.int32()), pa.array([sink.getvalue().to_pybytes()], pa.binary())]
            yield pa.RecordBatch.from_arrays(cells, names=["partition", "batch"])


@dataclass(frozen=True)
class ArrowFile:
    """The record batches of an Arrow file.

    Attributes:
        path: Its path.
        here: Whether that is the driver's machine.
    """

    path: str
    here: bool = False

    def __call__(self) -> Items:
        """Yield the batches; those of a file of this machine are memory-mapped."""
        fs, place = filesystem(self.path)
        try:
            source: Any = pa.memory_map(place) if is_local(fs) else fs.open(place, "rb")
        except FileNotFoundError:
            raise DataError(
                f"the rows that Spark wrote to {self.path} are not there on {socket.gethostname()}: this worker does "
                f"not share that folder with Spark's executors. Pass conf={{'{STAGING}': 'hdfs://...'}} to "
                "init_orca_context, with a folder that all of them reach.",
                code="staging-not-shared",
            ) from None
        with source, pa.ipc.open_stream(source) as reader:
            yield from reader


def _partition() -> int:
    context = TaskContext.get()
    return context.partitionId() if context else 0


def is_here(session: SparkSession) -> bool:
    """Say whether all of Spark is on this machine: a local master, or a driver that only this machine can reach."""
    if "connect" in type(session).__module__:
        server = getattr(session.client, "host", None) or "localhost"
        if not _LOOPBACK.fullmatch(str(server)):
            return False
    master, host = session.conf.get("spark.master", None), session.conf.get("spark.driver.host", None)
    return str(master).startswith("local") or _LOOPBACK.fullmatch(str(host)) is not None


def _limit(session: SparkSession) -> int:
    """Return how many bytes may travel through the driver."""
    return size_of(session.conf.get(LIMIT, None) or DEFAULT_LIMIT, LIMIT, least=0)


def _remove_all(fs: Any, place: str) -> None:
    try:
        fs.rm(place, recursive=True)
    except FileNotFoundError:
        return
    except Exception as error:  # no reason for a run to fail that has ended well
        logger.warning("could not remove the rows that were staged in %s: %s", place, error)
