"""Tree: nested tuples, lists and dicts of arrays. Owns how a tree becomes a flat list of leaves and back.

Not optree: it sorts the keys of dicts, which would change the order of features, and takes None for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from orca.errors import DataError

# A structure mirrors its tree: None for a leaf, (kind, keys or count, children) for a node.
Structure = Any


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of a tree from left to right, and its structure.

    >>> flatten({"a": 1, "b": (2, 3)})[0]
    [1, 2, 3]
    """
    if isinstance(tree, dict):
        parts = [flatten(v) for v in tree.values()]
        structure: Structure = ("dict", tuple(tree), tuple(s for _, s in parts))
    elif isinstance(tree, tuple | list):
        parts = [flatten(v) for v in tree]
        structure = (type(tree).__name__ if type(tree) in (tuple, list) else "tuple", (), tuple(s for _, s in parts))
    else:
        return [tree], None
    return [leaf for leaves, _ in parts for leaf in leaves], structure


def unflatten(structure: Structure, leaves: Iterator[Any] | list[Any]) -> Any:
    """Build the tree of this structure from its leaves."""
    stream = iter(leaves)
    return _build(structure, stream)


def _build(structure: Structure, stream: Iterator[Any]) -> Any:
    if structure is None:
        return next(stream)
    kind, keys, children = structure
    parts = [_build(child, stream) for child in children]
    if kind == "dict":
        return dict(zip(keys, parts, strict=True))
    return parts if kind == "list" else tuple(parts)


def same_form(one: Structure, other: Structure) -> bool:
    """Say whether two structures are the same but for tuples that are lists."""
    if one is None or other is None:
        return one is other
    (kind, keys, parts), (other_kind, other_keys, other_parts) = one, other
    if (kind == "dict") != (other_kind == "dict") or keys != other_keys or len(parts) != len(other_parts):
        return False
    return all(map(same_form, parts, other_parts))


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf, keeping the structure.

    >>> map_tree(lambda v: v + 1, {"a": 1, "b": [2, 3]})
    {'a': 2, 'b': [3, 4]}
    """
    if not isinstance(tree, dict | tuple | list):  # most often there is one array alone
        return function(tree)
    leaves, structure = flatten(tree)
    return unflatten(structure, [function(leaf) for leaf in leaves])


def listed(things: Any) -> list[Any]:
    """Return None, one thing or several things as a list."""
    return [] if things is None else list(things) if isinstance(things, list | tuple) else [things]


def outline(tree: Any) -> Any:
    """Return a tree to compare with others: equal where dicts have the same keys, in any order.

    >>> outline(({"a": 1, "b": 2}, 3)) == outline(([{"b": 4, "a": 5}, 6]))
    True
    """
    if isinstance(tree, dict):
        return {key: outline(part) for key, part in tree.items()}
    return list(map(outline, tree)) if isinstance(tree, tuple | list) else None


def cut_rows(tree: Any, cut: slice) -> Any:
    """Return the same rows of every array of a tree."""
    return map_tree(lambda leaf: leaf[cut], tree)


def rows_of(tree: Any, what: str = "data") -> int:
    """Return the common first dimension of all arrays of a tree."""
    leaves, _ = flatten(tree)
    shapes = [np.shape(leaf) for leaf in leaves]
    if not shapes or any(len(shape) == 0 for shape in shapes):
        raise DataError(
            f"{what} must be arrays with rows in their first dimension; got shapes {shapes}.", code="not-rows"
        )
    if len({shape[0] for shape in shapes}) > 1:
        raise DataError(
            f"all arrays of {what} must have the same number of rows; got shapes {shapes}. Check features and labels.",
            code="row-counts-differ",
        )
    return int(shapes[0][0])
