"""TfRowsSource: an unbatched tf.data.Dataset, whose rows the ranks read themselves. Owns how a pipeline travels.

A pipeline travels as TensorFlow writes it down. Each rank runs it and keeps every n-th element, once a fit: its
random draws are the same in every epoch, and the order of an epoch is the fit's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from orca.core.columns import concatenate
from orca.core.feed import spool_parts
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, Batch, DataSpec, Extent, Items, Shards
from orca.errors import ArgumentError, DataError
from orca.rows.tree import cut_rows, flatten, map_tree, unflatten
from orca_classic.tf1.graph.nodes import constant, op_of

_BLOCK = 512  # rows that are read at a time


@dataclass(frozen=True)
class PackedDataset:
    """A tf.data.Dataset of single rows as bytes, and the kind of its elements.

    Attributes:
        graph: The pipeline.
        element: The structure of an element, as tf.data tells it.
        is_endless: Whether it repeats itself without end.
    """

    graph: bytes = field(repr=False)
    element: Any
    is_endless: bool = False

    @classmethod
    def of(cls, dataset: Any) -> PackedDataset:
        """Write a pipeline down.

        Raises:
            ArgumentError: It calls functions of Python.
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
        return cls(_with_fixed_order(graph).SerializeToString(), dataset.element_spec, is_endless(dataset))

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
        """Let each rank read its part of the pipeline; one without end is not kept, but read step by step.

        Raises:
            DataError: The validation data has no end.
        """
        if valid is not None and valid.dataset.is_endless:
            raise DataError("the validation data has no end (it repeats itself). Leave out repeat().")
        if self.dataset.is_endless:
            parts = {} if valid is None else {"valid": valid.dataset}
            pieces = [DatasetPiece(name, dataset, n, ranks) for name, dataset in parts.items() for n in range(ranks)]
            return Shards(partial(_stream_beside, self.dataset, self.batch_size, tuple(parts)), lambda: list(pieces))
        parts = {"train": self.dataset} | ({"valid": valid.dataset} if valid else {})
        pieces = [DatasetPiece(name, dataset, n, ranks) for name, dataset in parts.items() for n in range(ranks)]
        return Shards(partial(spool_parts, parts=tuple(parts)), lambda: list(pieces))

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the dataset."""
        if self.dataset.is_endless:
            raise DataError("the data has no end (it repeats itself). Leave out repeat() to predict its rows.")
        parts = engine.map(AnsweredPiece(task, self.dataset, engine.workers), list(range(engine.workers)))
        parts = [part for part in parts if part is not None]
        if not parts:
            raise DataError("there are no rows to predict: the dataset is empty.")
        heads = zip(*(flatten(part)[0] for part in parts), strict=True)
        return unflatten(flatten(parts[0])[1], [_interleaved(head) for head in heads])


class EndlessRows:
    """A pipeline without end as a stream: every rank reads all of it, and takes its rows of each step.

    Args:
        dataset: The pipeline.
        batch_size: Rows of a step over all ranks.
    """

    steps: int | None = None
    endless = True

    def __init__(self, dataset: PackedDataset, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def batches(self, rank: int, ranks: int) -> Iterator[Batch]:
        """Yield this rank's part of every step."""
        for element in self.dataset.rows(0, 1, self.batch_size):
            rows = len(flatten(element)[0][0])
            start, stop = even_split(rows, ranks)[rank]
            cut = slice(start, stop) if start < stop else slice(0, 1)
            x, y = parts_of_rows(cut_rows(element, cut))
            yield Batch(x, y, stop - start, rows)

    def skip(self, passes: int) -> None:
        """Do nothing: there is only one pass."""

    def close(self) -> None:
        """Do nothing: no file is open."""


def _stream_beside(
    dataset: PackedDataset, batch_size: int, parts: tuple[str, ...], items: Items, folder: Path
) -> dict[str, Any]:
    """Return a pipeline without end as the rows to train on, and the spooled rows of other parts."""
    return {"train": EndlessRows(dataset, batch_size), **spool_parts(items, folder, parts)}


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


def mode_of(dataset: Any) -> Any:
    """Return the context in which to extend a tf.data.Dataset: eager mode, or the graph that it is part of."""
    variant = dataset._variant_tensor
    return tf.__internal__.eager_context.eager_mode() if _is_eager(variant) else variant.graph.as_default()


def _is_eager(tensor: Any) -> bool:
    return hasattr(tensor, "numpy")


def is_endless(dataset: Any) -> bool:
    """Return whether a tf.data.Dataset, or one that it takes all elements of, repeats itself without end."""
    stack = [dataset]
    while stack:
        part = stack.pop()
        part = vars(part).get("_dataset", part)  # one of TensorFlow 1 holds one of TensorFlow 2
        size = _in_its_mode(part, partial(tf.data.experimental.cardinality, part))
        if int(size) == tf.data.INFINITE_CARDINALITY:
            return True
        stack += [] if "Take" in type(part).__name__ else part._inputs()
    return False


def _with_fixed_order(graph: Any) -> Any:
    """Return a pipeline that shuffles by the same seeds wherever it runs: ranks read one order, and deal it out."""
    nodes = {node.name: node for node in graph.node}
    generator = np.random.default_rng()
    for node in list(graph.node):
        if not node.op.startswith("Shuffle"):
            continue
        seeds = [nodes[name] for name in map(op_of, node.input[2:4]) if name in nodes]
        if all(seed.op == "Const" and not tf.make_ndarray(seed.attr["value"].tensor).any() for seed in seeds):
            seed = constant(f"{node.name}/seed", np.array(generator.integers(1, 2**62)))
            graph.node.append(seed)
            node.input[2] = seed.name
    return graph


def _in_its_mode(dataset: Any, make: Callable[[], Any]) -> Any:
    """Return the value of a tensor made from a dataset: eagerly, or in a session of the graph it is part of."""
    variant = dataset._variant_tensor
    if _is_eager(variant):
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
