"""XShards: one Python object a shard, spread over a cluster. Owns making them, and when those on Spark are computed.

RayXShards, their twin on Ray, are in ray_shards.py. The verbs of both are in verbs.py, conversions in exchange.py and
spark_frames.py.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.plan import even_split
from orca.core.units import positive
from orca.data import pickles, shard_cache
from orca.data.refusals import refused
from orca.data.slices import FRAME, SERIES, class_name_of, cut
from orca.data.verbs import SharedValue, Verbs
from orca.errors import ArgumentError, DataError
from orca.rows.tree import rows_of

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

    from orca.data.layout import ShardInfo
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
            num_shards: How many shards; the cluster's cores unless given, or the rows if they are fewer. Data without
                rows makes shards without rows.

        Returns:
            Shards on Spark, or on Ray where init_orca_context(runtime="ray") has started that alone.

        Raises:
            DataError: There are no arrays, their lengths differ, or there are fewer rows than `num_shards`.

        Example::

            shards = XShards.partition({"x": np.zeros((10, 2)), "y": np.zeros(10)})
        """
        from orca.cluster.context import OrcaContext

        is_frame = class_name_of(data) in (FRAME, SERIES)
        if not is_frame and not isinstance(data, np.ndarray | dict | list | tuple):
            raise DataError(
                "XShards.partition takes numpy arrays and dicts, lists and tuples of them, or a pandas DataFrame; got "
                f"{type(data).__name__}.",
                code="shards-not-partitionable",
            )
        if num_shards is not None:
            num_shards = positive("num_shards", num_shards)
        on_ray, cluster = _is_on_ray(), OrcaContext.cluster()
        context: Any = None if on_ray else OrcaContext.get_spark_context()
        cores = cluster.num_nodes * (cluster.cores or 1) if cluster and on_ray else context.defaultParallelism
        rows = len(data) if is_frame else rows_of(data)
        shards = num_shards or max(1, min(cores, rows))
        if 0 < rows < shards:
            raise DataError(
                f"the number of shards must not be larger than the number of rows; got {shards} shards for {rows} "
                "row(s). Pass a smaller num_shards.",
                code="too-many-shards",
            )
        tree = (data,) if isinstance(data, list) else data  # whose items are no rows here
        parts = [cut(tree, start, stop) for start, stop in even_split(rows, shards)]
        parts = [part[0] for part in parts] if isinstance(data, list) else parts
        if on_ray:
            return _ray_shards().of([[part] for part in parts])
        return SparkXShards(context.parallelize(parts, shards), class_name=class_name_of(data))

    @classmethod
    def load_pickle(cls, path: str, minPartitions: int | None = None) -> SparkXShards | RayXShards:
        """Read shards that `save_pickle` has written; on Ray alone, those of RayXShards.

        Reading a pickle runs the code in it: load only files that you trust. `load_parquet` reads data alone.

        Args:
            path: A folder that Spark reads; on Ray one of any file system that `orca.data.file` knows.
            minPartitions: The least number of partitions.

        Raises:
            ArgumentError: There is no such folder.
        """
        from orca.cluster.context import OrcaContext

        if _is_on_ray():
            return _ray_shards().load_pickle(path)
        context = OrcaContext.get_spark_context()
        if not _is_there(context, path):
            raise ArgumentError(f"load_pickle: Path does not exist: {path}.", code="missing-shards")
        if not _is_there(context, pickles.path_at(path, 0)):
            return SparkXShards(context.pickleFile(path, minPartitions))
        files = pickles.files_at(path)  # of RayXShards
        return SparkXShards(context.parallelize(files, max(len(files), minPartitions or 1)).flatMap(pickles.loading()))

    @classmethod
    def load_parquet(cls, path: str) -> SparkXShards | RayXShards:
        """Read shards that `save_parquet` has written: the same shards, in the same order.

        Args:
            path: A folder of any file system that `orca.data.file` knows, which all executors reach.

        Raises:
            ArgumentError: There is no such folder, or it is incomplete.
        """
        from orca.cluster.context import OrcaContext
        from orca.data import parquet

        if _is_on_ray():
            return _ray_shards().load_parquet(path)
        files = parquet.files_at(path)
        return SparkXShards(OrcaContext.get_spark_context().parallelize(files, len(files)).map(parquet.loading()))


