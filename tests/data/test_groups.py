"""group_by over shards, against pandas with all rows in one frame; without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from orca.data import groups
from orca.errors import DataError


class Lists:
    """Partitions in this process, with the methods of an RDD that group_by asks for."""

    def __init__(self, partitions: Iterable[Iterable[Any]]) -> None:
        self.partitions = [list(partition) for partition in partitions]

    def mapPartitions(self, function: Callable[..., Any]) -> Lists:
        return Lists(function(iter(partition)) for partition in self.partitions)

    def mapPartitionsWithIndex(self, function: Callable[..., Any]) -> Lists:
        return Lists(function(number, iter(partition)) for number, partition in enumerate(self.partitions))

    def partitionBy(self, parts: int, number_of: Callable[[Any], int]) -> Lists:
        pairs = [pair for partition in self.partitions for pair in partition]
        return Lists([pair for pair in pairs if number_of(pair[0]) == part] for part in range(parts))


def grouped(shards: list[pd.DataFrame], word: str) -> pd.Series:
    rdd: Any = Lists([shard] for shard in shards)
    result: Any = groups.grouped(rdd, shards[0].iloc[:0], "k", word, joined=False, parts=2)
    return pd.concat([frame for part in result.partitions for frame in part]).set_index("k")[f"{word}(v)"].sort_index()


@pytest.mark.parametrize("word", ["count", "sum", "mean", "var", "std", "min", "max"])
def test_infinities_of_both_signs_are_not_lost_between_shards(word: str) -> None:
    shards = [
        pd.DataFrame({"k": [1, 1, 2, 3, 3], "v": [np.inf, -np.inf, np.inf, np.nan, 2.0]}),
        pd.DataFrame({"k": [1, 1, 2, 3, 4], "v": [1.0, 2.0, 5.0, 3.0, np.nan]}),
    ]
    expected = pd.concat(shards).groupby("k")["v"].agg(word)
    np.testing.assert_allclose(grouped(shards, word).to_numpy(), expected.to_numpy())


BIG = 2**62 + 1


@pytest.mark.parametrize("word", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize(
    "other",
    [
        pd.Series([1.5, np.nan]), pd.Series([2, 2**63 + 5], dtype="uint64"), pd.Series([7, 8], dtype="int8"),
        pd.Series([1.5, 2.5], dtype="float32"), pd.Series([BIG, BIG]),
    ],
    ids=["float64", "uint64", "int8", "float32", "int64"],
)  # fmt: skip
def test_integers_are_summed_as_what_they_are_beside_those_of_all_shards(word: str, other: pd.Series) -> None:
    shards = [pd.DataFrame({"k": [1, 1, 1, 2], "v": [BIG] * 4}), pd.DataFrame({"k": [3, 4], "v": other})]
    expected = pd.concat(shards).groupby("k")["v"].agg(word)
    pd.testing.assert_series_equal(grouped(shards, word), expected, check_names=False, rtol=1e-15)


def test_large_keys_stay_apart_beside_a_shard_without_any() -> None:
    shards = [
        pd.DataFrame({"k": [2**53, 2**53 + 1, 2**53 + 1], "v": [1, 2, 4]}),
        pd.DataFrame({"k": pd.Series([None, None], dtype=object), "v": [8, 16]}),
    ]
    rdd: Any = Lists([shard] for shard in shards)
    result: Any = groups.grouped(rdd, shards[0].iloc[:0], "k", "sum", joined=False, parts=2)
    sums = pd.concat([frame for part in result.partitions for frame in part])["sum(v)"]
    assert sorted(sums) == [1, 6, 24]


def test_missing_values_of_every_kind_are_left_out_of_sums() -> None:
    cells = pd.Series([1, pd.NA, None, np.nan, 2.5], dtype=object)
    shards = [pd.DataFrame({"k": [1, 1], "v": [1, 2]}), pd.DataFrame({"k": [1, 1, 1, 2, 2], "v": cells})]
    assert grouped(shards, "sum").tolist() == [4, 2.5] and grouped(shards, "mean").tolist() == [4 / 3, 2.5]


@pytest.mark.parametrize("word", ["sum", "min", "mean", "std"])
@pytest.mark.parametrize("text", ["a", "7"])
def test_texts_in_one_of_the_shards_are_refused_by_the_name_of_their_column(word: str, text: str) -> None:
    shards = [pd.DataFrame({"k": [1, 1], "v": [1, 2]}), pd.DataFrame({"k": [1, 2], "v": [text, text]})]
    with pytest.raises(DataError, match=f"there is no {word} of column 'v'.*Name the columns"):
        grouped(shards, word)


@pytest.mark.parametrize(
    "cells", [["a", "b"], pd.to_timedelta([1, 2], unit="s"), pd.to_timedelta([1, 2]).astype(object)]
)
@pytest.mark.parametrize("first", [True, False])
def test_texts_and_durations_are_summed_beside_a_shard_without_values(cells: Any, first: bool) -> None:
    shards = [pd.DataFrame({"k": [1, 2], "v": [np.nan, np.nan]}), pd.DataFrame({"k": [1, 3], "v": cells})]
    shards = shards if first else shards[::-1]
    assert (
        grouped(shards, "sum").tolist() == pd.concat(shards).groupby("k")["v"].sum().tolist() == [cells[0], 0, cells[1]]
    )


@pytest.mark.parametrize("word", ["mean", "std"])
def test_times_beside_numbers_are_refused_rather_than_counted(word: str) -> None:
    for times in (pd.to_timedelta([1, 2]), pd.to_datetime([1, 2])):
        shards = [pd.DataFrame({"k": [1, 2], "v": [1.0, np.nan]}), pd.DataFrame({"k": [1, 3], "v": times})]
        with pytest.raises(DataError, match=f"there is no {word} of column 'v'.*times in it"):
            grouped(shards, word)


def test_large_keys_stay_apart_in_a_shard_of_objects_with_a_null() -> None:
    shards = [
        pd.DataFrame({"k": [1, 2**53, 2**53 + 1], "v": [1, 2, 4]}),
        pd.DataFrame({"k": pd.Series([1, None, 2**53 + 1], dtype=object), "v": [8, 16, 32]}),
    ]
    rdd: Any = Lists([shard] for shard in shards)
    result: Any = groups.grouped(rdd, shards[0].iloc[:0], "k", "sum", joined=False, parts=2)
    rows = pd.concat([frame for part in result.partitions for frame in part])
    sums = {key: total for key, total in zip(rows["k"].tolist(), rows["sum(v)"], strict=True) if not pd.isna(key)}
    assert sums == {1: 9, 2**53: 2, 2**53 + 1: 36} and len(rows) == 4
