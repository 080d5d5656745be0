"""XShards: one Python object a shard, spread over a cluster. Owns the verbs on Spark; an RDD element is a shard.

RayXShards, their twin on Ray, are in ray_shards.py. Verbs of pandas are in frames.py, conversions in exchange.py and
spark_frames.py.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.columns import column_array
from orca.core.plan import even_split
from orca.data.slices import FRAME, SERIES, class_name_of, cut, join, peek, row_count
from orca.errors import ArgumentError, DataError
from orca.rows.tree import rows_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark import RDD
    from pyspark.sql import DataFrame

    from orca.data.ray_shards import RayXShards

__all__ = ["SharedValue", "SparkXShards", "XShards", "spark_df_to_pd_sparkxshards", "spark_df_to_ray_dataset"]


class XShards:
    """A Python object spread over a cluster: pandas frames, arrays, dicts, lists, or anything else that pickles."""

    @staticmethod
    def partition(data: Any, num_shards: int | None = None) -> SparkXShards | RayXShards:
        """Cut data of the driver into shards along its rows.

        Args:
            data: An array or a pandas frame, or (nested) dicts, lists and tuples of arrays with equal first dimensions;
                every shard has the same structure.
            num_shards: How many shards; the cluster's cores unless given.

        Returns:
            Shards on Spark, or on Ray where init_orca_context(runtime="ray") has started that alone.

        Raises:
            DataError: There are no arrays, their lengths differ, or there are fewer rows than shards.

        Example::

            shards = XShards.partition({"x": np.zeros((10, 2)), "y": np.zeros(10)})
        """
        from orca.cluster.context import OrcaContext

        framed = class_name_of(data) in (FRAME, SERIES)
        if not framed and not isinstance(data, np.ndarray | dict | list | tuple):
            raise DataError(
                "XShards.partition takes numpy arrays and dicts, lists and tuples of them, or a pandas DataFrame; got "
                f"{type(data).__name__}."
            )
        if num_shards is not None and num_shards < 1:
            raise ArgumentError(f"num_shards must be a positive whole number; got {num_shards!r}.")
        cluster = OrcaContext.cluster()
        on_ray = cluster is not None and cluster.runtime == "ray"
        context: Any = None if on_ray else OrcaContext.get_spark_context()
        cores = cluster.num_nodes * (cluster.cores or 1) if cluster and on_ray else context.defaultParallelism
        shards = num_shards or cores
        rows = len(data) if framed else rows_of(data)
        if rows < shards:
            raise DataError(
                f"the number of shards must not be larger than the number of rows; got {shards} shards for {rows} "
                "row(s). Pass a smaller num_shards."
            )
        tree = (data,) if isinstance(data, list) else data  # whose items are no rows here
        parts = [cut(tree, start, stop) for start, stop in even_split(rows, shards)]
        parts = [part[0] for part in parts] if isinstance(data, list) else parts
        if on_ray:
            from orca.data.ray_shards import RayXShards

            return RayXShards.of([[part] for part in parts])
        return SparkXShards(context.parallelize(parts, shards), class_name=class_name_of(data))

    @classmethod
    def load_pickle(cls, path: str, minPartitions: int | None = None) -> SparkXShards:
        """Read shards that `save_pickle` has written.

        Reading a pickle runs the code in it: load only what you trust. `load_parquet` reads data alone.

        Args:
            path: A folder that Spark reads.
            minPartitions: The least number of partitions.

        Raises:
            ArgumentError: There is no such folder.
        """
        from orca.cluster.context import OrcaContext

        context = OrcaContext.get_spark_context()
        if not _is_there(context, path):
            raise ArgumentError(f"load_pickle: Path does not exist: {path}.")
        return SparkXShards(context.pickleFile(path, minPartitions))

    @classmethod
    def load_parquet(cls, path: str) -> SparkXShards:
        """Read shards that `save_parquet` has written: the same shards, in the same order.

        Args:
            path: A folder of any file system that `orca.data.file` knows, which all executors reach.

        Raises:
            ArgumentError: There is no such folder, or it is incomplete.
        """
        from orca.data import parquet

        return parquet.load(path)


class SparkXShards(XShards):
    """Shards in a Spark RDD.

    They are computed at once and kept, in memory or on disk, unless they are lazy: those of `lazy` and `to_lazy`, all
    that is made from them, and all where `OrcaContext._eager_mode` is false. What an eager verb was asked of is let
    go of when its result is there, and computed anew if it is needed again; `cache` keeps it.

    Verbs of pandas need shards that are pandas frames. They do what pandas does with all rows in one frame: missing
    values are equal keys, and a row that is there twice counts twice. The index of a frame travels with its rows. Only
    the order of rows differs where a verb says so, and a column may have another type in shards that lack some of its
    values: integers are floats in a shard with a null.

    Args:
        rdd: One element a shard.
        transient: Whether the shards are lazy.
        class_name: The name of the shards' class where it is known.
    """

    def __init__(self, rdd: RDD[Any], transient: bool = False, class_name: str | None = None) -> None:
        from orca.cluster.context import OrcaContext

        self.rdd = rdd
        self.eager = OrcaContext._eager_mode and not transient
        self._class_name = class_name
        self._kept = bool(rdd.is_cached)  # whether the user wants them kept
        if self.eager:
            _persist(rdd)
            self.compute()

    @classmethod
    def lazy(cls, rdd: RDD[Any], class_name: str | None = None) -> SparkXShards:
        """Make shards that are computed when they are used."""
        return cls(rdd, transient=True, class_name=class_name)

    def to_lazy(self) -> SparkXShards:
        """Return the same shards; what is made from them is computed when it is used."""
        return SparkXShards.lazy(self.rdd, self._class_name)

    # Any shards

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> SparkXShards:
        """Apply a function to every shard.

        Args:
            func: Called with a shard and the arguments; returns the new shard, of any kind.
            args: Further arguments. A SharedValue is sent to each executor once, and given as its value.

        Example::

            shards.transform_shard(lambda frame, least: frame[frame.age > least], 18)
        """
        return self._made(self.rdd.map(partial(_applied, func=func, args=args)))

    def collect(self) -> list[Any]:
        """Return all shards to the driver."""
        return self.rdd.collect()

    def first(self) -> Any:
        """Return the first shard."""
        return self.rdd.first()

    def take(self, n: int) -> list[Any]:
        """Return the first shards."""
        return self.rdd.take(n)

    def cache(self) -> SparkXShards:
        """Keep the shards once they are computed, in memory or on disk."""
        self._kept = True
        _persist(self.rdd)
        return self

    def uncache(self) -> SparkXShards:
        """Let go of cached shards."""
        self._kept = False
        if self.rdd.is_cached:
            self.rdd.unpersist()
        return self

    def is_cached(self) -> bool:
        """Say whether the shards are cached."""
        return bool(self.rdd.is_cached)

    def compute(self) -> SparkXShards:
        """Compute lazy shards now."""
        self.rdd._jrdd.count()  # of what Python wrote: it need not be read again to be counted
        return self

    def num_partitions(self) -> int:
        """Return how many partitions the shards lie in."""
        return self.rdd.getNumPartitions()

    def __len__(self) -> int:
        """Return the sum of the shards' lengths: rows of frames and arrays, keys of dicts; 1 for what has none."""
        return int(self.rdd.map(_length).sum())

    def __getitem__(self, key: Any) -> SparkXShards:
        """Return shard[key] of every shard, lazily: a column of frames, an entry of dicts."""
        wrong = peek(self.rdd, partial(_refusal, key=key))
        if wrong:
            raise ArgumentError(wrong)
        return SparkXShards.lazy(self.rdd.map(operator.itemgetter(key)))

    def repartition(self, num_partitions: int) -> SparkXShards:
        """Spread the rows evenly over partitions, in their order, one shard in each.

        The rows are those of frames, Series and arrays, of arrays in a dict or a tuple, and the items of a list. Arrays
        that belong together are no list, therefore. Shards of other kinds are moved as they are. Lazy shards are
        computed twice, to be counted first, unless they are cached.

        Args:
            num_partitions: How many; with fewer rows than that some shards are empty.

        Raises:
            ArgumentError: It is no positive number.
        """
        parts = _positive(num_partitions, "num_partitions")
        counts = self.rdd.mapPartitions(_row_counts).collect()
        if not any(counts) or any(rows is None for shards in counts for rows in shards):
            return self._made(self.rdd.repartition(parts), self._class_name)
        begins = np.cumsum([0, *(rows for shards in counts for rows in shards)])
        firsts = np.cumsum([0, *(len(shards) for shards in counts)])
        edges = [start for start, _ in even_split(int(begins[-1]), parts)] + [int(begins[-1])]
        deal = partial(_dealt, begins=begins.tolist(), firsts=firsts.tolist(), edges=edges)
        empty = peek(self.rdd, _no_rows)
        moved = self.rdd.mapPartitionsWithIndex(deal).partitionBy(parts, int)
        return self._made(moved.mapPartitions(partial(_gathered, empty=empty)), self._class_name)

    def split(self) -> list[SparkXShards]:
        """Return the i-th item of every shard as XShards, for each i; shards are lists or tuples of one length.

        Shards that are no lists or tuples, or have one item, come back as they are.

        Raises:
            DataError: Shards have different lengths.
        """
        lengths = sorted(set(self.rdd.map(_items).collect()))
        if len(lengths) > 1:
            raise DataError(f"split needs shards with the same number of items; got shards of {lengths} items.")
        if not lengths or lengths[0] < 2:
            return [self]
        made = [self._child(self.rdd.map(operator.itemgetter(i))) for i in range(lengths[0])]
        self._let_go()
        return made

    def zip(self, other: SparkXShards) -> SparkXShards:
        """Return pairs of a shard and the one of others at its place.

        Raises:
            ArgumentError: The others are no SparkXShards, or do not lie in partitions of the same sizes.
        """
        if not isinstance(other, SparkXShards):
            raise ArgumentError(f"other should be a SparkXShards; got {type(other).__name__}.")
        mine, theirs = self.num_partitions(), other.num_partitions()
        if mine != theirs:
            raise ArgumentError(
                f"The two SparkXShards should have the same number of partitions; got {mine} and {theirs}. "
                "Call repartition on one of them."
            )
        one, two = (shards.rdd.mapPartitions(_shard_count).collect() for shards in (self, other))
        if one != two:
            raise ArgumentError(
                f"The two SparkXShards should have the same number of elements in each partition; got {one} and {two}."
            )
        return self._made(self.rdd.zip(other.rdd), "builtins.tuple")

    def save_pickle(self, path: str, batchSize: int = 10) -> SparkXShards:
        """Write the shards as pickles, for `XShards.load_pickle`; `save_parquet` is the safe way to share data.

        Args:
            path: A folder that Spark writes; there must be none.
            batchSize: Shards of a batch.

        Raises:
            ArgumentError: There is such a folder.
        """
        if _is_there(self.rdd.ctx, path):
            raise ArgumentError(
                f"save_pickle: there is something at {path} already. Remove it, or name another folder."
            )
        self.rdd.saveAsPickleFile(path, batchSize)
        return self

    def save_parquet(self, path: str) -> SparkXShards:
        """Write a Parquet file of each shard, for `XShards.load_parquet` and any reader of Parquet.

        Shards may be frames, arrays, and dicts, lists and tuples of arrays. Nothing is pickled. Of a categorical column
        the categories that no row of a shard has are lost.

        Args:
            path: A folder of any file system that `orca.data.file` knows, which all executors reach.

        Raises:
            ArgumentError: The folder is not empty.
            DataError: Parquet cannot hold a shard.
        """
        from orca.data import parquet

        parquet.save(self.rdd, path)
        return self

    # Series

    def unique(self) -> np.ndarray:
        """Return the different values of shards that are pandas Series, in the order of their first appearance.

        Raises:
            ArgumentError: The shards are no Series.
        """
        if self._get_class_name() != SERIES:
            raise ArgumentError(
                f"unique needs shards that are pandas Series, as shards['column'] gives; got {self._get_class_name()}."
            )
        return np.asarray(join(self.rdd.map(_different).collect()).unique())

    # Frames: rows meet others

    def partition_by(self, cols: str, num_partitions: int | None = None) -> SparkXShards:
        """Bring the rows with equal values of a column together in one shard.

        Args:
            cols: The column's name.
            num_partitions: How many shards, one a partition; as many as there are partitions unless given.

        Raises:
            ArgumentError: The shards are no frames, or have no such column.
        """
        from orca.data import frames

        rdd = self._frames("partition_by")
        if not isinstance(cols, str):
            raise ArgumentError(f"partition_by takes the name of one column, as a str; got {cols!r}.")
        empty = frames.blank(rdd)
        have = list(empty.columns)
        if cols not in have:
            raise ArgumentError(f"The partition column is not in the DataFrame: {cols!r}; it has {have}.")
        parts = self._parts() if num_partitions is None else _positive(num_partitions, "num_partitions")
        return self._made(frames.regroup(rdd, frames.hashed([cols], parts), parts, empty), FRAME)

    def deduplicates(self) -> SparkXShards:
        """Return each row once, the first of those that are equal in all columns; in no particular order."""
        from orca.data import frames

        return self._made(frames.deduplicated(self._frames("deduplicates"), self._parts()), FRAME)

    def sort_values(
        self, col_names: str | list[str] | None = None, ascending: bool | list[bool] = True
    ) -> SparkXShards:
        """Sort all rows: the shards hold one after the other what pandas' stable sort gives; nulls are the last.

        Args:
            col_names: The columns to sort by; all, from left to right, unless given.
            ascending: Whether small values come first; one word, or one for each column.

        Raises:
            ArgumentError: There is no such column.
        """
        from orca.data import frames

        return self._made(frames.ordered(self._frames("sort_values"), col_names, ascending, self._parts()), FRAME)

    def merge(self, right: SparkXShards, how: str = "inner", on: str | list[str] | None = None) -> SparkXShards:
        """Join rows with equal keys, as pandas.DataFrame.merge does; in no particular order.

        Args:
            right: The other side, XShards of frames.
            how: "inner", "left", "right" or "outer".
            on: The columns with the keys; those that both sides have unless given. Nulls equal each other.

        Raises:
            ArgumentError: The other side is no XShards of frames, or columns are missing.
        """
        from orca.data import frames

        if not isinstance(right, SparkXShards):
            raise ArgumentError(
                f"merge: right should be a SparkXShards of pandas DataFrames; got {type(right).__name__}."
            )
        parts = max(self._parts(), right._parts())
        return self._made(frames.merged(self._frames("merge"), right._frames("merge"), how, on, parts), FRAME)

    def group_by(
        self,
        columns: str | list[str] = [],  # noqa: B006
        agg: str | list[str] | dict[str, Any] = "count",
        join: bool = False,
    ) -> SparkXShards:
        """Aggregate groups of rows with equal keys; a null is a key of its own, so no row is lost.

        Args:
            columns: The columns with the keys; without any, all rows are one group.
            agg: A function for all other columns, or several; or those of each column by its name. Functions are those
                of pandas (count, sum, mean, min, max, median, std, var, first, last, nunique, size, prod), and of
                Spark: avg, stddev, stddev_pop, variance, var_pop, skewness, kurtosis, sumDistinct, collect_list,
                collect_set, approx_count_distinct (which is exact). As in pandas they skip nulls, and the sum of none
                is 0.
            join: Whether to return all rows, each with what its group gives.

        Returns:
            Shards with the keys and columns named like "sum(price)", in no particular order.

        Raises:
            ArgumentError: A column or a function is not known.

        Example::

            shards.group_by("city", agg={"price": ["min", "mean"], "id": "count"})
        """
        from orca.data import frames

        return self._made(frames.grouped(self._frames("group_by"), columns, agg, join, self._parts()), FRAME)

    # Frames: each row alone

    def select(self, cols: str | list[str]) -> SparkXShards:
        """Return some of the columns, as frames."""
        from orca.data import frames

        return self._made(frames.selected(self._frames("select"), cols), FRAME)

    def drop_missing_value(self) -> SparkXShards:
        """Drop the rows with a missing value; columns stay (older systems dropped these instead)."""
        return self._made(self._frames("drop_missing_value").map(_complete), FRAME)

    def sample(
        self, frac: float, replace: bool = False, weights: Any = None, random_state: int | None = None
    ) -> SparkXShards:
        """Draw a random part of each shard; it is the same part whenever it is computed.

        Args:
            frac: Which part of a shard's rows; their number is rounded shard by shard.
            replace: Whether a row may be drawn twice.
            weights: The column with the chances of rows.
            random_state: Seed; with the same one the same rows are drawn.
        """
        from orca.data import frames

        rdd = self._frames("sample")
        drawn = frames.sampled(rdd, frac=frac, replace=replace, weights=weights, random_state=random_state)
        return self._made(drawn, FRAME)

    def assembleFeatureLabelCols(self, featureCols: str | list[str], labelCols: str | list[str]) -> SparkXShards:
        """Turn frames into {"x", "y"} for an Estimator: the array of a column, or a list of those of several.

        A model gets several arrays as several arguments; `stack_feature_labels` makes one array of them.

        Raises:
            ArgumentError: There is no such column.
        """
        from orca.data import frames

        rdd = self._frames("assembleFeatureLabelCols")
        names = [[cols] if isinstance(cols, str) else list(cols) for cols in (featureCols, labelCols)]
        frames.check_columns(itertools.chain(*names), frames.blank(rdd).columns, "assembleFeatureLabelCols")
        return self._made(rdd.map(partial(_assembled, features=names[0], labels=names[1])), "builtins.dict")

    def stack_feature_labels(self) -> SparkXShards:
        """Make one array (rows, columns) of the arrays of "x", and one of those of "y", in shards of such dicts.

        Raises:
            ArgumentError: The shards are no dicts.
        """
        if self._get_class_name() != "builtins.dict":
            raise ArgumentError(
                'stack_feature_labels needs shards of {"x": ..., "y": ...}, as assembleFeatureLabelCols makes; got '
                f"{self._get_class_name()}."
            )
        return self._made(self.rdd.map(_stacked), "builtins.dict")

    # Frames: to the driver, and to other kinds

    def max_values(self, col_name: str) -> Any:
        """Return the largest value of a column; None where it has none."""
        from orca.data import frames

        return frames.largest(self._frames("max_values"), col_name)

    def get_null_sum(self) -> pd.Series:
        """Return how many values of each column are missing."""
        from orca.data import frames

        return frames.null_counts(self._frames("get_null_sum"))

    def describe(self, cols: str | list[str] | None = None) -> pd.DataFrame:
        """Return what pandas.DataFrame.describe tells of all rows; quartiles are exact.

        Every column is brought together on one executor.

        Args:
            cols: Of which columns; of all unless given. Of texts only where there is nothing else.
        """
        from orca.data import frames

        return frames.described(self._frames("describe"), cols)

    def head(self, n: int = 5) -> pd.DataFrame:
        """Return the first rows."""
        from orca.data import frames

        return frames.head(self._frames("head"), n)

    def concat_to_pdf(self, axis: int = 0) -> pd.DataFrame:
        """Return all shards as one frame on the driver, below each other (axis 0) or beside each other (1)."""
        import pandas as pd

        frames = self._frames("concat_to_pdf").collect()
        return join(frames) if not axis else pd.concat(frames, axis=1)

    def sample_to_pdf(
        self,
        frac: float,
        replace: bool = False,
        weights: Any = None,
        random_state: int | None = None,
        axis: int = 0,
    ) -> pd.DataFrame:
        """Return a random part of each shard as one frame on the driver: `sample`, then `concat_to_pdf`."""
        return self.to_lazy().sample(frac, replace, weights, random_state).concat_to_pdf(axis)

    def get_schema(self) -> dict[str, Any]:
        """Return {"columns", "dtypes"} of the first shard."""
        from orca.data import frames

        empty = frames.blank(self._frames("get_schema"))
        return {"columns": empty.columns, "dtypes": empty.dtypes}

    def to_spark_df(self) -> DataFrame:
        """Return the rows as a Spark DataFrame; they travel as Arrow, and the index of frames is left out.

        NaN becomes null. Columns have one type in all shards, the widest of theirs.

        Raises:
            DataError: Spark has no type for a column, or shards have different columns.
        """
        from orca.data import exchange

        return exchange.to_spark_df(self._frames("to_spark_df"))

    def _get_class_name(self) -> str:
        """Return the name of the shards' class, of the first one where nobody has told it."""
        if self._class_name is None:
            self._class_name = peek(self.rdd, class_name_of)
        return self._class_name

    def _frames(self, verb: str) -> RDD[Any]:
        """Return the RDD of shards that are frames."""
        if self._get_class_name() != FRAME:
            raise ArgumentError(f"{verb} needs shards that are pandas DataFrames; got {self._get_class_name()}.")
        return self.rdd

    def _parts(self) -> int:
        return max(1, self.num_partitions())

    def _made(self, rdd: RDD[Any], class_name: str | None = None) -> SparkXShards:
        """Return new shards, and let go of these."""
        made = self._child(rdd, class_name)
        self._let_go()
        return made

    def _child(self, rdd: RDD[Any], class_name: str | None = None) -> SparkXShards:
        return SparkXShards(rdd, transient=not self.eager, class_name=class_name)

    def _let_go(self) -> None:
        if self.eager and not self._kept and self.rdd.is_cached:
            self.rdd.unpersist()


