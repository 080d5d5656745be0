"""ShardCache: computed shards, as long as anything refers to them. Owns their files, and when they are released.

Where Spark runs on this machine alone, a task writes the shards of a partition to a file beside Spark's own blocks and
returns a short record of it. Later tasks map the file into memory: arrays and frames are not copied, columns that
nobody looks at are not read, and no shard passes through the JVM. On a cluster a task may run where the file is not:
there Spark keeps the bytes of shards itself, and sends them.

Shards are released when Python has no reference to their RDD any more: neither XShards, nor lazy XShards that are made
of them, nor an RDD that is mapped from it. The RDD is a plain one, which refers to no other in Python, so that computed
shards do not hold those they were made of. Python cannot see what refers to them in the JVM, DataFrames first of all:
`hold_for_jvm` leaves the release of such shards to Spark's ContextCleaner.

Not Spark's storage levels: shards would pass through the JVM, several times as slow as a file that is mapped
(docs/benchmarks.md).
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import shutil
import sys
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from orca.data.layout import ShardInfo, infos_of, total
from orca.errors import DataError

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

_ALIGNED = 64  # bytes, for vector instructions
_MAPPED = 1 << 16  # bytes from which a shard is mapped rather than read
_MOST_MAPS = 256  # shards of a process that are mapped at a time: each takes one of the files it may open
_ABANDONED = 1 << 30  # bytes of files that nobody holds any more, for which the JVM is asked to look for them


class ShardCache(Protocol):
    """Shards that stay once they are computed."""

    rdd: RDD[Any]

    def compute(self) -> None:
        """Compute them now."""

    def is_held(self) -> bool:
        """Say whether they have not been dropped."""

    def known(self) -> ShardInfo | None:
        """Return what is known about them without a job; None if they are not computed, or there are none."""

    def info(self) -> ShardInfo | None:
        """Return what they are, if need be after a job; None if there are none."""

    def size(self) -> int:
        """Return about how many bytes they are."""

    def take(self, n: int | None = None) -> list[Any]:
        """Return all of them, or the first ones, to the driver."""

    def drop(self) -> None:
        """Let go of them; whatever needs them computes them again."""

    def hold_for_jvm(self) -> None:
        """Keep them as long as the JVM refers to them, too."""


def keep(rdd: RDD[Any]) -> ShardCache:
    """Return the shards of an RDD as such that stay; nothing is computed yet."""
    here = str(rdd.ctx.master).startswith("local")
    return InFiles(rdd) if here and not rdd.is_cached else InSpark(rdd)


class InSpark:
    """Shards that Spark keeps, in its memory or on disk."""

    def __init__(self, rdd: RDD[Any]) -> None:
        from pyspark import StorageLevel

        self.rdd = rdd
        self._info: ShardInfo | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        _released.release(rdd.ctx)
        if not rdd.is_cached:
            # Shards are bytes to the JVM: they need not be serialized once more, and compressed.
            self.rdd = _plain(rdd).persist(StorageLevel.MEMORY_AND_DISK_DESER)
            self._finalizer = _released.watch(self.rdd)

    def compute(self) -> None:
        """Compute the shards now."""
        compute(self.rdd)

    def is_held(self) -> bool:
        """Say whether Spark is to keep them."""
        return bool(self.rdd.is_cached)

    def known(self) -> ShardInfo | None:
        """Return what a job has found out before."""
        return self._info

    def info(self) -> ShardInfo | None:
        """Return what the shards are, the first time after a job: Spark has bytes alone."""
        if self._info is None:
            infos = self.rdd.mapPartitions(infos_of).collect()
            self._info = total(infos) if infos else None
        return self._info

    def size(self) -> int:
        """Return the bytes of frames, arrays and the like, after a job."""
        return int(self.rdd.map(_size).sum())

    def take(self, n: int | None = None) -> list[Any]:
        """Return shards."""
        return self.rdd.collect() if n is None else self.rdd.take(n)

    def drop(self) -> None:
        """Let Spark forget them."""
        self.hold_for_jvm()
        self.rdd.unpersist()

    def hold_for_jvm(self) -> None:
        """Leave the shards to the JVM."""
        if self._finalizer:
            self._finalizer.detach()


def _size(shard: Any) -> int:
    usage = getattr(shard, "memory_usage", None)
    return int(usage(index=True, deep=True).sum()) if usage else sys.getsizeof(shard)


def compute(rdd: RDD[Any]) -> None:
    """Compute an RDD."""
    rdd._jrdd.count()  # Python's pickles need not be read again to be counted


class InFiles:
    """Shards in files of this machine; Spark keeps a record of each, and makes a file anew with the record."""

    def __init__(self, rdd: RDD[Any]) -> None:
        from pyspark import StorageLevel

        self.folder = _folders.new(rdd.ctx)
        self.records = _plain(rdd.mapPartitions(Writing(str(self.folder))))
        self.records.persist(StorageLevel.MEMORY_AND_DISK)
        self.rdd = self.records.mapPartitions(read)
        self._record_list: list[Record] | None = None
        self._finalizer = _released.watch(self.records)
        _folders.watch(self.folder, self.records)

    def compute(self) -> None:
        """Write the files, if they are not there yet."""
        self._record_list = self.records.collect()

    def _computed(self) -> list[Record]:
        if self._record_list is None:
            self.compute()
        return self._record_list or []

    def is_held(self) -> bool:
        """Say whether Spark is to keep the records."""
        return bool(self.records.is_cached)

    def known(self) -> ShardInfo | None:
        """Return what the tasks have written down."""
        infos = [record.info for record in self._record_list or [] if record.info]
        return total(infos) if infos else None

    def info(self) -> ShardInfo | None:
        """Return what the tasks have written down, once they have run."""
        self._computed()
        return self.known()

    def size(self) -> int:
        """Return the bytes of the files."""
        return sum(record.end for record in self._computed())

    def take(self, n: int | None = None) -> list[Any]:
        """Return shards, read here; where another thread lets go of them meanwhile, they are computed again."""
        try:
            return list(itertools.islice(read(self._computed()), n))
        except DataError:
            if self.is_held():
                raise
            return self.rdd.collect() if n is None else self.rdd.take(n)

    def drop(self) -> None:
        """Let Spark forget the records, then remove the files: tasks that write them again let shards pass instead.

        While another thread runs a job, whose tasks may be about to open the files, these stay; a later folder's
        making removes them.
        """
        self._finalizer.detach()
        self.records.unpersist(blocking=True)
        if not is_busy(self.records.ctx):
            _folders.remove(self.folder)

    def hold_for_jvm(self) -> None:
        """Leave the files to the JVM: they go when it has no use for their records."""
        if self._finalizer.detach():
            weakref.finalize(self.records, _folders.abandon, self.folder).atexit = False


def _plain(rdd: RDD[Any]) -> RDD[Any]:
    """Return an RDD without the references to those it is made of, which are the JVM's affair from here on."""
    from pyspark import RDD

    return RDD(rdd._jrdd, rdd.ctx, rdd._jrdd_deserializer)


