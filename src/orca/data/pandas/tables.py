"""Tables: text files as XShards, read by pandas on workers. Owns the tasks, and when files are read again.

Tasks read their spans with the types that pandas infers for each. If these do not fit together, all spans are read
again with the types that pandas would infer from all rows. A file of which a range cannot be read is read by one task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from orca.data.pandas.formats import Format
from orca.data.pandas.inference import Schema, SpanFinding, find, merged
from orca.data.pandas.paths import DataFile
from orca.data.pandas.spans import MOST_BYTES, OPENING_BYTES, FileRange, cut
from orca.data.slices import FRAME, SERIES
from orca.data.spark_frames import computed, refused
from orca.errors import DataError
from orca.storage import hdfs

if TYPE_CHECKING:
    import pandas as pd

    from orca.data.ray_shards import RayXShards
    from orca.data.shard import SparkXShards

logger = logging.getLogger(__name__)
_TRIAL = "orca.reading.trial"  # the property of a job whose findings are looked at
_MOST_ROUNDS = 6


@dataclass(frozen=True)
class Finish:
    """A function that turns the columns of files into those of shards.

    Attributes:
        partitions: Partition columns, in a frame of one row, by the folders of a file.
        names: New names of all columns.
        usecols: The columns in use, by name, by position or by a function.
        index: The name or the position of a column that becomes the index, or several.
        squeeze: Whether a shard of one column becomes a Series.
    """

    partitions: Mapping[Any, pd.DataFrame]
    names: Sequence[Any] | None = None
    usecols: Any = None
    index: Any = None
    squeeze: bool = False

    def needs_schema(self) -> bool:
        """Return whether the columns of all files must be known before."""
        return self.names is not None or self.usecols is not None or self.index is not None

    def frame(self, frame: Any, file: DataFile) -> Any:
        """Return the rows of a file with the columns of a shard.

        Raises:
            DataError: There are other columns than those that are named.
        """
        values = self.partitions[file.partition] if self.partitions else {}
        if len(values):
            frame = frame.assign(**{name: values[name].repeat(len(frame)).set_axis(frame.index) for name in values})
        if not self.needs_schema():
            return frame
        if self.names is not None and len(self.names) != len(frame.columns):
            raise DataError(
                f"names has {len(self.names)} column(s), the files have {len(frame.columns)}. Name every column.",
                code="names-count",
            )
        frame = frame.set_axis(list(self.names), axis=1) if self.names is not None else frame
        if callable(self.usecols):
            frame = frame[[label for label in frame.columns if self.usecols(label)]]
        elif self.usecols is not None:
            chosen = _labels("usecols", self.usecols, list(frame.columns))
            frame = frame[[label for label in frame.columns if label in chosen]]
        if not len(frame.columns):
            raise DataError("usecols chooses none of the columns.", code="no-columns")
        return frame if self.index is None else frame.set_index(_labels("index_col", self.index, list(frame.columns)))

    def shard(self, rows: Any) -> Any:
        """Return rows as a shard."""
        return rows.squeeze(axis=1) if self.squeeze and hasattr(rows, "columns") else rows


def _labels(option: str, chosen: Any, labels: list[Any]) -> list[Any]:
    names: list[Any] = [chosen] if isinstance(chosen, str | int) else list(chosen)
    strange = [one for one in names if one not in labels and not (isinstance(one, int) and 0 <= one < len(labels))]
    if strange:
        raise DataError(f"{option} names {strange}, which are not among the columns {labels}.", code="missing-column")
    return [one if one in labels else labels[one] for one in names]


@dataclass(frozen=True)
class TableTask:
    """A task that reads groups of spans as shards.

    Attributes:
        form: The format of the files.
        finish: Makes the columns of shards.
        size: The rows of a shard; None makes one shard of a group.
        schema: The columns and types of all spans, once they are known.
        report: Takes what was found in a span; None in a job whose findings nobody reads.
    """

    form: Format
    finish: Finish
    size: int | None
    schema: Schema | None = None
    report: Any = None

    def __call__(self, groups: Iterable[list[FileRange]]) -> Iterator[Any]:
        """Yield shards, at least one of a group.

        Raises:
            DataError: A file cannot be read, or has changed.
        """
        import pandas as pd

        is_trial = self.report is not None and _is_trial()
        for group in groups:
            parts: list[Any] = []
            for number, span in enumerate(group, 1):
                finding, frame = self.read(span)
                if is_trial:
                    self.report.add([finding])
                if frame is None and not is_trial:
                    raise DataError(
                        f"{span.file.path} has changed while it was read. Read it again.", code="file-changed"
                    )
                if frame is not None and (len(frame) or not parts):
                    parts = [part for part in parts if len(part)] + [self.finish.frame(frame, span.file)]
                rows, is_last = sum(map(len, parts)), number == len(group)
                if not parts or (not is_last and (self.size is None or rows < self.size)):
                    continue
                is_fresh = self.finish.index is None and self.form.has_fresh_index(parts)
                whole = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=is_fresh)
                size = self.size or max(rows, 1)
                stop = max(rows, 1) if is_last else rows // size * size
                for start in range(0, stop, size):
                    shard = whole.iloc[start : start + size]
                    yield self.finish.shard(shard.reset_index(drop=True) if is_fresh else shard)
                rest = whole.iloc[stop:]
                parts = [rest.reset_index(drop=True) if is_fresh else rest]

    def class_name(self) -> str:
        """Return the name of the shards' class."""
        return SERIES if self.finish.squeeze or self.form.options.get("typ") == "series" else FRAME

    def survey(self, groups: Iterable[list[FileRange]]) -> Iterator[SpanFinding]:
        """Yield what is found in each span.

        Raises:
            DataError: A file cannot be read.
        """
        for group in groups:
            for span in group:
                yield self.read(span)[0]

    def read(self, span: FileRange) -> tuple[SpanFinding, Any]:
        """Return what is found in a span, and its rows; None if pandas refuses a range.

        Raises:
            DataError: A whole file cannot be read, or it has changed.
        """
        try:
            frame = self.form.frame(span, self.schema.types if self.schema else {})
            if self.schema:
                frame = self.schema.applied(frame)
        except DataError:
            raise
        except (ValueError, TypeError, LookupError, OSError) as error:  # pandas' errors of parsing are ValueErrors
            if span.length is not None and not isinstance(error, OSError):
                logger.debug("%s is read by one task: %s", span.file.path, error)
                return SpanFinding(span), None
            raise DataError(self.form.explained(span.file, error), code="file-not-readable") from None
        return find(span, frame, self.form.function == "read_json"), frame


