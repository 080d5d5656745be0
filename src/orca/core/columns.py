"""Columns: names and shapes of tabular data, shared by all sources. Owns their checks and how answers are named."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from orca.core.source import Columns
from orca.core.tree import flatten, unflatten
from orca.errors import DataError


def check_columns(columns: Columns, have: Sequence[str], verb: str = "this call") -> None:
    """Check that features are named and every named column exists.

    Raises:
        DataError: With the columns there are and the nearest name.
    """
    if not columns.features:
        raise DataError(f"{verb} needs feature_cols for tabular data; got columns {list(have)}. Pass feature_cols=[…].")
    for name in (*columns.features, *columns.labels):
        if name not in have:
            near = difflib.get_close_matches(name, map(str, have), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise DataError(f"there is no column {name!r}; the data has {list(have)}.{hint}")


def single(parts: tuple[Any, ...]) -> Any:
    """Return the only part, or all of them: one column is one argument, several are several."""
    return parts[0] if len(parts) == 1 else parts


def output_names(columns: Columns, heads: int) -> tuple[str, ...]:
    """Return the names of the prediction columns: those asked for, else prediction or prediction_0, _1, ...

    Raises:
        DataError: Another number of output_cols was given.
    """
    if columns.outputs:
        if len(columns.outputs) != heads:
            raise DataError(
                f"the model has {heads} output(s), but output_cols names {len(columns.outputs)}: "
                f"{list(columns.outputs)}. Name each output once."
            )
        return columns.outputs
    return ("prediction",) if heads == 1 else tuple(f"prediction_{i}" for i in range(heads))


def squeeze(output: np.ndarray) -> np.ndarray:
    """Drop the last dimension of an (n, 1) output: one number a row is a number, not a list."""
    return output[:, 0] if output.ndim == 2 and output.shape[1] == 1 else output


def with_columns(frame: Any, named: dict[str, np.ndarray]) -> Any:
    """Return a pandas frame with more columns; a row of several numbers is one cell.

    Raises:
        DataError: A column of that name is there already.
    """
    for name in named:
        if name in frame.columns:
            raise DataError(f"the data has the column {name!r} already. Name another with output_cols=['…'].")
    return frame.assign(**{name: list(cells) if cells.ndim > 1 else cells for name, cells in named.items()})


def column_array(column: Any, name: str) -> np.ndarray:
    """Return a pandas or object column as one array; cells that are arrays or lists are stacked.

    Raises:
        DataError: Cells are missing or differ in shape.
    """
    array = np.asarray(column)
    if array.dtype != object:
        return array
    if any(_is_missing(cell) for cell in array):
        raise DataError(f"column {name!r} has missing values. Fill or drop them first (fillna, dropna).")
    if len(array) and isinstance(array[0], str):
        return array
    try:
        return np.stack([np.asarray(cell) for cell in array]) if len(array) else np.zeros((0, 0))
    except ValueError as error:
        raise DataError(f"the cells of column {name!r} differ in shape: {error}. Pad or cut them first.") from error


def _is_missing(cell: Any) -> bool:
    """Say whether pandas counts a cell of an object column as missing: None, NaN, NaT or NA."""
    return cell is None or (isinstance(cell, float) and cell != cell) or type(cell).__name__ in ("NAType", "NaTType")


def concatenate(parts: Sequence[Any]) -> Any:
    """Join trees of arrays along their rows.

    Raises:
        DataError: Their structures or the shapes of their rows differ.
    """
    flat = [flatten(part) for part in parts]
    structure = flat[0][1]
    for leaves, other in flat[1:]:
        one, two = ([np.shape(leaf)[1:] for leaf in found] for found in (flat[0][0], leaves))
        if other != structure or one != two:
            raise DataError(
                f"the model's answers differ in shape from batch to batch: a row has {one} and then {two}. "
                "Let it answer for every row in one shape."
            )
    return unflatten(structure, [np.concatenate(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)])