class SharedValue:
    """A value of the driver that every executor gets once: an argument of transform_shard.

    Args:
        data: The value.

    Example::

        names = SharedValue({"a": 1})
        shards.transform_shard(lambda frame, names: frame.replace(names), names)
    """

    def __init__(self, data: Any) -> None:
        from orca.cluster.context import OrcaContext

        self.broadcast_data = OrcaContext.get_spark_context().broadcast(data)

    @property
    def value(self) -> Any:
        """Return the value."""
        return self.broadcast_data.value

    def unpersist(self) -> None:
        """Let executors forget the value; it is sent again where it is used again."""
        self.broadcast_data.unpersist()


def spark_df_to_pd_sparkxshards(df: DataFrame) -> SparkXShards:
    """Return a Spark DataFrame as XShards of pandas frames; the rows travel as Arrow.

    Each partition is a shard, or several of `OrcaContext._shard_size` rows where that is set. Types are those of
    DataFrame.toPandas; ML vectors are arrays.
    """
    from orca.data.spark_frames import frame_shards

    return frame_shards(df)


def spark_df_to_ray_dataset(df: DataFrame) -> Any:
    """Return a Spark DataFrame as a Ray Dataset; the rows travel as Arrow, one block a partition.

    Ray starts with this call where it is not up.
    """
    from orca.data import ray_shards

    return ray_shards.dataset_of(df)


