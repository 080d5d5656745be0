"""ArraySource: numpy arrays, trees of them and pandas frames that live on the driver. Owns cutting them into pieces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from orca.core.columns import (
    arrays_of,
    check_columns,
    check_numbers,
    column_array,
    concatenate,
    is_rows,
    output_names,
    single,
    squeeze,
    with_columns,
)
from orca.core.feed import spool_parts, weigh
from orca.core.plan import even_split
from orca.core.source import DEFAULT_BATCH, Columns, DataSpec, Extent, Items, Shards
from orca.errors import DataError
from orca.rows.tree import cut_rows, flatten, rows_of


class ArraySource:
    """Arrays: `x` alone, `(x, y)`, `{"x": ..., "y": ...}` (arrays or trees of them), or a dict of columns.

    Tensors of any library, pandas Series and lists of numbers are arrays, too.
    With weights they are `(x, y, weights)` and `{"x": ..., "y": ..., "weights": ...}`, or a column of the dict.
    """

    def __init__(self, data: Any, spec: DataSpec) -> None:
        if spec.labelled and isinstance(data, list):
            data = tuple(data)  # several things, also where they are lists of numbers
        self.x, self.y = pair(arrays_of(data), spec.columns, spec.labelled, spec.weighted)
        self.batch_size = spec.batch_size or DEFAULT_BATCH
        self.rows = rows_of(self.x if self.y is None else (self.x, self.y))
        for array in flatten((self.x, () if self.y is None else self.y))[0] if spec.numbers else ():
            check_numbers(array, "an array of the data")

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise arrays and nested tuples, lists and dicts of them."""
        if isinstance(data, tuple | list | dict) and not is_rows(data):
            parts = data.values() if isinstance(data, dict) else data
            return bool(parts) and all(map(cls.wraps, parts))
        return is_rows(data) or (hasattr(data, "__array__") and len(getattr(data, "shape", ())) > 0)

    def extent(self) -> Extent:
        """Return the rows and bytes of the arrays."""
        return Extent(self.rows, sum(getattr(leaf, "nbytes", 0) for leaf in flatten((self.x, self.y))[0]))

    def shards(self, ranks: int, valid: ArraySource | None = None) -> Shards:
        """Cut rows into one contiguous piece a rank."""
        parts = {"train": self} | ({"valid": valid} if valid else {})
        open_rows = partial(spool_parts, parts=tuple(parts))
        return Shards(open_rows, lambda: [p for name, s in parts.items() for p in s.pieces(name, ranks)])

    def pieces(self, part: str, count: int) -> list[Block]:
        """Return this many blocks of rows, in order."""
        cuts = [slice(start, stop) for start, stop in even_split(self.rows, count)]
        return [Block(part, cut_rows(self.x, cut), None if self.y is None else cut_rows(self.y, cut)) for cut in cuts]

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return predictions as arrays, in the order of the rows."""
        blocks = [block.x for block in self.pieces("predict", engine.workers)]
        return concatenate(engine.map(task, [x for x in blocks if len(flatten(x)[0][0])] or blocks[:1]))


class PandasSource:
    """A pandas DataFrame: feature columns become model arguments; predict answers with one more column."""

    def __init__(self, data: Any, spec: DataSpec) -> None:
        self.frame, self.columns = data, spec.columns
        columns = spec.columns
        check_columns(replace(columns, labels=columns.targets), list(data.columns))
        cells = {name: column_array(data[name], name) for name in (*columns.features, *columns.targets)}
        for name, array in cells.items() if spec.numbers else ():
            check_numbers(array, f"column {name!r}")
        self.arrays = ArraySource(cells, spec)
        self.batch_size = self.arrays.batch_size

    @classmethod
    def wraps(cls, data: Any) -> bool:
        """Recognise a pandas DataFrame."""
        pandas = sys.modules.get("pandas")
        return pandas is not None and isinstance(data, pandas.DataFrame)

    def extent(self) -> Extent:
        """Return the rows and bytes of the columns."""
        return self.arrays.extent()

    def shards(self, ranks: int, valid: PandasSource | None = None) -> Shards:
        """Cut the columns as arrays."""
        return self.arrays.shards(ranks, valid.arrays if valid else None)

    def answer(self, task: Callable[[Any], Any], engine: Any) -> Any:
        """Return the frame with the prediction column(s)."""
        heads = [squeeze(head) for head in flatten(self.arrays.answer(task, engine))[0]]
        return with_columns(self.frame, dict(zip(output_names(self.columns, len(heads)), heads, strict=True)))


@dataclass(frozen=True)
class Block:
    """A piece of arrays on its way to a rank."""

    part: str
    x: Any
    y: Any

    def __call__(self) -> Items:
        """Give itself as the only item."""
        return iter([(self.part, self.x, self.y)])


def pair(data: Any, columns: Columns, labelled: bool, weighted: bool = False) -> tuple[Any, Any]:
    """Return (x, y) of a user's data; y is None where there are no labels, and tied to weights if any."""
    weighted = weighted and labelled  # answers need no weights
    if isinstance(data, dict) and (columns.features or columns.labels or "x" in data):
        return named_pair(data, columns, weighted)
    if labelled and isinstance(data, tuple | list):
        if len(data) != 2 + weighted:
            form = "(x, y, weights) or {'x': …, 'y': …, 'weights': …}" if weighted else "(x, y) or {'x': …, 'y': …}"
            raise DataError(
                f"data with labels{' and weights' * weighted} must be {form}; got a {type(data).__name__} of "
                f"{len(data)}. Put several inputs into a tuple of their own: ((x1, x2), y{', weights' * weighted}).",
                code="bad-labelled-data",
            )
        return data[0], weigh(data[1], data[2]) if weighted else data[1]
    if weighted:
        raise DataError(
            f"data with weights must be (x, y, weights) or {{'x': …, 'y': …, 'weights': …}}; got {_kind(data)}.",
            code="bad-weighted-data",
        )
    return data, None


