"""RayXShards: shards in Ray's object store. Owns how they and rows of Spark come there, and go back to Spark.

Data of Spark's executors lies in files of a place that Ray's workers share with them (see sources/export.py)
until it is in the object store. From there Ray frees it when nobody has a reference to it any longer.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orca.core.plan import even_split
from orca.data import folders, parquet, pickles
from orca.data.layout import ShardInfo, infos_of, total
from orca.data.ray_lists import RayLists
from orca.data.refusals import refused
from orca.data.shard import SharedValue, SparkXShards, XShards
from orca.data.verbs import Verbs
from orca.errors import ArgumentError, DataError
from orca.storage import hdfs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RayXShards"]


class RayXShards(Verbs, XShards):
    """Shards in Ray's object store, with the verbs of SparkXShards.

    Most verbs return at once, and Ray computes in the background: an error is raised where the shards are used. Those
    that must know columns or the number of rows wait for these. Arrays come from the object store as they lie there:
    a function that changes them in place copies them first.

    Args:
        partitions: References to lists of shards.
    """

    def __init__(self, partitions: Sequence[Any]) -> None:
        self._partitions = list(partitions)
        self._facts: ShardInfo | None = None

    @property
    def rdd(self) -> RayLists:  # type: ignore[override]
        """Return the partitions, with methods like those of Spark's RDDs."""
        _ray()
        return RayLists(self._partitions)

    def num_partitions(self) -> int:
        """Return how many partitions the shards lie in."""
        return len(self._partitions)

    def to_lazy(self) -> RayXShards:
        """Return the shards: Ray computes in the background in any case."""
        return self

    def _made(self, rdd: Any, class_name: str | None = None, *others: RayXShards) -> RayXShards:
        made = RayXShards(rdd.refs)
        made._class_name = class_name
        return made

    def _known(self) -> ShardInfo | None:
        return self._facts

    def _info(self) -> ShardInfo | None:
        """Return what the shards are, the first time when they are there: they would be computed in any case."""
        if self._facts is None:
            with refused():
                infos = self.rdd.mapPartitions(infos_of).collect()
            self._facts = total(infos) if infos else None
        return self._facts

    @classmethod
    def of(cls, partitions: Iterable[list[Any]]) -> RayXShards:
        """Put lists of shards into Ray."""
        ray = _ray()
        return cls([ray.put(shards) for shards in partitions])

    @staticmethod
    def from_spark_xshards(spark_xshards: SparkXShards) -> RayXShards:
        """Bring shards from Spark to Ray, with their partitions; Ray starts with this call where it is not up.

        Raises:
            ArgumentError: They are no SparkXShards.
        """
        from pyspark.sql import SparkSession

        if not isinstance(spark_xshards, SparkXShards):
            raise ArgumentError(
                f"from_spark_xshards takes SparkXShards; got {type(spark_xshards).__name__}.", code="not-spark-shards"
            )
        rows = spark_xshards.rdd.mapPartitionsWithIndex(_pickled)
        frame = SparkSession.builder.getOrCreate().createDataFrame(rows, "shard binary")
        return RayXShards(_exported(frame, _unpickled))

    @staticmethod
    def from_partition_refs(
        ip2part_id: Mapping[str, Iterable[int]], part_id2ref: Mapping[int, Any], old_rdd: Any = None
    ) -> RayXShards:
        """Make shards of references by the numbers of their partitions.

        Args:
            ip2part_id: The partitions of each node; Ray knows by itself where its objects are.
            part_id2ref: References to lists of shards.
            old_rdd: Accepted for old programs; nothing needs it.
        """
        return RayXShards([part_id2ref[number] for number in sorted(part_id2ref)])

    @staticmethod
    def from_ray_dataset(dataset: Any) -> RayXShards:
        """Return a Ray Dataset as shards that are pandas frames, one a block."""
        ray = _ray()
        return RayXShards([ray.remote(_listed).remote(ref) for ref in dataset.to_pandas_refs()])

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> RayXShards:
        """Apply a function to every shard; see SparkXShards.transform_shard."""
        values = [arg.value if isinstance(arg, SharedValue) else arg for arg in args]  # Ray sends them once a call
        return super().transform_shard(func, *values)

    def collect_partitions(self) -> list[list[Any]]:
        """Return all shards to the driver, as a list for each partition."""
        partitions: list[list[Any]] = _ray().get(self._partitions)
        return partitions

    def get_partition_refs(self) -> list[Any]:
        """Return the references to the partitions, each a list of shards."""
        return list(self._partitions)

    def get_refs(self) -> list[Any]:
        """Return the same as get_partition_refs."""
        return self.get_partition_refs()

    def to_spark_xshards(self) -> SparkXShards:
        """Bring the shards to Spark, with their partitions.

        Their files stay in the place that both share until Spark stops: it may have to read them again.
        """
        from orca.cluster.context import OrcaContext, when_stopped
        from orca.sources.export import Staging

        context, session = OrcaContext.get_spark_context(), OrcaContext.get_spark_session()
        count = max(1, self.num_partitions())
        staging = Staging("orca-shards")
        folder, here = staging.folder(session)
        if folder is None:
            return SparkXShards(context.parallelize(self.collect_partitions(), count).flatMap(_only))
        when_stopped(staging.release)
        save = folders.saving(folder, pickles.files_of)
        if here:
            paths = [next(save(number, _ray().get(ref))) for number, ref in enumerate(self._partitions)]
        else:
            paths = self.rdd.mapPartitionsWithIndex(save).collect()
        return SparkXShards(context.parallelize(paths, count).flatMap(pickles.loading()))

    def to_spark_df(self) -> DataFrame:
        """Return the rows of shards that are pandas frames as a Spark DataFrame; see SparkXShards.to_spark_df."""
        self._frames("to_spark_df")
        return self.to_spark_xshards().to_lazy().to_spark_df()

    # Caching and saving

    def cache(self) -> RayXShards:
        """Return the shards: Ray keeps them as long as somebody has a reference to them."""
        return self

    def uncache(self) -> RayXShards:
        """Return the shards: Ray lets go of them when nobody has a reference to them any longer."""
        return self

    def is_cached(self) -> bool:
        """Return True: the shards are in the object store."""
        return True

    def compute(self) -> RayXShards:
        """Wait for the shards, and raise the errors of their tasks."""
        self.rdd.mapPartitions(_nothing).collect()
        return self

    def save_pickle(self, path: str, batchSize: int = 10) -> RayXShards:
        """Write a pickle of each partition, for `load_pickle`; `save_parquet` is the safe way to share data.

        Args:
            path: A folder of any file system that `orca.data.file` knows, which all workers reach; there must be none.
            batchSize: Accepted for programs that know Spark's; nothing needs it.

        Raises:
            ArgumentError: There is such a folder.
        """
        pickles.save(self.rdd, path)
        return self

    @classmethod
    def load_pickle(cls, path: str, minPartitions: int | None = None) -> RayXShards:
        """Read shards that RayXShards.save_pickle has written, with their partitions.

        Reading a pickle runs the code in it: load only files that you trust.

        Args:
            path: The folder.
            minPartitions: Accepted for programs that know Spark's; `repartition` spreads shards.

        Raises:
            ArgumentError: There is no such folder, it is incomplete, or Spark has written it.
        """
        files = pickles.files_at(path)
        if not files:
            raise ArgumentError(
                f"load_pickle: {path} holds no shards that RayXShards.save_pickle has written. What Spark has saved is "
                "read by Spark: RayXShards.from_spark_xshards(XShards.load_pickle(path)).",
                code="missing-shards",
            )
        lists = cls.of([[file] for file in files]).rdd.mapPartitions(partial(_loaded, load=pickles.loading()))
        return cls(lists.refs)

    @classmethod
    def load_parquet(cls, path: str) -> RayXShards:
        """Read shards that `save_parquet` has written, one a partition; see XShards.load_parquet."""
        return cls(cls.of([[file] for file in parquet.files_at(path)]).rdd.map(parquet.loading()).refs)

    def to_ray_dataset(self) -> Any:
        """Return the rows of shards that are pandas frames as a Ray Dataset, one block a partition."""
        ray = _ray()
        from ray.data import from_arrow_refs

        return from_arrow_refs([ray.remote(_table).remote(partition) for partition in self._partitions])

    # Actors

    def assign_partitions_to_actors(self, actors: Sequence[Any]) -> list[list[int]]:
        """Return the numbers of the partitions for each actor: those on its node first, and evenly.

        Args:
            actors: Ray actors; the node of one is known where it has a method `get_node_ip`.
        """
        shares = [stop - start for start, stop in even_split(len(self._partitions), len(actors))]
        nodes, places = _nodes_of(actors), _places_of(self._partitions)
        numbers_of: list[list[int]] = [[] for _ in actors]
        for near in (True, False):
            rest = sorted(set(range(len(self._partitions))) - set(itertools.chain.from_iterable(numbers_of)))
            for number in rest:
                free = [i for i, mine in enumerate(numbers_of) if len(mine) < shares[i]]
                if near:
                    free = [i for i in free if nodes[i] in places[number]]
                if free:
                    numbers_of[min(free, key=lambda i: len(numbers_of[i]))].append(number)
        return [sorted(mine) for mine in numbers_of]

    def transform_shards_with_actors(
        self, actors: Sequence[Any], func: Callable[[Any, Any], Any], gang_scheduling: bool = True
    ) -> RayXShards:
        """Let actors transform the partitions.

        Args:
            actors: Ray actors.
            func: Called with an actor and the reference to a partition; returns the reference to the new one.
            gang_scheduling: Accepted for old programs; nothing needs it.
        """
        refs: dict[int, Any] = {}
        for actor, numbers in zip(actors, self.assign_partitions_to_actors(actors), strict=True):
            refs |= {number: func(actor, self._partitions[number]) for number in numbers}
        return RayXShards([refs[number] for number in sorted(refs)])

    def zip_shards_with_actors(
        self,
        xshards: RayXShards,
        actors: Sequence[Any],
        func: Callable[[Any, Any, Any], Any],
        gang_scheduling: bool = True,
    ) -> RayXShards:
        """Let actors make new partitions of pairs of partitions.

        Args:
            xshards: The others, with as many partitions.
            actors: Ray actors.
            func: Called with an actor and the references to two partitions; returns the reference to the new one.
            gang_scheduling: Accepted for old programs; nothing needs it.

        Raises:
            ArgumentError: The numbers of partitions differ.
        """
        if xshards.num_partitions() != self.num_partitions():
            raise ArgumentError(
                "The two RayXShards should have the same number of partitions; got "
                f"{self.num_partitions()} and {xshards.num_partitions()}.",
                code="partitions-differ",
            )
        others = dict(zip(self._partitions, xshards._partitions, strict=True))
        return self.transform_shards_with_actors(actors, lambda actor, ref: func(actor, ref, others[ref]))

    def reduce_partitions_for_actors(
        self, actors: Sequence[Any], reduce_partitions_func: Callable[[Any, list[Any]], Any], return_refs: bool = False
    ) -> list[Any]:
        """Give each actor its partitions.

        Args:
            actors: Ray actors, no more than there are partitions.
            reduce_partitions_func: Called with an actor and the references to its partitions; returns a reference.
            return_refs: Whether to return references instead of the results.

        Returns:
            A result for each actor.

        Raises:
            ArgumentError: There are fewer partitions than actors.
        """
        refs = [reduce_partitions_func(*each) for each in zip(actors, self._shares(actors), strict=True)]
        return refs if return_refs else _ray().get(refs)

    def zip_reduce_shards_with_actors(
        self,
        xshards: RayXShards,
        actors: Sequence[Any],
        reduce_partitions_func: Callable[[Any, list[Any], list[Any]], Any],
        return_refs: bool = False,
    ) -> list[Any]:
        """Give each actor its partitions of two XShards.

        Args:
            xshards: The others; they need not have the same partitions.
            actors: Ray actors, no more than there are partitions of each.
            reduce_partitions_func: Called with an actor and the references to its partitions of both; returns a
                reference.
            return_refs: Whether to return references instead of the results.

        Raises:
            ArgumentError: There are fewer partitions than actors.
        """
        mine, theirs = ([*shards._shares(actors)] for shards in (self, xshards))
        refs = [reduce_partitions_func(*each) for each in zip(actors, mine, theirs, strict=True)]
        return refs if return_refs else _ray().get(refs)

    def _shares(self, actors: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the references to each actor's partitions."""
        if len(self._partitions) < len(actors):
            raise ArgumentError(
                f"there must be a partition for each actor; got {len(self._partitions)} partition(s) for {len(actors)} "
                "actors. Call repartition before, or use fewer actors.",
                code="partitions-and-actors-differ",
            )
        for numbers in self.assign_partitions_to_actors(actors):
            yield [self._partitions[number] for number in numbers]


def dataset_of(df: DataFrame) -> Any:
    """Return a Spark DataFrame as a Ray Dataset."""
    from pyspark.sql.pandas.types import to_arrow_schema

    ray = _ray()
    from ray.data import from_arrow_refs

    refs = _exported(df, _tabled)
    return from_arrow_refs(refs or [ray.put(to_arrow_schema(df.schema).empty_table())])


def _ray() -> Any:
    """Return Ray, which starts where it is not up."""
    from orca.cluster.context import OrcaContext

    OrcaContext.get_ray_context()
    import ray

    return ray


def _exported(frame: DataFrame, reader: Callable[[Iterable[pa.RecordBatch]], Any]) -> list[Any]:
    """Read each partition of a DataFrame, put the results into Ray, and return the references."""
    from orca.sources.export import Export

    ray = _ray()
    export = Export(lambda parts: frame, 1)
    try:
        files = export()
        # Files of the driver's machine are read there: Ray's workers may be elsewhere.
        near = all(getattr(file, "here", False) for file in files)
        work, environment = ray.remote(_read), tuple(hdfs.environment().items())
        refs = [ray.put(reader(file())) if near else work.remote(file, reader, environment) for file in files]
        if refs:
            ray.wait(refs, num_returns=len(refs), fetch_local=False)
        return refs
    finally:
        export.release()


def _nodes_of(actors: Sequence[Any]) -> list[Any]:
    refs = [actor.get_node_ip.remote() if hasattr(actor, "get_node_ip") else None for actor in actors]
    return [None if ref is None else _ray().get(ref) for ref in refs]


def _places_of(refs: list[Any]) -> list[set[str]]:
    """Return the addresses of the nodes that hold each object."""
    import ray
    from ray.experimental import get_object_locations

    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    ray.wait(refs, num_returns=len(refs), fetch_local=False)
    locations = get_object_locations(refs)
    return [
        {addresses[node] for node in locations.get(ref, {}).get("node_ids", ()) if node in addresses} for ref in refs
    ]


# On workers


def _pickled(partition: int, shards: Iterable[Any]) -> Iterator[tuple[bytearray | None]]:
    """Yield each shard as a pickle, and one row without any where there is no shard: it, too, is a partition."""
    empty = True
    for shard in shards:
        empty = False
        yield (bytearray(pickle.dumps(shard, pickle.HIGHEST_PROTOCOL)),)
    if empty:
        yield (None,)


def _unpickled(batches: Iterable[pa.RecordBatch]) -> list[Any]:
    return [pickle.loads(cell.as_buffer()) for batch in batches for cell in batch.column(0) if cell.is_valid]


def _tabled(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))


def _read(file: Callable[[], Any], reader: Callable[[Any], Any], environment: Any) -> Any:
    hdfs.adopt(dict(environment))
    return reader(file())


def _loaded(paths: Iterable[str], load: Callable[[str], list[Any]]) -> Iterator[Any]:
    return itertools.chain.from_iterable(map(load, paths))


def _nothing(shards: Iterable[Any]) -> list[Any]:
    return []


def _only(shards: list[Any]) -> list[Any]:
    return shards


def _listed(shard: Any) -> list[Any]:
    return [shard]


def _table(shards: list[Any]) -> pa.Table:
    if not all(hasattr(shard, "iloc") for shard in shards):
        raise DataError(
            "to_ray_dataset needs shards that are pandas DataFrames. Make them with transform_shard.",
            code="not-dataframes",
        )
    return pa.concat_tables([pa.Table.from_pandas(shard, preserve_index=False) for shard in shards])
