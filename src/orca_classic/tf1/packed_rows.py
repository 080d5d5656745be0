"""TfRowsSource: an unbatched tf.data.Dataset, whose rows the ranks read themselves. Owns how a pipeline travels.

A pipeline travels as TensorFlow writes it down. Each rank runs it and keeps every n-th element, once a fit: its
random draws are the same in every epoch, and the order of an epoch is the fit's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from orca.core.columns import concatenate
from orca.core.feed import spool_parts
from orca.core.source import DEFAULT_BATCH, DataSpec, Extent, Items, Shards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import flatten, map_tree, unflatten

_BLOCK = 512  # rows that are read at a time


@dataclass(frozen=True)
class PackedDataset:
    """A tf.data.Dataset of single rows as bytes, and the kind of its elements.

    Attributes:
        graph: The pipeline.
        element: The structure of an element, as tf.data tells it.
    """

    graph: bytes = field(repr=False)
    element: Any

    @classmethod
    def of(cls, dataset: Any) -> PackedDataset:
        """Write a pipeline down.

        Raises:
            ArgumentError: It calls functions of Python, or has no end.
        """
        tensor = _in_its_mode(dataset, lambda: dataset._as_serialized_graph())
        graph = tf.compat.v1.GraphDef.FromString(tensor)
        functions = [node for function in graph.library.function for node in function.node_def]
        python = [node.name for node in (*graph.node, *functions) if node.op in ("PyFunc", "EagerPyFunc")]
        if python:
            raise ArgumentError(
                f"the tf.data.Dataset calls a function of Python ({python[0]!r}: py_function, or from_generator), "
                "which cannot be sent to the workers. Use operations of TensorFlow in map, or pass arrays."
            )
        if _in_its_mode(dataset, lambda: tf.data.experimental.cardinality(dataset)) == tf.data.INFINITE_CARDINALITY:
            raise DataError("the data has no end (it repeats itself). Leave out repeat(): epochs= says how often.")
        return cls(tensor, dataset.element_spec)

    def rows(self, number: int, of: int, size: int = _BLOCK) -> Iterator[Any]:
        """Yield every n-th element from a number on, in blocks, as a tree of arrays."""
        with tf.Graph().as_default():
            text = tf.compat.v1.placeholder(tf.string, [])  # a constant would be folded with its users
            variant = tf.raw_ops.DatasetFromGraph(graph_def=text)
            dataset = tf.data.experimental.from_variant(variant, self.element).shard(of, number).batch(size)
            iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            leaves, structure = flatten(iterator.get_next())
            with tf.compat.v1.Session() as session:
                session.run(iterator.initializer, {text: self.graph})
                while True:
                    try:
                        block = session.run(leaves)
                    except tf.errors.OutOfRangeError:
                        return
                    yield unflatten(structure, block)


class TfRowsSource:
    """A PackedDataset of x, or of (x, y)."""

    def __init__(self, data: PackedDataset, spec: DataSpec) -> None:
        self.dataset = data
        self.batch_size = spec.batch_size or DEFAULT_BATCH
        if spec.labelled and not (isinstance(data.element, tuple) and len(data.element) == 2):
            raise DataError(
                f"a tf.data.Dataset must give (features, labels) to train or evaluate on; it gives {data.element}. "
                "Let map return a pair."
            )

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a PackedDataset."""
        return isinstance(data, PackedDataset)

    def extent(self) -> Extent:
        """Return nothing: to count the elements is to read them."""
        return Extent()

    def shards(self, ranks: int, valid: TfRowsSource | None = None) -> Shards:
        """Let each rank read its part of the pipeline."""
        parts = {"train": self.dataset} | ({"valid": valid.dataset} if valid else {})
        pieces = [DatasetPiece(name, dataset, n, ranks) for name, dataset in parts.items() for n in range(ranks)]
        return Shards(partial(spool_parts, parts=tuple(parts)), lambda: list(pieces))

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the dataset."""
        parts = engine.map(AnsweredPiece(task, self.dataset, engine.workers), list(range(engine.workers)))
        parts = [part for part in parts if part is not None]
        if not parts:
            raise DataError("there are no rows to predict: the dataset is empty.")
        heads = zip(*(flatten(part)[0] for part in parts), strict=True)
        return unflatten(flatten(parts[0])[1], [_interleaved(head) for head in heads])


@dataclass(frozen=True)
class DatasetPiece:
    """A part of a pipeline on its way to a rank."""

    part: str
    dataset: PackedDataset
    number: int
    of: int

    def __call__(self) -> Items:
        """Yield its rows in blocks."""
        for element in self.dataset.rows(self.number, self.of):
            x, y = parts_of_rows(element)
            yield self.part, x, y


@dataclass(frozen=True)
class AnsweredPiece:
    """A task applied to a part of a pipeline."""

    task: Callable[[Any], Any]
    dataset: PackedDataset
    of: int

    def __call__(self, number: int) -> Any:
        """Return the outputs of every n-th element; None where there is none."""
        takes = getattr(self.task, "takes", None)
        blocks = []
        for element in self.dataset.rows(number, self.of):
            x, _ = parts_of_rows(element)
            whole = takes is not None and isinstance(element, tuple) and not takes(x) and takes(element)
            blocks.append(self.task(element if whole else x))
        return concatenate(blocks) if blocks else None


def parts_of_rows(element: Any) -> tuple[Any, Any]:
    """Return (x, y) of a block; y is None where there are no labels."""
    return element if type(element) is tuple and len(element) == 2 else (element, None)


def _in_its_mode(dataset: Any, make: Callable[[], Any]) -> Any:
    """Return the value of a tensor made from a dataset: eagerly, or in a session of the graph it is part of."""
    variant = dataset._variant_tensor
    if hasattr(variant, "numpy"):
        with tf.__internal__.eager_context.eager_mode():  # also where a graph is being built
            return map_tree(lambda tensor: tensor.numpy(), make())
    with variant.graph.as_default():
        tensor = make()
        with tf.compat.v1.Session(graph=variant.graph) as session:
            return session.run(tensor)


def _interleaved(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return rows that were dealt out one by one, in their order."""
    rows = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for number, part in enumerate(parts):
        rows[number :: len(parts)] = part
    return rows
