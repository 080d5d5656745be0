from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from orca.rows.tree import flatten, map_tree, rows_of, unflatten
from raised import raises

TREES: list[Any] = [
    1,
    None,
    (),
    [],
    {},
    (1,),
    [1, 2],
    {"b": 1, "a": 2},
    ({"x": [1, (2, 3)], "y": {}}, (), [4]),
    {"deep": [{"er": ({"still": 1},)}]},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_a_flat_tree_is_built_again_as_it_was(tree: Any) -> None:
    leaves, structure = flatten(tree)
    assert unflatten(structure, leaves) == tree
    assert unflatten(structure, iter(leaves)) == tree


def test_leaves_come_from_left_to_right_and_dicts_keep_their_order() -> None:
    assert flatten({"b": 1, "a": (2, [3])})[0] == [1, 2, 3]
    assert list(map_tree(str, {"b": 1, "a": 2})) == ["b", "a"]


def test_kinds_are_kept_apart() -> None:
    assert flatten((1, 2))[1] != flatten([1, 2])[1]
    assert flatten({"a": 1})[1] != flatten({"b": 1})[1]
    assert flatten(((1,), 2))[1] == flatten(((3,), 4))[1]


def test_named_tuples_become_tuples() -> None:
    Pair = namedtuple("Pair", "left right")
    assert map_tree(lambda v: v + 1, Pair(1, 2)) == (2, 3)


def test_structures_can_be_compared_and_hashed() -> None:
    assert len({flatten(tree)[1] for tree in ({"a": 1}, {"a": 2}, [1], (1,))}) == 3


def test_map_tree_does_not_touch_its_argument() -> None:
    tree = {"a": np.arange(3), "b": [np.ones(2)]}
    doubled = map_tree(lambda leaf: leaf * 2, tree)
    assert doubled["a"].tolist() == [0, 2, 4] and tree["a"].tolist() == [0, 1, 2]


def test_rows_of_is_the_common_first_dimension() -> None:
    assert rows_of({"a": np.zeros((4, 2)), "b": (np.zeros(4), np.zeros((4, 1, 1)))}) == 4
    assert rows_of(np.zeros((0, 3))) == 0


def test_rows_of_refuses_unequal_lengths() -> None:
    with raises("row-counts-differ") as info:
        rows_of((np.zeros((4, 2)), np.zeros(3)), "labels")
    assert "(4, 2)" in str(info.value) and "(3,)" in str(info.value)


@pytest.mark.parametrize("tree", [3.0, (), {"a": np.float32(1)}, (np.zeros(3), "text")], ids=repr)
def test_rows_of_refuses_what_has_no_rows(tree: Any) -> None:
    with raises("not-rows"):
        rows_of(tree)