class _Released:
    """RDDs that Python has no use for any more. A finalizer may run at any time, so it must not talk to the JVM."""

    def __init__(self) -> None:
        self._numbers: deque[tuple[str, int]] = deque()

    def watch(self, rdd: RDD[Any]) -> weakref.finalize[..., Any]:
        """Note down the RDD when nothing in Python refers to it."""
        finalizer = weakref.finalize(rdd, self._numbers.append, (str(rdd.ctx.applicationId), rdd.id()))
        finalizer.atexit = False
        return finalizer

    def release(self, context: SparkContext) -> None:
        """Let Spark forget the RDDs that were noted down."""
        while self._numbers:
            spark, number = self._numbers.popleft()
            rdd = context._jsc.getPersistentRDDs().get(number) if spark == context.applicationId else None
            if rdd is not None:
                rdd.unpersist(False)


_released = _Released()


class _Folders:
    """The folders with files of shards, of the Spark that runs; it removes the rest when it stops.

    A folder is needed as long as Spark keeps its records, that is until somebody drops them, or the JVM finds that
    nothing refers to them any more: not a DataFrame either, which Python would not know of.
    """

    def __init__(self) -> None:
        self._records: dict[Path, int] = {}  # the number of the RDD that has the records of each folder
        self._spark = ""
        self._garbage = 0  # bytes

    def new(self, context: SparkContext) -> Path:
        """Make a folder, and remove those that nothing refers to."""
        from orca.cluster.context import when_stopped

        if self._spark != context.applicationId:
            self._clear()  # Spark removes its folder only when the JVM ends
            self._spark, self._garbage = str(context.applicationId), 0
            when_stopped(self._clear)
        _released.release(context)
        if self._garbage > _ABANDONED:
            context._jvm.System.gc()  # type: ignore[union-attr]
            self._garbage = 0
        alive = context._jsc.getPersistentRDDs()
        orphans = [folder for folder, number in list(self._records.items()) if not alive.containsKey(number)]
        for folder in orphans if orphans and not is_busy(context) else []:
            self.remove(folder)
        folder = Path(str(context._temp_dir)) / f"shards-{uuid.uuid4().hex}"
        folder.mkdir(mode=0o700)
        return folder

    def watch(self, folder: Path, records: RDD[Any]) -> None:
        """Remember whose folder it is."""
        self._records[folder] = records.id()

    def abandon(self, folder: Path) -> None:
        """Count the bytes of a folder that Python has no use for any more."""
        if folder in self._records:
            self._garbage += sum(file.stat().st_size for file in folder.glob("*"))

    def _clear(self) -> None:
        for folder in list(self._records):
            self.remove(folder)

    def remove(self, folder: Path) -> None:
        self._records.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)


