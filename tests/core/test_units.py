"""Sizes and times as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orca.core.units import check_seconds, java_size, natural, positive, size_of
from orca.errors import ArgumentError
from raised import raises


@pytest.mark.parametrize(("given", "size"), [(100, 100), ("512m", 512 << 20), ("2g", 2 << 30), (" 1 GB ", 1 << 30)])
def test_a_size_is_bytes_or_a_number_with_a_unit(given: Any, size: int) -> None:
    assert size_of(given, "store") == size


@pytest.mark.parametrize("given", ["much", "0", 0, -1, 1.5, True, None, "2x"])
def test_what_is_no_size_is_named(given: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"store must be bytes, or a number with a unit .*; got {given!r}"):
        size_of(given, "store")
    assert size_of("0", "store", least=0) == 0


def test_java_wants_a_unit() -> None:
    assert java_size("2 GB", "memory") == "2g"
    with raises("bad-size", match="'2'"):
        java_size("2", "memory")


@pytest.mark.parametrize(("given", "no_limit"), [(1, None), (0.5, 0), (0, 0), (None, None)])
def test_seconds_are_a_positive_number_or_what_means_no_limit(given: Any, no_limit: Any) -> None:
    check_seconds(given, "start_timeout", no_limit)


@pytest.mark.parametrize(
    ("given", "no_limit", "words"), [(0, None, "or None"), (None, 0, "0"), (True, 0, "0"), (-1, 0, "0"), ("5", 0, "0")]
)
def test_other_seconds_are_named(given: Any, no_limit: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"must be a number of seconds, {words} for no limit; got {given!r}"):
        check_seconds(given, "start_timeout", no_limit)


def test_counts_are_whole_numbers_of_any_library() -> None:
    assert (positive("cores", np.int64(2)), natural("seed", 0)) == (2, 0)
    for wrong in (0, -1, 1.0, True, "2", None):
        with pytest.raises(ArgumentError, match=rf"cores must be a positive whole number or '\*'; got {wrong!r}"):
            positive("cores", wrong, " or '*'")
    for wrong in (-1, 0.0, False, "2", None):
        with pytest.raises(ArgumentError, match=f"seed must be a whole number, 0 or more; got {wrong!r}"):
            natural("seed", wrong)