class SparkXShards(Verbs, XShards):
    """Shards in a Spark RDD.

    They are computed at once, unless they are lazy: those of `lazy` and `to_lazy`, all that is made from them, and all
    where `OrcaContext._eager_mode` is false. Computed shards stay, in files or with Spark, as long as the program
    refers to them, or to lazy XShards that are made of them: all that is made of them sees the same rows, also where a
    function drew random numbers. Lazy shards are computed each time they are used, and such a function draws anew:
    `cache` them before more than one thing is made of them. On a cluster Spark computes the shards of a lost executor
    again.

    Verbs of pandas need shards that are pandas frames. They do as pandas does with all rows in one frame, which is what
    pandas.concat makes of the shards: a column that a shard lacks is null there, missing values are equal keys, and a
    row that is there twice counts twice. The index of a frame travels with its rows. Only the order of rows differs
    where a verb says so. Lazy shards must have the same columns; a column may have another type in those that lack some
    of its values.

    Args:
        rdd: One element a shard.
        transient: Whether the shards are lazy.
        class_name: The name of the shards' class where it is known.
        inputs: The computed shards that lazy ones are made of: they stay as long as these.
    """

    def __init__(
        self,
        rdd: RDD[Any],
        transient: bool = False,
        class_name: str | None = None,
        inputs: tuple[shard_cache.ShardCache, ...] = (),
    ) -> None:
        from orca.cluster.context import OrcaContext

        self.rdd = rdd
        self.eager = OrcaContext._eager_mode and not transient
        self._class_name = class_name
        self._inputs = () if self.eager else inputs
        self._holder: shard_cache.ShardCache | None = shard_cache.keep(rdd) if rdd.is_cached else None
        if self.eager:
            self._keep()
            try:
                self.compute()
            except BaseException:
                self._let_go()
                raise

    @classmethod
    def lazy(cls, rdd: RDD[Any], class_name: str | None = None) -> SparkXShards:
        """Make shards that are computed when they are used."""
        return cls(rdd, transient=True, class_name=class_name)

    def to_lazy(self) -> SparkXShards:
        """Return the same shards; results of their verbs are computed when they are used."""
        twin = SparkXShards(self.rdd, transient=True, class_name=self._class_name, inputs=self._inputs)
        twin._holder = self._holder
        return twin

    def collect(self) -> list[Any]:
        """Return all shards to the driver."""
        holder = self._held()
        with refused():
            return holder.take() if holder else self.rdd.collect()

    def first(self) -> Any:
        """Return the first shard."""
        shards = self.take(1)
        if not shards:
            raise DataError("there are no shards: the RDD of this XShards is empty.", code="no-shards")
        return shards[0]

    def take(self, n: int) -> list[Any]:
        """Return the first shards."""
        holder = self._held()
        with refused():
            return holder.take(n) if holder else self.rdd.take(n)

    def cache(self) -> SparkXShards:
        """Keep lazy shards once they are computed: in files where Spark runs on this machine alone, else by Spark."""
        self._keep()
        return self

    def uncache(self) -> SparkXShards:
        """Release the shards now, not only when nothing refers to them: they are computed again if they are used."""
        self._let_go()
        return self

    def is_cached(self) -> bool:
        """Say whether the shards are cached."""
        return self._held() is not None

    def compute(self) -> SparkXShards:
        """Compute lazy shards now."""
        holder = self._held()
        with refused():
            if holder:
                holder.compute()
            else:
                shard_cache.compute(self.rdd)
        return self

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
                f"save_pickle: there is something at {path} already. Remove it, or name another folder.",
                code="folder-not-empty",
            )
        self.rdd.saveAsPickleFile(path, batchSize)
        return self

    def to_spark_df(self) -> DataFrame:
        """Return the rows as a Spark DataFrame; they travel as Arrow, and the index of frames is left out.

        NaN becomes null. Columns have one type in all shards, the widest of theirs.

        Raises:
            DataError: Spark has no type for a column, or lazy shards have different columns.
        """
        from orca.data import exchange

        rdd, _ = self._rows("to_spark_df")
        for holder in self._sources():
            holder.hold_for_jvm()
        with refused():
            return exchange.to_spark_df(rdd)

    def _known(self) -> ShardInfo | None:
        holder = self._held()
        return holder.known() if holder else None

    def _info(self) -> ShardInfo | None:
        holder = self._held()
        return holder.info() if holder else None

    def _is_small(self) -> bool:
        from orca.data import frames

        holder = self._held()
        return holder is not None and holder.size() <= frames.BROADCAST

    def _held(self) -> shard_cache.ShardCache | None:
        """Return the holder of the shards, unless it has let go of them; another thread may do so at any time."""
        holder = self._holder
        return holder if holder is not None and holder.is_held() else None

    def _sources(self) -> tuple[shard_cache.ShardCache, ...]:
        """Return the computed shards that these are read from, or made of."""
        holder = self._held()
        return (*self._inputs, holder) if holder else self._inputs

    def _made(self, rdd: RDD[Any], class_name: str | None = None, *others: SparkXShards) -> SparkXShards:
        inputs = itertools.chain.from_iterable(shards._sources() for shards in (self, *others))
        return SparkXShards(rdd, transient=not self.eager, class_name=class_name, inputs=tuple(inputs))

    def _keep(self) -> None:
        if not self.is_cached():
            self._holder = shard_cache.keep(self.rdd)
            self.rdd = self._holder.rdd

    def _let_go(self) -> None:
        holder = self._held()
        if holder:
            holder.drop()
        self._holder = None


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


def _is_on_ray() -> bool:
    """Say whether the program runs on Ray alone."""
    from orca.cluster.context import OrcaContext

    cluster = OrcaContext.cluster()
    return cluster is not None and cluster.runtime == "ray"


def _ray_shards() -> type[RayXShards]:
    from orca.data.ray_shards import RayXShards

    return RayXShards


def _is_there(context: Any, path: str) -> bool:
    """Say whether Spark sees something at a path."""
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return bool(place.getFileSystem(context._jsc.hadoopConfiguration()).exists(place))
