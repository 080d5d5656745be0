"""Dataset: XShards with the verbs of tf.data. Owns how a shard becomes a tf.data.Dataset, and its rows for fit.

Workers run the functions of `map`, each on its own shards, when the data is used. An Estimator takes a Dataset where it
takes XShards. A fit reads it once: random draws of a function are the same in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orca.core.columns import column_array
from orca.data.shard import SparkXShards, spark_df_to_pd_sparkxshards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import map_tree, rows_of
from orca.sources.shards import ShardsSource
from orca_classic.data.tf.loading import tensorflow
from orca_classic.shard_frames import predicted_rows

if TYPE_CHECKING:
    from pyspark import RDD

_BATCH = 256


class Dataset:
    """A tf.data.Dataset for each shard, made on its worker.

    Args:
        xshards: The shards: dicts, lists or tuples of arrays, or pandas DataFrames.
        functions: Those of `map`.

    Example:
        ::

            data = Dataset.from_tensor_slices(shards).map(lambda row: (row["x"] / 255, row["y"]))
            Estimator.from_keras(model_creator=make_model).fit(data, epochs=2, batch_size=64)
    """

    def __init__(self, xshards: SparkXShards, functions: tuple[Callable[..., Any], ...] = ()) -> None:
        self.xshards, self.functions = xshards, functions

    @staticmethod
    def from_tensor_slices(xshards: SparkXShards) -> Dataset:
        """Make a dataset whose elements are the rows of XShards, as tf.data.Dataset.from_tensor_slices does of arrays.

        Raises:
            ArgumentError: They are no XShards.
        """
        if not isinstance(xshards, SparkXShards):
            raise ArgumentError(f"from_tensor_slices takes XShards; got {type(xshards).__name__}.")
        return Dataset(xshards)

    @staticmethod
    def from_feature_table(tbl: Any) -> Dataset:
        """Make a dataset whose elements are the rows of a table, as dicts by column.

        Args:
            tbl: A Spark DataFrame, or an object that holds one as `df`, as the feature tables of the older systems do.

        Raises:
            ArgumentError: It is no such table.
        """
        frame = getattr(tbl, "df", tbl)
        if not hasattr(frame, "mapInArrow") or not hasattr(frame, "schema"):
            raise ArgumentError(
                "from_feature_table takes a Spark DataFrame, or a table that holds one as `df`; got "
                f"{type(tbl).__name__}. For XShards: Dataset.from_tensor_slices(xshards)."
            )
        return Dataset(spark_df_to_pd_sparkxshards(frame))

    def map(self, map_func: Callable[..., Any]) -> Dataset:
        """Apply a function to every row, inside of TensorFlow.

        Args:
            map_func: As tf.data.Dataset.map takes it. The last one returns x, (x, y) or (x, y, weights), or a
                dict with these keys.
        """
        return Dataset(self.xshards, (*self.functions, map_func))

    def get_xshards(self) -> SparkXShards:
        """Return XShards of the functions' results, dicts of "x", "y" and "weights"; they are lazy."""
        return SparkXShards(self.rdd, transient=True)

    @property
    def rdd(self) -> RDD[Any]:
        """Return the shards of get_xshards as an RDD."""
        return self.xshards.rdd.map(ShardMapping(self.functions))

    def transform_shard(self, func: Callable[..., Any], *args: Any) -> SparkXShards:
        """Apply a function to every shard of get_xshards; returns new shards."""
        return self.get_xshards().transform_shard(func, *args)


class DatasetSource(ShardsSource):
    """A Dataset, which is trained on as its shards, and predicted row by row."""

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a Dataset."""
        return isinstance(data, Dataset)

    def answer(self, task: Callable[[Any], Any], engine: Any) -> RDD[Any]:
        """Return an RDD with the prediction of each row."""
        shards = super().answer(task, engine).rdd
        return shards.flatMap(predicted_rows)


@dataclass(frozen=True)
class ShardMapping:
    """A shard after the functions of a Dataset."""

    functions: tuple[Callable[..., Any], ...]

    def __call__(self, shard: Any) -> dict[str, Any]:
        """Return its arrays as "x", "y" and "weights".

        Raises:
            DataError: The shard holds no arrays, or rows become something else than one to three things.
        """
        tf = tensorflow()
        is_frame = hasattr(shard, "iloc")
        arrays = {name: column_array(shard[name], name) for name in shard} if is_frame else map_tree(np.asarray, shard)
        rows = rows_of(arrays, "a shard")
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        for function in self.functions:
            dataset = dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        spec = dataset.element_spec
        batches = [tf.nest.flatten(batch) for batch in dataset.batch(max(1, min(rows, _BATCH))).as_numpy_iterator()]
        if not batches:
            leaves = [np.empty((0, *leaf.shape), leaf.dtype.as_numpy_dtype) for leaf in tf.nest.flatten(spec)]
        else:
            leaves = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
        return _named(tf.nest.pack_sequence_as(spec, leaves))


def _named(element: Any) -> dict[str, Any]:
    if isinstance(element, dict) and "x" in element:
        return element
    if type(element) is not tuple:
        return {"x": element}
    if len(element) > 3:
        raise DataError(
            f"a row must become x, (x, y) or (x, y, weights); got {len(element)} things. Put several inputs into a "
            "tuple of their own: ((x1, x2), y)."
        )
    return dict(zip(("x", "y", "weights"), element, strict=False))