_folders = _Folders()


def is_busy(context: SparkContext) -> bool:
    """Say whether Spark runs a job.

    Its scheduler is no API of Spark's. Where it cannot be asked, the status tracker is, which hears of the end of jobs
    later than their callers: folders stay a little longer then.
    """
    try:
        return bool(context._jsc.sc().dagScheduler().activeJobs().size())
    except Exception:  # whatever py4j says of a method that is not there
        return bool(context.statusTracker().getActiveJobsIds())


# On executors


@dataclass(frozen=True)
class Writing:
    """A task that writes the shards of a partition to a file, and returns its record; or lets them pass.

    They pass where the folder is gone, as nobody keeps them any more.
    """

    folder: str

    def __call__(self, shards: Iterable[Any]) -> Iterator[Any]:
        """Yield the record."""
        path = os.path.join(self.folder, uuid.uuid4().hex)
        try:
            file = open(path, "wb")  # noqa: SIM115
        except FileNotFoundError:
            yield from shards
            return
        with file:
            infos, index = [], []
            for shard in shards:
                infos.append(ShardInfo.of(shard))
                index.append(_write(file, shard))
            end = file.tell()
            pickle.dump(index, file)
        yield Record(path, end, total(infos) if infos else None)


@dataclass(frozen=True)
class Record:
    """The file with the shards of a partition: their places are told behind the last of them."""

    path: str
    end: int
    info: ShardInfo | None

    def shards(self) -> Iterator[Any]:
        """Yield the shards. They may be changed: the file stays as it is.

        Raises:
            DataError: The file is gone.
        """
        try:
            file = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise DataError(
                f"the file of computed shards {self.path} is gone: somebody cleans up Spark's folders while it runs. "
                "Call uncache() on these XShards to compute them again, or set spark.local.dir to another folder.",
                code="shards-gone",
            ) from None
        with file:
            file.seek(self.end)
            for span in pickle.load(file):
                yield span.read(file)


_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()  # those that somebody uses


@dataclass(frozen=True)
class Span:
    """The place of a shard in a file: a pickle, and the buffers of its arrays, by their places in the span.

    Attributes:
        start: Its first byte; that of a page where the shard may be mapped.
        stop: The byte behind it.
        buffers: The starts and ends of the arrays.
        large: Whether to map it.
    """

    start: int
    stop: int
    buffers: tuple[tuple[int, int], ...]
    large: bool

    def read(self, file: BinaryIO) -> Any:
        """Return the shard."""
        size = self.stop - self.start
        if self.large and len(_maps) < _MOST_MAPS:
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=self.start)
            _maps.add(mapping)
            view = memoryview(mapping)
        else:
            file.seek(self.start)
            view = memoryview(bytearray(size))
            file.readinto(view)  # type: ignore[attr-defined]
        return pickle.loads(view, buffers=[view[start:stop] for start, stop in self.buffers])


def _write(file: BinaryIO, shard: Any) -> Span:
    from pyspark import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(shard, protocol=5, buffer_callback=buffers.append)  # as Spark pickles the elements of RDDs
    views = [buffer.raw() for buffer in buffers]
    large = len(head) + sum(view.nbytes for view in views) >= _MAPPED
    start = _skip(file, mmap.ALLOCATIONGRANULARITY if large else _ALIGNED)
    file.write(head)
    places = []
    for view in views:
        place = _skip(file, _ALIGNED) - start
        file.write(view)
        places.append((place, place + view.nbytes))
    return Span(start, file.tell(), tuple(places), large)


def _skip(file: BinaryIO, unit: int) -> int:
    """Fill up a file to a multiple of some bytes; return its length."""
    file.write(bytes(-file.tell() % unit))
    return file.tell()


def read(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the shards of records; other items are shards that passed."""
    for item in items:
        if isinstance(item, Record):
            yield from item.shards()
        else:
            yield item
