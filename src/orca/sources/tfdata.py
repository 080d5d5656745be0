"""TensorFlow data: a batched tf.data.Dataset as a stream. Owns cutting its batches for the ranks, every row once.

Every rank reads all batches, in the same order, and takes its rows of each: TensorFlow cuts them, inside the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from orca.core.columns import concatenate
from orca.core.items import travels_as
from orca.core.plan import even_split
from orca.core.source import Batch, DataSpec, Extent, Shards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import map_tree

# A rank without rows gets another's as a template.
travels_as(
    tf.RaggedTensor,
    lambda tensor: (tensor.flat_values.numpy(), [splits.numpy() for splits in tensor.nested_row_splits]),
    lambda parts: tf.RaggedTensor.from_nested_row_splits(*parts),
)
travels_as(
    tf.SparseTensor,
    lambda tensor: [part.numpy() for part in (tensor.indices, tensor.values, tensor.dense_shape)],
    lambda parts: tf.SparseTensor(*parts),
)


class TfDatasetSource:
    """A tf.data.Dataset instance: good for predict; training needs a creator, as a pipeline cannot travel."""

    batch_size: int | None = None

    def __init__(self, data: Any, spec: DataSpec) -> None:
        self.dataset, self.steps = data, spec.steps

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a tf.data.Dataset."""
        return isinstance(data, tf.data.Dataset)

    def extent(self) -> Extent:
        """Return nothing: a pipeline knows its batches at best."""
        return Extent()

    def shards(self, ranks: int, valid: Any = None) -> Shards:
        """Refuse: a pipeline may hold Python functions, tables and random numbers that do not travel."""
        raise ArgumentError(
            "a tf.data.Dataset cannot be sent to the workers: it belongs to the process that made it. Pass a creator "
            "that makes it on each worker; it is split for you. Example:\n"
            "    est.fit(lambda config, batch_size: tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size))",
            code="dataset-not-sendable",
        )

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the dataset."""
        batches = [_arrays(parts_of(element)[0]) for element in _first(self.dataset, self.steps)]
        if not batches:
            raise DataError("there are no rows to predict: the dataset is empty.", code="no-rows")
        return concatenate(engine.map(task, batches))


class DatasetStream:
    """The batches of a dataset, cut for the ranks; each pass is a new iterator, which shuffles as the pipeline says.

    Args:
        dataset: A batched dataset of x, (x, y) or (x, y, weights).

    Raises:
        DataError: Its elements are of another form, or not batched.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = _steady(checked(dataset))
        length = int(dataset.cardinality())
        self.endless = length == tf.data.INFINITE_CARDINALITY
        self.steps = length if length >= 0 else None

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Yield this rank's part of every step of one more pass over the data."""
        cut = tf.autograph.experimental.do_not_convert(_Cut(rank, ranks))  # which takes longer than tracing it
        for row_counts, element in self.dataset.map(cut).prefetch(tf.data.AUTOTUNE):
            counts = row_counts.numpy()
            if (counts != counts[0]).any():
                raise DataError(
                    f"all tensors of a batch must have the same number of rows; got {counts.tolist()}. "
                    "Check what the dataset gives as features and labels.",
                    code="row-counts-differ",
                )
            rows = int(counts[0])
            if rows:
                start, stop = even_split(rows, ranks)[rank]
                x, y, weights = parts_of(element)
                yield Batch(x, y, stop - start, rows, 0, weights)  # the first rank has rows whenever any has

    def skip(self, passes: int) -> None:
        """Leave out so many passes: the pipeline shuffles for the next one as if they had been read."""
        whole = _starts_late(self.dataset)
        for _ in range(passes):
            rows = iter(self.dataset)
            if whole:
                for _ in rows:
                    pass

    def close(self) -> None:
        """Do nothing: no file is open."""