def _is_trial() -> bool:
    from pyspark import TaskContext

    task = TaskContext.get()
    return task is not None and task.getLocalProperty(_TRIAL) is not None


def read_tables(form: Format, finish: Finish, files: Sequence[DataFile]) -> SparkXShards | RayXShards:
    """Return files as XShards: on Spark, or on Ray if the program runs on Ray alone.

    Raises:
        DataError: A file cannot be read, or columns do not fit.
    """
    from orca.cluster.context import OrcaContext

    cluster = OrcaContext.cluster()
    engine: Any = _OnRay(cluster) if cluster is not None and cluster.runtime == "ray" else _OnSpark()
    reading = TableTask(form, finish, OrcaContext._shard_size)
    uncut: set[str] = set()
    for _ in range(_MOST_ROUNDS):
        groups = cut(files, partial(_is_cuttable, form=form, uncut=uncut), *engine.sizes())
        with refused():
            shards, findings = engine.attempt(groups, reading)
        refusals = {finding.span.file.path for finding in findings if finding.rows is None}
        if not refusals:
            schema = merged(findings, form)
            if all(schema.fits(finding) for finding in findings):
                finish.frame(schema.empty(), files[0])  # refuses columns that are not there
                if shards is None:
                    return engine.shards(groups, replace(reading, schema=schema))  # type: ignore[no-any-return]
                return shards  # type: ignore[no-any-return]
            reading = replace(reading, schema=schema)
        uncut |= refusals
        if shards is not None:
            shards.uncache()
    raise DataError(f"{files[0].path} changes while it is read. Read it when it is complete.", code="file-changed")


