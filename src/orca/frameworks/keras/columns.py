"""Columns of a DataFrame as the inputs and outputs of a Keras model. Owns which column meets which by its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

from orca.errors import DataError

logger = logging.getLogger(__name__)


def named_features(x: Any, columns: Sequence[str], model: Any) -> Any:
    """Return features as the model's inputs name them: a dict, or the columns of these names in their order.

    Raises:
        DataError: The model has a dict of inputs, and the columns have other names.
    """
    inputs = _structure(model, "inputs")
    if isinstance(x, dict):
        return x
    if isinstance(inputs, tuple | list):
        return _in_order(x, columns, [getattr(each, "name", None) for each in inputs])
    if not isinstance(inputs, dict):
        return x
    if set(columns) != set(inputs):
        raise DataError(
            f"the model's inputs are named {sorted(inputs)}; got the feature columns {list(columns)}. "
            "Name the columns after the inputs.",
            code="input-names-differ",
        )
    return dict(zip(columns, x if isinstance(x, tuple | list) else (x,), strict=True))


def named_labels(y: Any, columns: Sequence[str], model: Any) -> Any:
    """Return labels as the model's outputs are: a dict, or in their order, if the columns have their names."""
    outputs = _structure(model, "outputs")
    if isinstance(outputs, dict) and isinstance(y, tuple | list) and set(columns) == set(outputs):
        return dict(zip(columns, y, strict=True))
    return _in_order(y, columns, getattr(model, "output_names", None) or ())


def _structure(model: Any, side: str) -> Any:
    """Return a functional model's inputs or outputs, nested as it was built with them; None for other models."""
    names = (f"_{side}_struct", f"_nested_{side}")  # Keras 3; tf_keras
    return next((getattr(model, name) for name in names if hasattr(model, name)), None)


def _in_order(columns: Any, names: Sequence[str], order: Sequence[Any]) -> Any:
    """Return columns in the order of a model's inputs or outputs, if they have just these names; else as they are."""
    if not isinstance(columns, tuple | list) or len(columns) != len(order):
        return columns
    if set(names) != set(order):
        if set(names) & set(order):
            _warn_of_order(tuple(names), tuple(order))
        return columns
    return [columns[names.index(name)] for name in order] if len(set(order)) == len(order) else columns


@cache
def _warn_of_order(names: tuple[str, ...], order: tuple[Any, ...]) -> None:
    logger.warning(
        "the columns %s meet the model's %s in this order, as not all of them have its names. Name all alike to match "
        "them by name.",
        list(names),
        list(order),
    )
