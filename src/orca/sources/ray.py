"""RayDatasetSource: a Ray Dataset. Owns choosing its columns, cutting its blocks for ranks, and predict as a column.

The dataset is computed into Ray's object store before the ranks take their seats: Ray Data needs CPUs, and ranks that
hold all of them while they wait for rows would wait forever. Ray spills to disk when memory is full; a rank
reads block by block into its spool and lets each go.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from orca.core.columns import check_columns, not_numbers, output_names, single, squeeze
from orca.core.feed import SpoolRows, spool_parts, weigh
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, Columns, DataSpec, Extent, Items, Shards
from orca.errors import DataError
from orca.rows.arrow import to_arrow, to_numpy, widened
from orca.rows.tree import flatten

# Ray's own column types that are no arrays of one shape.
_UNFIT = {
    "ray.data.arrow_pickled_object": "Python objects",
    "ray.data.arrow_variable_shaped_tensor": "tensors of different shapes",
}


class RayDatasetSource:
    """A Ray Dataset: named feature, label and weight columns, or those called x, y and weights."""

    def __init__(self, data: Any, spec: DataSpec) -> None:
        self.data = data
        self.batch_size, self.unit = spec.batch_size or DEFAULT_BATCH, spec.unit_columns
        with _quiet(data):
            self.have: list[str] = list(data.columns() or ())  # a dataset without rows may not know its columns
        self.columns = _choose(spec, self.have)
        if self.have:
            check_columns(replace(self.columns, labels=self.columns.targets), self.have)
            if spec.labelled and spec.weighted and self.columns.weight is None:
                raise DataError(
                    f"rows with weights need the name of their column; got columns {self.have}. "
                    "Pass sample_weight='…'.",
                    code="missing-sample-weights",
                )
            if spec.labelled and not self.columns.labels:
                raise DataError(
                    f"training and evaluation need label_cols for a Ray Dataset; got columns {self.have}. "
                    "Pass label_cols=['…'].",
                    code="missing-label-cols",
                )
            if spec.numbers:
                self._check_numbers()

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a Ray Dataset."""
        module = sys.modules.get("ray.data")
        return module is not None and isinstance(data, module.Dataset)

    def extent(self) -> Extent:
        """Return Ray's count and size of a computed dataset; counting any other would compute it."""
        from ray.data.dataset import MaterializedDataset

        if not isinstance(self.data, MaterializedDataset):
            return Extent()
        return Extent(int(self.data.count()), int(self.data.size_bytes()))

    def shards(self, ranks: int, valid: RayDatasetSource | None = None) -> Shards:
        """Cut the rows evenly over the ranks, in their order: as blocks for Ray, as Arrow files for other engines."""
        sources = {"train": self} | ({"valid": valid} if valid else {})
        files = ExitStack()

        def portable() -> list[Callable[[], Items]]:
            folder = tempfile.mkdtemp(prefix="orca-dataset-")
            files.callback(shutil.rmtree, folder, ignore_errors=True)
            return [p for part, s in sources.items() for p in s._file_cuts(part, ranks, Path(folder))]

        return Shards(
            OpenTables(self.columns, tuple(sources), self.unit),
            portable=portable,
            home="ray",
            native=lambda: [p for part, s in sources.items() for p in s._block_cuts(part, ranks)],
            release=files.close,
        )

    def answer(self, task: Any, engine: Any) -> Any:
        """Return the dataset with the prediction column(s): nothing runs until it is used."""
        if task.output:
            _check_free(output_names(self.columns, len(task.output.heads)), self.have)
        work = BlockPredictTask(task, self.columns, self.unit)
        result = self.data.map_batches(work, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
        _keep_order(result)
        return result

    def _check_numbers(self) -> None:
        """Check that no column of texts or dates is among those that are used."""
        schema = self.data.schema()
        kinds = dict(zip(schema.names, schema.types, strict=True))
        for name in _named(self.columns):
            kind = kinds[name]
            if not isinstance(kind, pa.DataType):
                continue
            if pa.types.is_temporal(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
                raise not_numbers(f"column {name!r}", "dates" if pa.types.is_temporal(kind) else "text")

    def _block_cuts(self, part: str, ranks: int) -> list[BlockCuts]:
        """Compute the dataset and return each rank's stretches of its blocks."""
        data = self._selected()
        with _quiet(data):
            blocks = list(_blocks(data.materialize()))
        cuts = _cut([rows for _, rows in blocks], ranks)
        return [BlockCuts(part, tuple((blocks[i][0], start, stop) for i, start, stop in mine)) for mine in cuts]

    def _file_cuts(self, part: str, ranks: int, folder: Path) -> list[FileCuts]:
        """Write the dataset to an Arrow file, block by block, and return each rank's stretches of it."""
        data, names = self._selected(), _named(self.columns)
        path, sizes = str(folder / f"{part}.arrow"), list[int]()
        with _quiet(data), ExitStack() as file:
            writer = schema = None
            for table in data.iter_batches(batch_size=None, batch_format="pyarrow"):
                if not table.num_rows:
                    continue
                # Plain columns: the reader may have no Ray, and so no tensor columns.
                batch = pa.record_batch([to_arrow(_array(table, name)) for name in names], names)
                if writer is None:
                    schema = batch.schema
                    writer = file.enter_context(pa.ipc.new_file(path, schema))
                if batch.schema != schema:
                    raise DataError(
                        f"all blocks of a dataset must have the same column types; got {_types(schema)} and then "
                        f"{_types(batch.schema)}. Cast the columns first, with map_batches.",
                        code="column-types-differ",
                    )
                writer.write_batch(batch)
                sizes.append(batch.num_rows)
        return [FileCuts(part, path, tuple(mine)) for mine in _cut(sizes, ranks)]

    def _selected(self) -> Any:
        names = _named(self.columns)
        data = self.data if not self.have or set(names) == set(self.have) else self.data.select_columns(names)
        _keep_order(data)
        return data


@dataclass(frozen=True)
class BlockCuts:
    """A rank's stretches of blocks in Ray's object store."""

    part: str
    cuts: tuple[tuple[Any, int, int], ...]

    def __call__(self) -> Items:
        """Yield each stretch as a table; no block stays in memory."""
        for ref, start, stop in self.cuts:
            yield self.part, _table(ray.get(ref)).slice(start, stop - start)


@dataclass(frozen=True)
class FileCuts:
    """A rank's stretches of the record batches of an Arrow file."""

    part: str
    path: str
    cuts: tuple[tuple[int, int, int], ...]

    def __call__(self) -> Items:
        """Yield each stretch from the memory-mapped file."""
        if self.cuts:
            with pa.memory_map(self.path) as source:
                reader = pa.ipc.open_file(source)
                for number, start, stop in self.cuts:
                    yield self.part, reader.get_batch(number).slice(start, stop - start)


@dataclass(frozen=True)
class OpenTables:
    """The spooling of tables on a rank."""

    columns: Columns
    parts: tuple[str, ...]
    unit: bool = False

    def __call__(self, items: Items, folder: Path) -> dict[str, SpoolRows]:
        """Return the rows of each part."""
        return spool_parts(self._rows(items), folder, self.parts)

    def _rows(self, items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any, Any]]:
        columns = self.columns
        for part, table in items:
            labels = tuple(_array(table, name) for name in columns.labels)
            y = single(labels) if labels else None
            x = _features(table, columns, self.unit)
            yield part, x, y if columns.weight is None else weigh(y, _array(table, columns.weight))


@dataclass(frozen=True)
class BlockPredictTask:
    """Prediction columns added to a block."""

    task: Callable[[Any], Any]
    columns: Columns
    unit: bool = False

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the block with its predictions."""
        heads = flatten(self.task(_features(table, self.columns, self.unit)))[0]
        names = output_names(self.columns, len(heads))
        _check_free(names, table.column_names)
        for name, head in zip(names, heads, strict=True):
            table = table.append_column(name, _column(squeeze(_single_precision(head))))
        return table


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)


def _choose(spec: DataSpec, have: list[str]) -> Columns:
    """Return the columns that were named, else x and y."""
    columns = spec.columns
    features = columns.features or (("x",) if "x" in have or not have else ())
    labels = columns.labels or (("y",) if spec.labelled and not columns.features and "y" in have else ())
    weight = columns.weight
    if spec.weighted and not weight and not columns.features and ("weights" in have or not have):
        weight = "weights"
    return Columns(features, labels, columns.outputs, weight if spec.labelled else None)


def _named(columns: Columns) -> list[str]:
    return list(dict.fromkeys((*columns.features, *columns.targets)))


def _check_free(names: Sequence[str], have: Sequence[str]) -> None:
    clashes = [name for name in names if name in have]
    if clashes:
        raise DataError(
            f"the Ray Dataset has the column {clashes[0]!r} already. Name another with output_cols=['…'].",
            code="output-column-taken",
        )


def _cut(sizes: Sequence[int], ranks: int) -> list[list[tuple[int, int, int]]]:
    """Return for every rank (block, first row, end) of an even part of all rows: each row once, in order.

    >>> _cut([3, 1], 2)
    [[(0, 0, 2)], [(0, 2, 3), (1, 0, 1)]]
    """
    begins = np.cumsum([0, *sizes])
    return [
        [
            (block, max(start - begin, 0), min(stop - begin, size))
            for block, (begin, size) in enumerate(zip(begins[:-1].tolist(), sizes, strict=True))
            if max(start, begin) < min(stop, begin + size)
        ]
        for start, stop in even_split(int(begins[-1]), ranks)
    ]


def _blocks(data: Any) -> Iterator[tuple[Any, int]]:
    """Yield (reference, rows) of each block of a computed dataset."""
    for bundle in data.iter_internal_ref_bundles():
        for entry in bundle.blocks:
            # Older Ray (2.40 at least) has plain tuples here.
            ref, about = entry if isinstance(entry, tuple) else (entry.ref, entry.metadata)
            if about.num_rows:
                yield ref, about.num_rows


def _table(block: Any) -> pa.Table:
    """Return a block as Arrow; those that came from pandas are not."""
    if isinstance(block, pa.Table):
        return block
    from ray.data.block import BlockAccessor

    return BlockAccessor.for_block(block).to_arrow()


def _array(table: pa.Table | pa.RecordBatch, name: str) -> np.ndarray:
    column = table.column(name)
    what = _UNFIT.get(getattr(column.type, "extension_name", ""))
    if what:
        raise DataError(
            f"column {name!r} holds {what}, which no model can be fed with. "
            "Turn it into numbers or arrays of one shape first, with map_batches.",
            code="bad-column-type",
        )
    return to_numpy(column, name)


def _features(table: pa.Table | pa.RecordBatch, columns: Columns, unit: bool) -> Any:
    """Return the features of a table; with `unit`, a column of numbers as (rows, 1)."""
    arrays = [_array(table, name) for name in columns.features]
    return single(tuple(array[:, None] if unit and array.ndim == 1 else array for array in arrays))


def _single_precision(head: np.ndarray) -> np.ndarray:
    """Return outputs of half precision in single: numbers of two bytes are foreign to most readers of a dataset."""
    return widened(head) if head.dtype.name in ("float16", "bfloat16") else head


def _column(array: np.ndarray) -> pa.Array:
    """Return an output as a column: a number a row, or a tensor a row."""
    if array.ndim == 1:
        return to_arrow(array)
    from ray.data.extensions import ArrowTensorArray

    return ArrowTensorArray.from_numpy(array)


def _keep_order(data: Any) -> None:
    # Ray Data gives blocks in the order they get done unless told. All datasets of one lineage share their context.
    data.context.execution_options.preserve_order = True


@contextmanager
def _quiet(data: Any) -> Iterator[None]:
    """Compute without the bars and chatter of Ray Data, which would come between the user's own lines."""
    handlers, context = list(logging.getLogger("ray.data").handlers), data.context
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    for handler in handlers:
        handler.addFilter(_worth_telling)
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        for handler in handlers:
            handler.removeFilter(_worth_telling)


def _worth_telling(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING and not record.getMessage().startswith("Progress bars disabled")