class _Cut:
    """A rank's rows of an element, as even_split cuts them; a rank without rows gets the first row as template."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def __call__(self, *parts: Any) -> tuple[Any, Any]:
        """Return (rows of each tensor, this rank's rows of x, y and weights): traced by TensorFlow."""
        counts = tf.stack([_rows(leaf) for leaf in tf.nest.flatten(parts) if leaf is not None])
        rows, rank = counts[0], self.rank
        start = rank * (rows // self.ranks) + tf.minimum(tf.cast(rank, rows.dtype), rows % self.ranks)
        stop = start + rows // self.ranks + tf.cast(rank < rows % self.ranks, rows.dtype)
        first = tf.where(start < stop, start, 0)
        last = tf.where(start < stop, stop, 1)
        return counts, tf.nest.map_structure(lambda leaf: None if leaf is None else _slice(leaf, first, last), parts)


def checked(dataset: Any) -> Any:
    """Return a dataset whose elements are batches of x, (x, y) or (x, y, weights)."""
    element = dataset.element_spec
    if type(element) is tuple and len(element) > 3:
        raise DataError(
            f"a dataset must give x, (x, y) or (x, y, weights); got {len(element)} things. "
            "Put several inputs into a tuple of their own: ((x1, x2), y).",
            code="bad-dataset-item",
        )
    for spec in tf.nest.flatten(element):
        shape = getattr(spec, "shape", None)
        if shape is None and type(spec).__name__ != "NoneTensorSpec":
            raise DataError(f"a dataset must give tensors; got {spec}.", code="bad-dataset-item")
        if shape is not None and shape.rank == 0:
            raise DataError(
                f"the dataset must give batches, with rows in their first dimension; got {element}. "
                "Batch it, e.g. with dataset.batch(batch_size).",
                code="dataset-not-batched",
            )
    return dataset


def parts_of(element: Any) -> tuple[Any, Any, Any]:
    """Return (x, y, weights) of an element, None for a missing part."""
    if type(element) is not tuple:  # a named tuple is one thing to tf.data
        return element, None, None
    return (*element, None, None)[:3]


def dataset_answers(
    task: Callable[[Any], Any], dataset: Any, steps: int | None, number: int, tasks: int
) -> Iterator[tuple[int, Any]]:
    """Yield (place, outputs) of every n-th of the first batches, for one of several tasks that share a dataset."""
    for place, element in enumerate(_first(dataset, steps).shard(tasks, number).prefetch(tf.data.AUTOTUNE)):
        yield place * tasks + number, task(_arrays(parts_of(element)[0]))


def _first(dataset: Any, steps: int | None) -> Any:
    """Return the first batches of a dataset, all of them where steps is None."""
    if steps is None and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            "the data has no end (it repeats itself). Pass steps=, or leave out repeat().", code="endless-data"
        )
    steady = _steady(checked(dataset))
    return steady if steps is None else steady.take(steps)


def _steady(dataset: Any) -> Any:
    """Return the dataset with one order of its elements, however many threads make them."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def _starts_late(dataset: Any) -> bool:
    """Say whether a pipeline begins some of its parts, which draw then, only while a pass is read."""
    late = any(word in type(dataset).__name__ for word in ("Repeat", "Concatenate", "FlatMap", "Interleave"))
    return late or any(map(_starts_late, dataset._inputs()))


def _arrays(tree: Any) -> Any:
    """Return tensors as arrays, sparse ones too; ragged ones stay as they are."""

    def array(leaf: Any) -> Any:
        leaf = tf.sparse.to_dense(leaf) if isinstance(leaf, tf.SparseTensor) else leaf
        return leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf

    return map_tree(array, tree)


def _rows(leaf: Any) -> Any:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows(tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, tf.int64)[0]


def _slice(leaf: Any, first: Any, last: Any) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[first:last]
    rest = leaf.dense_shape[1:]
    return tf.sparse.slice(leaf, tf.concat([[first], tf.zeros_like(rest)], 0), tf.concat([[last - first], rest], 0))
