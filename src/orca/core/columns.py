"""Columns: names and shapes of tabular data, shared by all sources. Owns their checks and how answers are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orca.core.source import Columns
from orca.errors import DataError, near
from orca.rows.tree import flatten, unflatten


def check_columns(columns: Columns, have: Sequence[str], verb: str = "this call") -> None:
    """Check that features are named and every named column exists."""
    if not columns.features:
        raise DataError(
            f"{verb} needs feature_cols for tabular data; got columns {list(have)}. Pass feature_cols=[…].",
            code="missing-feature-cols",
        )
    for name in (*columns.features, *columns.labels):
        if list(have).count(name) > 1:
            raise DataError(
                f"there are {list(have).count(name)} columns {name!r} in {list(have)}. Rename one of them.",
                code="duplicate-column",
            )
        if name not in have:
            raise DataError(
                f"there is no column {name!r}; the data has {list(have)}.{near(name, have)}", code="missing-column"
            )


def single(parts: Sequence[Any]) -> Any:
    """Return the only part, or all of them: one column is one argument, several are several."""
    return parts[0] if len(parts) == 1 else parts


def output_names(columns: Columns, heads: int) -> tuple[str, ...]:
    """Return the names of the prediction columns: those asked for, else prediction or prediction_0, _1, ..."""
    if columns.outputs:
        if len(set(columns.outputs)) != len(columns.outputs):
            raise DataError(
                f"output_cols names a column twice: {list(columns.outputs)}. Name each output once.",
                code="duplicate-output-cols",
            )
        if len(columns.outputs) != heads:
            raise DataError(
                f"the model has {heads} output(s), but output_cols names {len(columns.outputs)}: "
                f"{list(columns.outputs)}. Name each output once.",
                code="output-cols-count",
            )
        return columns.outputs
    return ("prediction",) if heads == 1 else tuple(f"prediction_{i}" for i in range(heads))


def squeeze(output: np.ndarray) -> np.ndarray:
    """Drop the last dimension of an (n, 1) output: one number a row is a number, not a list."""
    return output[:, 0] if output.ndim == 2 and output.shape[1] == 1 else output


def with_columns(frame: Any, columns: dict[str, np.ndarray]) -> Any:
    """Return a pandas frame with more columns; a row of several numbers is one cell."""
    for name in columns:
        if name in frame.columns:
            raise DataError(
                f"the data has the column {name!r} already. Name another with output_cols=['…'].",
                code="output-column-taken",
            )
    return frame.assign(**{name: list(cells) if cells.ndim > 1 else cells for name, cells in columns.items()})


def column_array(column: Any, name: str) -> np.ndarray:
    """Return a pandas or object column as one array; cells that are arrays or lists are stacked.

    Raises:
        DataError: Cells are missing or differ in shape.
    """
    return array_of(column, f"column {name!r}")


def array_of(thing: Any, what: str) -> np.ndarray:
    """Return an array, a tensor of any library, a pandas object or plain rows as an array that every framework reads.

    Numbers come in the byte order of this machine; bfloat16 and smaller as float32, long doubles as float64.

    Args:
        thing: The thing to read.
        what: Its name in an error.
    """
    if hasattr(thing, "detach"):
        thing = _strided(thing, what)
    elif _holes(thing):
        raise _missing(what)
    try:
        array = np.asarray(thing)
    except ValueError as error:
        raise DataError(
            f"the rows of {what} differ in shape: {error}. Pad or cut them first.", code="ragged-rows"
        ) from error
    if array.dtype == object:
        return _stacked(array, what)
    return array.astype(_readable(array.dtype), copy=False)


def arrays_of(tree: Any, what: str = "an array of the data", reader: Callable[[Any, str], Any] = array_of) -> Any:
    """Return a tree with arrays (or the results of `reader`) as its leaves.

    A list of numbers, or of such lists, is one array.

    Raises:
        DataError: A leaf cannot be an array of one shape without holes: see `array_of`.

    >>> arrays_of(([[1, 2], [3, 4]], {"y": [0, 1]}))
    (array([[1, 2],
           [3, 4]]), {'y': array([0, 1])})
    """
    if isinstance(tree, dict):
        return {key: arrays_of(part, what, reader) for key, part in tree.items()}
    if isinstance(tree, tuple | list) and not is_rows(tree):
        parts = [arrays_of(part, what, reader) for part in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return reader(tree, what)


def is_rows(thing: Any) -> bool:
    """Say whether this is plain Python for an array: a list or tuple of numbers or texts, or a list of such."""
    if not isinstance(thing, tuple | list) or not thing:
        return False
    first = thing[0]
    return isinstance(first, bool | int | float | complex | str | bytes | np.generic) or (
        isinstance(thing, list) and is_rows(first)
    )


def _strided(tensor: Any, what: str) -> Any:
    """Return a torch tensor that numpy can read."""
    if str(tensor.layout) != "torch.strided":
        kind = str(tensor.layout).removeprefix("torch.")
        raise DataError(
            f"{what} is a sparse tensor ({kind}), whose rows cannot be dealt out. Call to_dense() on it.",
            code="sparse-tensor",
        )
    tensor = tensor.detach().cpu()
    small = tensor.is_floating_point() and (tensor.element_size() == 1 or str(tensor.dtype) == "torch.bfloat16")
    return tensor.float() if small else tensor


def _holes(thing: Any) -> bool:
    """Say whether values are masked, or missing in a type of pandas that numpy does not have."""
    if isinstance(thing, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(thing).any())
    if not hasattr(thing, "isna"):
        return False
    kinds = [thing.dtype] if hasattr(thing, "dtype") else list(thing.dtypes)
    return not all(isinstance(kind, np.dtype) for kind in kinds) and bool(np.asarray(thing.isna()).any())


def _readable(dtype: np.dtype) -> np.dtype:
    """Return the number type to read an array in."""
    if dtype.kind == "V" and dtype.name.startswith(("bfloat", "float")):  # of ml_dtypes
        return np.dtype(np.float32)
    if dtype.char in "gG":
        return np.dtype(np.float64 if dtype.kind == "f" else np.complex128)
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def _stacked(array: np.ndarray, what: str) -> np.ndarray:
    """Return an array of objects as one of texts, or as the array of its cells."""
    flat = array.reshape(-1)
    if not array.ndim:
        raise DataError(
            f"{what} holds {type(array.item()).__name__} objects. Turn them into numbers first.", code="not-numbers"
        )
    if any(_is_missing(cell) for cell in flat):
        raise _missing(what)
    if len(flat) and isinstance(flat[0], str | bytes):
        return array
    if not len(flat):
        return np.zeros((0, 0))
    cells = [array_of(cell, what) for cell in flat]
    try:
        return np.stack(cells).reshape(*array.shape, *cells[0].shape)
    except ValueError as error:
        raise DataError(
            f"the cells of {what} differ in shape: {error}. Pad or cut them first.", code="ragged-rows"
        ) from error


def _missing(what: str) -> DataError:
    return DataError(
        f"{what} has missing values. Fill or drop them first (fillna, dropna), a masked array's by filled().",
        code="missing-values",
    )


def check_numbers(array: np.ndarray, what: str) -> None:
    """Check that an array is of numbers, for a model that takes nothing else."""
    if array.dtype.kind in "OUSTmM":
        raise not_numbers(what, "dates" if array.dtype.kind in "mM" else "text")


def not_numbers(what: str, kind: str) -> DataError:
    """Return the error for texts or dates that a model of numbers is given."""
    return DataError(
        f"{what} holds {kind}, and this model takes numbers alone. "
        "Turn it into numbers first, for instance with StringIndexer or a cast.",
        code="not-numbers",
    )


def _is_missing(cell: Any) -> bool:
    """Say whether pandas counts a cell of an object column as missing: None, NaN, NaT or NA."""
    return cell is None or (isinstance(cell, float) and cell != cell) or type(cell).__name__ in ("NAType", "NaTType")


def concatenate(parts: Sequence[Any]) -> Any:
    """Join trees of arrays along their rows."""
    flat = [flatten(part) for part in parts]
    structure = flat[0][1]
    for leaves, other in flat[1:]:
        one, two = ([np.shape(leaf)[1:] for leaf in heads] for heads in (flat[0][0], leaves))
        if other != structure or one != two:
            raise DataError(
                f"the model's answers differ in shape from batch to batch: a row has {one} and then {two}. "
                "Let it answer for every row in one shape.",
                code="predictions-differ-in-shape",
            )
    heads = zip(*(leaves for leaves, _ in flat), strict=True)
    return unflatten(structure, [np.concatenate(parts) for parts in heads])