def named_pair(data: dict[str, Any], columns: Columns, weighted: bool) -> tuple[Any, Any]:
    """Return (x, y) of a dict: by the columns' names, else x, y (and weights).

    Named features are the model's arguments; where labels alone are named, x is the dict of all the rest.

    Raises:
        DataError: A name is missing.
    """
    if not columns.features and not columns.labels:
        y = data.get("y")
        return data["x"], weigh(y, _weights(data, columns.weight or "weights")) if weighted else y
    features = columns.features or tuple(name for name in data if name not in columns.targets)
    spec = replace(columns, features=features, labels=columns.targets if weighted else columns.labels)
    check_columns(spec, list(data))
    x = single(tuple(data[name] for name in features)) if columns.features else {name: data[name] for name in features}
    labels = tuple(data[name] for name in columns.labels)
    y = single(labels) if labels else None
    return x, weigh(y, _weights(data, columns.weight or "weights")) if weighted else y


def inputs_of(parts: tuple[Any, ...], task: Callable[[Any], Any]) -> Any:
    """Return the model's inputs of a batch without named parts, for an answer.

    They are all of it, unless the model takes fewer things, or can do without the last: then that is the label. Label
    and weights may follow the inputs, too.
    """
    takes, spares = getattr(task, "takes", None), getattr(task, "spares", None)
    forms = [single(parts[: len(parts) - others]) for others in range(min(3, len(parts)))]
    form = next((form for form in forms if takes is None or takes(form)), forms[0])
    return forms[1] if form is forms[0] and len(forms) > 1 and spares is not None and spares(form) else form


def _weights(data: dict[str, Any], name: str) -> Any:
    if name not in data:
        raise DataError(
            f"there are no weights under the name {name!r}; the data has {list(data)}. "
            "Name their column: sample_weight='…'.",
            code="missing-sample-weights",
        )
    return data[name]


def _kind(data: Any) -> str:
    return f"a dict with keys {list(data)}" if isinstance(data, dict) else type(data).__name__