def _persist(rdd: RDD[Any]) -> None:
    from pyspark import StorageLevel

    if not rdd.is_cached:
        # Shards are bytes to the JVM: they need not be serialized once more, and compressed.
        rdd.persist(StorageLevel.MEMORY_AND_DISK_DESER)


def _positive(number: Any, what: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise ArgumentError(f"{what} must be a positive whole number; got {number!r}.")
    return int(number)


def _is_there(context: Any, path: str) -> bool:
    """Say whether Spark sees something at a path."""
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return bool(place.getFileSystem(context._jsc.hadoopConfiguration()).exists(place))


# On executors


def _applied(shard: Any, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return func(shard, *(arg.value if isinstance(arg, SharedValue) else arg for arg in args))


def _refusal(shard: Any, key: Any) -> str | None:
    """Return why a shard does not give what is at a key."""
    if not hasattr(shard, "__getitem__"):
        return f"No selection operation available for this XShards of {class_name_of(shard)}."
    try:
        shard[key]
    except (KeyError, IndexError, TypeError):
        have = f"; a shard has {list(shard.keys())}" if hasattr(shard, "keys") else ""
        return f"Invalid key for this XShards: {key!r}{have}."
    return None


def _length(shard: Any) -> int:
    countable = hasattr(shard, "__len__") and getattr(shard, "ndim", None) != 0  # an array may have no dimensions
    return len(shard) if countable else 1


def _items(shard: Any) -> int:
    return len(shard) if isinstance(shard, list | tuple) else 1


def _shard_count(shards: Iterable[Any]) -> Iterator[int]:
    yield sum(1 for _ in shards)


def _row_counts(shards: Iterable[Any]) -> Iterator[list[int | None]]:
    yield [row_count(shard) for shard in shards]


def _no_rows(shard: Any) -> Any:
    return cut(shard, 0, 0)


def _dealt(
    partition: int, shards: Iterable[Any], begins: list[int], firsts: list[int], edges: list[int]
) -> Iterator[tuple[int, Any]]:
    """Yield (where it goes, (its number, rows)) for every part of every shard.

    `begins` is the number of each shard's first row, `firsts` that of each partition's first shard, and `edges` are
    the first rows of the new shards.
    """
    for number, shard in enumerate(shards, firsts[partition]):
        begin, end = begins[number], begins[number + 1]
        place = int(np.searchsorted(edges, begin, side="right")) - 1
        while begin < end:
            stop = min(end, edges[place + 1])
            if stop > begin:
                yield place, (begin, cut(shard, begin - begins[number], stop - begins[number]))
            begin, place = stop, place + 1


def _gathered(pairs: Iterable[tuple[int, Any]], empty: Any) -> Iterator[Any]:
    parts = sorted((pair for _, pair in pairs), key=operator.itemgetter(0))
    yield join([rows for _, rows in parts]) if parts else empty


def _different(series: Any) -> Any:
    return series.drop_duplicates()


def _complete(frame: Any) -> Any:
    return frame.dropna()


def _assembled(frame: Any, features: list[str], labels: list[str]) -> dict[str, Any]:
    cells = [[column_array(frame[name], name) for name in names] for names in (features, labels)]
    x, y = (arrays[0] if len(arrays) == 1 else arrays for arrays in cells)
    return {"x": x, "y": y}


def _stacked(shard: dict[str, Any]) -> dict[str, Any]:
    return {key: _one_array(part) if key in ("x", "y") else part for key, part in shard.items()}


def _one_array(part: Any) -> np.ndarray:
    arrays = [part] if isinstance(part, np.ndarray) else list(part)
    return np.concatenate([array[:, None] if array.ndim == 1 else array for array in arrays], axis=1)