def _is_cuttable(file: DataFile, form: Format, uncut: set[str]) -> bool:
    return file.path not in uncut and form.is_cuttable(file)


class _OnSpark:
    """Tasks of Spark."""

    def __init__(self) -> None:
        from orca.cluster.context import OrcaContext

        self._session = OrcaContext.get_spark_session()
        self._context = OrcaContext.get_spark_context()
        self._is_eager = OrcaContext._eager_mode

    def sizes(self) -> tuple[int, int, int]:
        """Return how many tasks run at a time, the most bytes of one, and the cost of opening a file."""
        to_bytes = self._session._jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes  # type: ignore[union-attr]
        conf = self._session.conf
        most = conf.get("spark.sql.files.maxPartitionBytes", str(MOST_BYTES))
        opening = conf.get("spark.sql.files.openCostInBytes", str(OPENING_BYTES))
        return self._context.defaultParallelism, int(to_bytes(most)), int(to_bytes(opening))

    def attempt(
        self, groups: list[list[FileRange]], reading: TableTask
    ) -> tuple[SparkXShards | None, list[SpanFinding]]:
        """Read all spans; return what is found in them, and the shards if they are computed at once."""
        if not self._is_eager or (reading.finish.needs_schema() and reading.schema is None):
            return None, self._mapped(groups, reading.survey).collect()
        report: Any = self._context.accumulator([], _Lists())  # type: ignore[arg-type]
        self._context.setLocalProperty(_TRIAL, "true")
        try:
            shards = self.shards(groups, replace(reading, report=report))
        finally:
            self._context.setLocalProperty(_TRIAL, None)  # type: ignore[arg-type]
        findings = {finding.span: finding for finding in report.value}  # a task may have run twice
        return shards, [findings[span] for group in groups for span in group]

    def shards(self, groups: list[list[FileRange]], reading: TableTask) -> SparkXShards:
        """Return the shards of spans."""
        return computed(self._mapped(groups, reading), reading.class_name())

    def _mapped(self, groups: list[list[FileRange]], task: Callable[..., Iterator[Any]]) -> Any:
        return self._context.parallelize(groups, len(groups)).mapPartitions(hdfs.Reaching(task))


class _Lists:
    """Lists that Spark's accumulators add."""

    def zero(self, _: list[Any]) -> list[Any]:
        """Return an empty list."""
        return []

    def addInPlace(self, one: list[Any], other: list[Any]) -> list[Any]:
        """Return both lists as one."""
        one += other
        return one


class _OnRay:
    """Tasks of Ray."""

    def __init__(self, cluster: Any) -> None:
        self._cores = cluster.num_nodes * (cluster.cores or 1)

    def sizes(self) -> tuple[int, int, int]:
        """Return how many tasks run at a time, the most bytes of one, and the cost of opening a file."""
        return self._cores, MOST_BYTES, OPENING_BYTES

    def attempt(self, groups: list[list[FileRange]], reading: TableTask) -> tuple[None, list[SpanFinding]]:
        """Return what is found in all spans."""
        return None, self._groups(groups).rdd.mapPartitions(hdfs.Reaching(reading.survey)).collect()

    def shards(self, groups: list[list[FileRange]], reading: TableTask) -> RayXShards:
        """Return the shards of spans, which Ray computes in the background."""
        lists = self._groups(groups)
        return lists._made(lists.rdd.mapPartitions(hdfs.Reaching(reading)), reading.class_name())

    def _groups(self, groups: list[list[FileRange]]) -> RayXShards:
        from orca.data.ray_shards import RayXShards

        return RayXShards.of([group] for group in groups)
