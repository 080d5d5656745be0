"""Files read by pandas: each task reads a few of them. Owns the meaning of pandas' keywords for many files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsspec.utils import infer_compression

from orca.data.pandas.paths import DataFile, dealt, files_at
from orca.data.slices import FRAME, SERIES
from orca.data.spark_frames import computed
from orca.errors import ArgumentError, DataError
from orca.storage import hdfs
from orca.storage.files import filesystem, is_local

if TYPE_CHECKING:
    import pandas as pd

    from orca.data.shard import SparkXShards

_STREAMING = ("chunksize", "iterator")


def shards_by_pandas(function: str, paths: list[str], options: Mapping[str, Any]) -> SparkXShards:
    """Return the files at paths as XShards, read by a function of pandas on the workers.

    Args:
        function: "read_csv" or "read_json".
        paths: Paths of any file system.
        options: Keywords for that function.

    Raises:
        ArgumentError: pandas would not return a DataFrame.
        DataError: There is nothing at a path, or, when shards are computed at once, pandas refused a file.
    """
    from orca.cluster.context import OrcaContext

    names = [name for name in _STREAMING if options.get(name)]
    if names:
        raise ArgumentError(
            f"{function} returns whole shards and cannot take {names[0]}. Leave it out; "
            "OrcaContext._shard_size sets the rows of a shard."
        )
    context = OrcaContext.get_spark_context()
    groups = dealt(files_at(paths), context.defaultParallelism)
    plain = {name: value for name, value in options.items() if name != "squeeze"}
    squeeze = bool(options.get("squeeze")) or options.get("typ") == "series"
    reading = FileReading(function, plain, squeeze, OrcaContext._shard_size)
    return computed(
        context.parallelize(groups, len(groups)).mapPartitions(hdfs.Reaching(reading)), SERIES if squeeze else FRAME
    )


@dataclass(frozen=True)
class FileReading:
    """The reader of a task's files as shards."""

    function: str
    options: Mapping[str, Any]
    squeeze: bool
    size: int | None

    def __call__(self, groups: Iterable[list[DataFile]]) -> Iterator[Any]:
        """Yield the rows of all files of a group as one shard, or in shards of `size` rows as they are read."""
        import pandas as pd

        fresh = not any(self.options.get(name) is not None for name in ("index_col", "orient"))
        for group in groups:
            frames: list[Any] = []
            for number, file in enumerate(group, 1):
                frames.append(self._read(getattr(pd, self.function), file.path))
                have, last = sum(map(len, frames)), number == len(group)
                if not last and (self.size is None or have < self.size):
                    continue
                whole = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=fresh)
                size = self.size or max(have, 1)
                stop = max(have, 1) if last else have // size * size
                for start in range(0, stop, size):
                    yield self._shard(whole.iloc[start : start + size], fresh)
                frames = [whole.iloc[stop:]]

    def _shard(self, part: Any, fresh: bool) -> Any:
        part = part.reset_index(drop=True) if fresh else part
        return part.squeeze(axis=1) if self.squeeze and hasattr(part, "columns") else part

    def _read(self, reader: Callable[..., Any], path: str) -> pd.DataFrame:
        fs, place = filesystem(path)
        try:
            if is_local(fs):
                return reader(place, **self.options)
            with fs.open(place, "rb") as file:
                return reader(file, **{"compression": infer_compression(place), **self.options})
        except (ValueError, OSError, KeyError) as error:  # pandas' errors of parsing are ValueErrors
            raise DataError(f"{path} cannot be read by pandas.{self.function}: {error}") from error
